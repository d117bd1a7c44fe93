"""A run of a study ends with its driver and at its deadline, though nobody ends it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from attnkit.worker import lifeline
from attnkit.worker.folder import read_json
from attnkit.worker.lifeline import DRIVEN
from tests.ablation.conftest import STUDY, write_recipe

SIGTERM = signal.SIGTERM


@contextmanager
def worker(folder: Path, *arguments: str, obedient: bool = True) -> Iterator[tuple[int, Callable[[], None], int]]:
    """Begin a fork that is watched, with a child; yield its number, what kills its driver, and the number of its child."""
    driver, told = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(driver[1])
        os.dup2(driver[0], lifeline.STDIN)
        lifeline.GRACE = 1
        signal.signal(SIGTERM, signal.SIG_DFL if obedient else signal.SIG_IGN)
        child = os.fork()
        if child:
            os.write(told[1], str(child).encode())
            lifeline.hold_on(folder, arguments)
        time.sleep(120)
        os._exit(0)
    os.close(driver[0])
    try:
        yield pid, lambda: os.close(driver[1]), int(os.read(told[0], 20))
    finally:
        os.killpg(pid, signal.SIGKILL) if Path(f"/proc/{pid}").exists() else None


def ended(pid: int) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    raise AssertionError("it goes on")


def test_a_run_is_terminated_when_its_driver_dies(tmp_path: Path) -> None:
    with worker(tmp_path, DRIVEN) as (pid, kill_driver, child):
        time.sleep(0.3)
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
        kill_driver()
        assert ended(pid) == -SIGTERM
        os.kill(child, signal.SIGKILL)
    assert not (tmp_path / "status.json").exists()  # so that it goes on


def test_a_run_that_ignores_termination_is_killed_with_its_children(tmp_path: Path) -> None:
    with worker(tmp_path, DRIVEN, obedient=False) as (pid, kill_driver, child):
        kill_driver()
        assert ended(pid) == -signal.SIGKILL
        deadline = time.monotonic() + 60
        while Path(f"/proc/{child}").exists() and Path(f"/proc/{child}/stat").read_text().split()[2] != "Z":
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize("driven", [(DRIVEN,), ()], ids=["driven", "alone"])
def test_a_deadline_is_enforced_without_the_driver(tmp_path: Path, driven: tuple[str, ...]) -> None:
    with worker(tmp_path, *driven, "--timeout=0.2") as (pid, _, child):
        assert ended(pid) == -SIGTERM
        os.kill(child, signal.SIGKILL)
    assert read_json(tmp_path / "status.json") == {"status": "failed", "kind": "timeout", "message": "took more than 0.2 s"}


DRIVERS = {
    "run": """
from pathlib import Path
from attnkit.worker.job import Job
Job(folder=Path("run"), directory=Path.cwd(), worker="waiting").carry_out()
""",
    "probe or inspection": """
from attnkit.worker.job import ask
ask("waiting", {})
""",
    "reproduce": """
from attnkit.ablation import planning
from attnkit.cli import ablate
from attnkit.worker.answers import Inspection
planning.inspect = lambda recipe, compositions, **_: [Inspection(recipe={"model": c, "data": {"name": "d"}}) for c in compositions]
ablate.RUN = "waiting"
ablate.ablate(["reproduce", "s.yaml", "baseline:0"])
""",
}
WAITING = """
import os, sys, time
from pathlib import Path
from attnkit.worker.lifeline import hold_on
hold_on(Path(sys.argv[1]), sys.argv[2:])
Path("pid.part").write_text(str(os.getpid())); os.replace("pid.part", "pid")
time.sleep(120)
"""


@pytest.mark.parametrize("job", DRIVERS)
def test_a_killed_driver_takes_its_worker_with_it(job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "waiting.py").write_text(WAITING)
    write_recipe(tmp_path)
    (tmp_path / "s.yaml").write_text(yaml.safe_dump(STUDY))
    paths = [str(tmp_path), str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(tmp_path)}
    driver = subprocess.Popen([sys.executable, "-c", DRIVERS[job]], env=environment)
    deadline = time.monotonic() + 240  # only a worker that never starts takes that long
    while not Path("pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    pid = Path("pid").read_text()
    assert Path("/proc", pid).exists()
    driver.kill()
    driver.wait()
    while Path("/proc", pid).exists() and Path("/proc", pid, "stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline + 60
        time.sleep(0.02)
    if job == "run":
        assert "the process that started this one has died" in (tmp_path / "run/stderr.txt").read_text()
