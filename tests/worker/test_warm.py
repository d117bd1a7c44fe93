"""Forks of a warm server: as fresh interpreters, to the last bit, and no less easy to end."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from attnkit.worker import warm
from attnkit.worker.folder import read_json, read_record, write_json
from attnkit.worker.inspection import Inspector
from attnkit.worker.job import Job
from attnkit.worker.provenance import Provenance, changes
from attnkit.worker.warm import LOST, Fork, Server, can_fork, shared
from tests.ablation.conftest import SEEDS

pytestmark = [pytest.mark.usefixtures("small_recipe"), pytest.mark.skipif(not can_fork(), reason="no server on this system")]

COLD = """
import json, os, socket
from attnkit.worker import server
with socket.socket(fileno=os.dup(0)) as control:
    control.send(json.dumps({"forks": FORKS}).encode())
found = server.serve()
if found is not None:
    server.become(*found)
"""
"""A server that imports nothing first."""

TELLING = """
import json, os, sys, random
import numpy as np
json.dump({"pid": os.getpid(), "cwd": os.getcwd(), "path": sys.path[0], "argv": sys.argv[1:], "name": __name__, "spec": __spec__.name,
    "environment": dict(os.environ), "session": os.getsid(0), "draws": [random.random(), np.random.rand()], "modules": sorted(sys.modules),
    "files": len(os.listdir("/proc/self/fd"))}, sys.stdout)
sys.exit(3)
"""


def write_modules(forks: str = "True") -> None:
    Path("cold_server.py").write_text(COLD.replace("FORKS", forks))
    Path("telling.py").write_text(TELLING)
    Path("plugin.py").write_text("import telling_more")
    Path("telling_more.py").write_text("")
    Path("sleeping.py").write_text("import time; time.sleep(120)")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    write_modules()
    monkeypatch.setattr(warm, "SERVER", "cold_server")
    found = Server()
    yield found
    found.close()
    while forks:
        forks.pop().stdin.close()


forks: list[Fork] = []


def start(server: Server, *words: str, out: str = "out", **environment: str) -> Fork | None:
    with Path(out).open("wb") as stdout, Path("err").open("ab") as stderr:
        found = server.start(words, directory=Path.cwd(), environment={**os.environ, **environment}, out=stdout, err=stderr)
    forks.extend([found] if found is not None else [])
    return found


def told(server: Server, *words: str, **environment: str) -> dict[str, Any]:
    fork = start(server, *words, **environment)
    assert fork is not None
    assert fork.wait(60) == 3, Path("err").read_text()
    found: dict[str, Any] = json.loads(Path("out").read_text())
    assert found["pid"] == fork.pid
    return found


def test_a_fork_behaves_like_a_fresh_interpreter(server: Server) -> None:
    one, other = told(server, "telling", "a", A_VARIABLE="1"), told(server, "telling")
    done = subprocess.run([sys.executable, "-m", "telling", "a"], capture_output=True, text=True, env=os.environ | {"A_VARIABLE": "1"})
    fresh = json.loads(done.stdout)
    for key in ("cwd", "path", "argv", "name", "spec", "environment"):
        assert one[key] == fresh[key]
    assert one["pid"] == one["session"] != other["session"]
    assert "A_VARIABLE" not in other["environment"]
    assert len({*one["draws"], *other["draws"]}) == 4
    assert one["files"] == other["files"]  # none of another fork


def test_imports_of_a_fork_do_not_leak_into_others(server: Server) -> None:
    fork = start(server, "plugin")
    assert fork is not None
    assert fork.wait(60) == 0
    assert "telling_more" not in told(server, "telling")["modules"]


ENDING = """
import atexit, sys, threading, time
unclosed = open("unclosed", "w")
unclosed.write("written")
atexit.register(lambda: print("at exit"))
threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
sys.exit(WITH)
"""


@pytest.mark.parametrize(("given", "code"), [("None", 0), ("7", 7), ("'told'", 1)])
def test_a_fork_exits_like_an_interpreter(server: Server, given: str, code: int) -> None:
    Path("ending.py").write_text(ENDING.replace("WITH", given))
    fork = start(server, "ending")
    assert fork is not None
    assert fork.wait(60) == code
    assert Path("out").read_text() == "thread\nat exit\n"
    assert Path("unclosed").read_text() == "written"
    assert Path("err").read_text().endswith("told\n" if code == 1 else "")


def test_a_fork_can_be_signalled_from_the_first_moment(server: Server) -> None:
    for _ in range(5):
        fork = start(server, "sleeping")
        assert fork is not None
        os.killpg(fork.pid, signal.SIGTERM)
        assert fork.wait(60) == -signal.SIGTERM


def test_a_fork_without_its_server_is_lost_and_a_new_server_starts(server: Server) -> None:
    fork = start(server, "sleeping")
    assert fork is not None
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.1)
    server._process.kill()
    assert fork.wait(60) == LOST
    os.killpg(fork.pid, signal.SIGKILL)
    assert told(server, "telling")["argv"] == []


def test_a_fork_uses_a_server_matching_its_environment_and_code(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def number(**environment: str) -> int:
        told(server, "telling", **environment)
        return server._process.pid

    first = number()
    assert number(CUDA_VISIBLE_DEVICES="1") == first
    assert (other := number(A_VARIABLE="1")) != first
    assert number(A_VARIABLE="1") == other
    monkeypatch.setattr(warm, "code_version", lambda: "edited")
    assert number(A_VARIABLE="1") != other


def test_a_relative_module_path_is_resolved_against_the_folder(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "other"):
        Path(name, "modules").mkdir(parents=True)
        Path(name, "modules", "placed.py").write_text(f"name = {name!r}")
        Path(name, "asking.py").write_text("import placed; print(placed.name)")
    for name in ("one", "other"):
        monkeypatch.chdir(tmp_path / name)
        fork = start(server, "asking", PYTHONPATH=os.pathsep.join([str(tmp_path), "modules"]))
        assert fork is not None
        assert fork.wait(60) == 0, Path("err").read_text()
        assert Path("out").read_text() == f"{name}\n"


def test_a_closed_server_still_reports_how_its_forks_end(server: Server) -> None:
    fork = start(server, "sleeping")
    assert fork is not None
    server.close()
    os.killpg(fork.pid, signal.SIGTERM)
    assert fork.wait(60) == -signal.SIGTERM
    server._process.wait(60)


def test_a_server_that_cannot_fork_or_fails_is_not_retried(server: Server) -> None:
    for program in (COLD.replace("FORKS", "False"), "raise SystemExit"):
        Path("cold_server.py").write_text(program)
        declining = Server()
        assert start(declining, "telling") is None
        Path("cold_server.py").write_text("raise AssertionError")
        assert start(declining, "telling") is None


def test_a_server_ends_with_its_driver() -> None:
    write_modules()
    driver = """
