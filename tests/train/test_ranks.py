"""The processes of one run: one that dies is named once, and none outlives the first."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
from lightning.pytorch.strategies.launchers import subprocess_script

from attnkit.registry import ConfigurationError
from attnkit.train import ranks
from attnkit.train.ranks import LAUNCHER, LOST, together
from attnkit.train.runs import new_run
from attnkit.train.supervision import supervised
from tests.commands import started
from tests.train.test_resume import write_recipe

BROKEN = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711"
launching: Any = subprocess_script


def sleepers(count: int) -> list[subprocess.Popen[bytes]]:
    return [subprocess.Popen(["sleep", "600"]) for _ in range(count)]


def forked(work: Callable[[], None], errors: Path) -> int:
    """Run a function in another process, whose stderr is a file; return its number."""
    pid = os.fork()
    if pid == 0:
        try:
            sys.stderr = errors.open("a", buffering=1)
            work()
        except SystemExit as end:
            os._exit(int(end.code or 0))
        finally:
            os._exit(99)
    return pid


def test_a_dead_rank_is_named_and_the_others_are_ended(capsys: pytest.CaptureFixture[str]) -> None:
    others = sleepers(2)
    before = launching._launch_process_observer

    def lose_one() -> None:
        launching._launch_process_observer(others)
        others[1].kill()
        raise RuntimeError(BROKEN)

    with pytest.raises(SystemExit) as end, together(advice="Do this"):
        lose_one()
    assert end.value.code == 1
    assert capsys.readouterr().err == (
        f"attnkit: error: rank 2 of 3 (process {others[1].pid}) was killed by SIGKILL, often because memory ran out. The other processes "
        "cannot continue without it.\nDo this\n"
    )
    assert [process.poll() for process in others] == [-signal.SIGKILL, -signal.SIGKILL]
    assert launching._launch_process_observer is before
    assert LAUNCHER not in os.environ


def test_a_rank_that_hangs_after_another_died_is_ended(tmp_path: Path) -> None:
    def work() -> None:
        ranks.NOTICED = 0.2
        with ExitStack() as claims, together(claims):
            claims.enter_context(new_run(tmp_path / "runs"))
            others = sleepers(1)
            launching._launch_process_observer(others)
            others[0].terminate()
            time.sleep(120)

    _, status = os.waitpid(forked(work, tmp_path / "errors"), 0)
    assert os.waitstatus_to_exitcode(status) == 1
    assert (tmp_path / "errors").read_text().count("was killed by SIGTERM. The other processes cannot continue") == 1
    assert not list((tmp_path / "runs").iterdir())  # no step was completed


@pytest.mark.parametrize("command", ["fit", "test"])
def test_only_a_fit_can_be_resumed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    def lose_one() -> None:
        launching._launch_process_observer(others := sleepers(1))
        others[0].kill()
        raise RuntimeError(BROKEN)

    with ExitStack() as claims, pytest.raises(SystemExit):
        supervised(command, lose_one, claims)
    assert ("--resume" in capsys.readouterr().err) == (command == "fit")


def test_a_rank_that_ends_long_after_its_connection_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(ranks, "NOTICED", 0.05)

    def lose_one() -> None:
        launching._launch_process_observer([subprocess.Popen(["sh", "-c", "sleep 0.3; exit 143"])])
        raise RuntimeError(BROKEN)

    with pytest.raises(SystemExit), together():
        lose_one()
    assert " was stopped by SIGTERM. The other processes cannot continue without it.\n" in capsys.readouterr().err


def test_an_error_of_one_rank_is_reported_as_usual_and_ends_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    others = sleepers(1)

    def fail() -> None:
        launching._launch_process_observer(others)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), together():
        fail()
    assert others[0].poll() == -signal.SIGKILL
    assert capsys.readouterr().err == ""


def test_a_rank_of_another_launcher_reports_a_lost_connection(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("RANK", "3")
    with pytest.raises(SystemExit), together():
        raise RuntimeError(BROKEN)
    assert capsys.readouterr().err.startswith("attnkit: error: rank 3 lost the connection to another process, which has died")


@pytest.mark.parametrize("rank", ["1", "2"])
def test_the_death_of_rank_0_is_reported_by_one_other_rank(tmp_path: Path, rank: str) -> None:
    def first() -> None:
        os.environ[LAUNCHER] = str(os.getpid())
        forked(second, tmp_path / "errors")
        time.sleep(120)

    def second() -> None:
        os.environ["LOCAL_RANK"] = rank
        with together():
            (tmp_path / "part").write_text(str(os.getpid()))
            (tmp_path / "part").rename(tmp_path / "pid")
            time.sleep(120)

    pid = forked(first, tmp_path / "errors")
    deadline = time.monotonic() + 60
    while not (tmp_path / "pid").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    other = Path("/proc", (tmp_path / "pid").read_text())
    while other.exists() and (other / "stat").read_text().split()[2] != "Z":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    said = (tmp_path / "errors").read_text()
    assert (
        said.startswith(f"attnkit: error: rank 0 (process {pid}), which started the other processes, has died.")
        if rank == "1"
        else not said
    )


def test_a_rank_whose_launcher_died_before_it_was_watched_ends(tmp_path: Path) -> None:
    launcher = subprocess.Popen(["true"])
    launcher.wait()

    def late() -> None:
        os.environ.update({LAUNCHER: str(launcher.pid), "LOCAL_RANK": "1"})
        with together():
            time.sleep(5)

    _, status = os.waitpid(forked(late, tmp_path / "errors"), 0)
    assert os.waitstatus_to_exitcode(status) == LOST
    assert (tmp_path / "errors").read_text().startswith(f"attnkit: error: rank 0 (process {launcher.pid}), which started the other")


@pytest.mark.parametrize(("error", "code"), [(RuntimeError(BROKEN), LOST), (ConfigurationError("wrong"), None)])
def test_other_ranks_leave_reporting_to_the_first(error: Exception, code: int | None, capsys: Any, monkeypatch: Any) -> None:
    waits: list[float] = []
    monkeypatch.setenv(LAUNCHER, str(os.getppid()))
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setattr(ranks.time, "sleep", waits.append)
    with pytest.raises(SystemExit if code else ConfigurationError) as end, together():
        raise error
    assert waits == [ranks.NOTICED]
    assert getattr(end.value, "code", None) == code
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_a_surviving_rank_names_the_killed_one(tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    fit = ("attnkit", "fit", "--config", "tiny.yaml", "--trainer.max_epochs", "9999", "--trainer.devices", "2", "--trainer.strategy", "ddp")
    with started(*fit, cwd=tmp_path, err=tmp_path / "errors") as first:
        deadline = time.monotonic() + 400
        while not list(tmp_path.glob("runs/tiny/*/metrics.csv")) and first.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        children = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
        [second] = [pid for pid in children if b"tiny.yaml" in Path("/proc", pid, "cmdline").read_bytes()]
        os.kill(int(second), signal.SIGKILL)
        assert first.wait(120) == 1
    said = (tmp_path / "errors").read_text()
    assert said.count(f"attnkit: error: rank 1 of 2 (process {second}) was killed by SIGKILL") == said.count("error") == 1
    assert "Traceback" not in said
    assert "gloo" not in said.replace("distributed_backend=gloo", "")