import sys, os, time
from pathlib import Path
from attnkit.worker import warm
warm.SERVER = "cold_server"
server = warm.Server()
fork = server.start(["sleeping"], directory=Path.cwd(), environment=dict(os.environ), out=sys.stdout.buffer, err=sys.stderr.buffer)
print(server._process.pid, fork.pid, flush=True)
time.sleep(120)
"""
    with subprocess.Popen([sys.executable, "-c", driver], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        server, fork = map(int, process.stdout.readline().split())
        process.kill()
    os.kill(fork, signal.SIGKILL)  # it has no lifeline, as a run has
    deadline = time.monotonic() + 60
    while Path(f"/proc/{server}/stat").exists() and Path(f"/proc/{server}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.02)


EDITED = """
from pathlib import Path
starts = Path("starts")
starts.write_text(starts.read_text() + "x")
if len(starts.read_text()) <= EDITS:
    Path("version").write_text(starts.read_text())
"""


@pytest.mark.parametrize(("edits", "servers", "forks"), [(1, 2, True), (2, 3, True), (9, 3, False)])
def test_a_server_whose_code_was_edited_during_imports_forks_no_run(
    edits: int, servers: int, forks: bool, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("cold_server.py").write_text(EDITED.replace("EDITS", str(edits)) + COLD.replace("FORKS", "True"))
    for name in ("starts", "version"):
        Path(name).write_text("")
    monkeypatch.setattr(warm, "code_version", lambda: Path("version").read_text())
    fork = start(server, "telling")
    assert (fork is not None) is forks  # otherwise, a fresh interpreter says what it imported
    assert fork is None or fork.wait(60) == 3
    assert len(Path("starts").read_text()) == servers


SLOW = """
import time
from pathlib import Path
Path("importing").touch()
while not Path("edited").exists():
    time.sleep(0.01)
"""


@pytest.mark.parametrize("is_warm", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_module_edited_during_its_import_makes_the_run_stale(is_warm: bool) -> None:
    Path("slow_to_import.py").write_text(SLOW)
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed([])
    write_json(Path("run/job.json"), {"recipe": {**recipe, "imports": ["slow_to_import"]}, "seeds": SEEDS, "test": False})
    found = shared() if is_warm else None
    with ThreadPoolExecutor(1) as pool:
        code = pool.submit(Job(folder=Path("run").absolute(), directory=Path.cwd()).carry_out, None, found)
        while not Path("importing").exists() and not code.done():
            time.sleep(0.01)
        Path("slow_to_import.py").write_text(SLOW + "print('edited')\n")
        Path("edited").touch()
        assert code.result() == 0, Path("run/stderr.txt").read_text()
    made = read_record(Provenance, Path("run/provenance.json"))
    assert made is not None
    assert "slow_to_import was changed during the run" in changes(made, current=None)
    assert not [name for name, content in made.code.items() if "then" in content and name != "slow_to_import"]


TIMES = ("seconds", "tokens_per_second", "memory")


@pytest.mark.slow
def test_a_run_from_a_warm_server_equals_a_fresh_one() -> None:
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed([{"model": {"stack": {"position": "learned"}}}])
    warm_server = shared()
    assert warm_server is not None
    for name, server in (("fresh", None), ("warm", warm_server), ("again", warm_server)):
        write_json(Path(name, "job.json"), {"recipe": recipe, "seeds": SEEDS, "test": True})
        assert Job(folder=Path(name).absolute(), directory=Path.cwd()).carry_out(None, server) == 0, Path(name, "stderr.txt").read_text()
    assert warm_server._forks
    fresh = read_json(Path("fresh/result.json"))
    weights = torch.load("fresh/checkpoints/last.ckpt", weights_only=True)["state_dict"]
    for name in ("warm", "again"):
        found = read_json(Path(name, "result.json"))
        for result in (found, fresh):
            result["curve"] = [{k: v for k, v in point.items() if k not in TIMES} for point in result["curve"]]
        assert {k: v for k, v in found.items() if k not in TIMES} == {k: v for k, v in fresh.items() if k not in TIMES}
        loaded = torch.load(f"{name}/checkpoints/last.ckpt", weights_only=True)["state_dict"]
        assert loaded.keys() == weights.keys()
        assert all(torch.equal(loaded[key], weights[key]) for key in weights)
        for part in ("code", "data"):
            assert read_json(Path(name, "provenance.json"))[part] == read_json(Path("fresh/provenance.json"))[part]
        assert Path(name, "stderr.txt").read_text().replace(f"/{name}/", "/fresh/") == Path("fresh/stderr.txt").read_text()
