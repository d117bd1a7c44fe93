"""One owner per folder, whichever process dies, stops or is slow."""

import json
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from attnkit import ownership
from attnkit.ownership import LEASE, OWNER, OwnedError, disown, owned, owner_of

fork: Any = multiprocessing.get_context("fork")
ELSEWHERE = {"pid": 4711, "host": "node7", "machine": "another boot", "started": "1", "since": 1.0}


@contextmanager
def forked(work: Callable[[], None]) -> Iterator[int]:
    """Run a function in another process, which is killed and reaped at the end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def until(holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def is_held(folder: Path) -> bool:
    """Return whether a process holds a folder and has removed its draft, which it would leave behind if it were killed."""
    return owner_of(folder) is not None and all(path.name.isdecimal() for path in (folder / OWNER).iterdir())


def hold(folder: Path) -> Callable[[], None]:
    def work() -> None:
        with owned(folder):
            time.sleep(600)

    return work


def claim(folder: Path, *, number: int = 0, content: dict[str, Any] | str = "", silent: float = 0.0) -> Path:
    """Write the claim of another process, whose last heartbeat was `silent` seconds ago."""
    path = folder / OWNER / str(number)
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    os.utime(path, (time.time() - silent,) * 2)
    return path


def test_a_second_process_is_rejected_with_the_name_of_the_owner(tmp_path: Path) -> None:
    assert owner_of(tmp_path) is None
    with forked(hold(tmp_path)) as pid:
        until(lambda: is_held(tmp_path))
        with pytest.raises(
            OwnedError, match=rf"is in use by process {pid}, since \d{{4}}-.* Wait until it ends, or stop it with `kill {pid}`"
        ):
            owned(tmp_path).__enter__()
    with owned(tmp_path):  # it was killed
        owner = owner_of(tmp_path)
        assert owner is not None
        assert owner.pid == os.getpid()
        with pytest.raises(OwnedError):
            owned(tmp_path).__enter__()
    assert owner_of(tmp_path) is None
    assert len(list((tmp_path / OWNER).iterdir())) == 1


def race(folder: Path, start: Any, won: Any, leave: Any) -> None:
    start.wait()
    try:
        with owned(folder):
            with won.get_lock():
                won.value += 1
            leave.wait()
    except OwnedError:
        pass


@pytest.mark.parametrize("state", ["free", "stale", "released"])
def test_only_one_of_twenty_simultaneous_claims_succeeds(tmp_path: Path, state: str) -> None:
    if state == "stale":
        with forked(hold(tmp_path)):
            until(lambda: is_held(tmp_path))
    elif state == "released":
        with owned(tmp_path):
            pass
    start, won, leave = fork.Event(), fork.Value("i", 0), fork.Event()
    workers = [fork.Process(target=race, args=(tmp_path, start, won, leave), daemon=True) for _ in range(20)]
    for worker in workers:
        worker.start()
    start.set()
    until(lambda: sum(worker.is_alive() for worker in workers) <= 1)
    leave.set()
    for worker in workers:
        worker.join(60)
    assert won.value == 1
    assert owner_of(tmp_path) is None


def test_a_reused_process_id_is_not_the_owner(tmp_path: Path) -> None:
    with forked(hold(tmp_path)) as pid:
        until(lambda: is_held(tmp_path))
        path = tmp_path / OWNER / "0"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"started": "1"}))
        assert owner_of(tmp_path) is None
        assert ownership._start_time(pid) != "1"


def test_a_stopped_owner_counts_as_alive_and_a_zombie_as_dead(tmp_path: Path) -> None:
    with forked(hold(tmp_path)) as pid:
        until(lambda: owner_of(tmp_path))
        os.kill(pid, signal.SIGSTOP)
        os.utime(tmp_path / OWNER / "0", (time.time() - 10 * LEASE,) * 2)
        assert owner_of(tmp_path) is not None  # on the same machine, the process counts and not its lease
        os.kill(pid, signal.SIGKILL)
        until(lambda: owner_of(tmp_path) is None)  # a zombie: its parent has not waited for it


@pytest.mark.parametrize("content", [ELSEWHERE, "", '{"pid": 47', '{"new_field": 1}'], ids=["elsewhere", "empty", "cut", "unknown"])
def test_an_owner_that_cannot_be_checked_is_judged_by_its_last_heartbeat(tmp_path: Path, content: Any) -> None:
    path = claim(tmp_path, content=content, silent=LEASE / 2)
    with pytest.raises(OwnedError, match="stop it on node7" if content == ELSEWHERE else "a process that is just starting"):
        owned(tmp_path).__enter__()
    os.utime(path, (time.time() - LEASE - 5,) * 2)
    with owned(tmp_path):
        assert [p.name for p in (tmp_path / OWNER).iterdir()] == ["1"]


def test_clock_skew_is_tolerated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    claim(tmp_path, content=ELSEWHERE)
    now = time.time()
    monkeypatch.setattr(ownership.time, "time", lambda: now + 10 * LEASE)
    assert owner_of(tmp_path) is not None


def test_an_owner_on_another_machine_is_watched_until_its_next_heartbeat(tmp_path: Path) -> None:
    path, said = claim(tmp_path, content=ELSEWHERE, silent=LEASE / 2), list[str]()

    def say(line: str) -> None:
        said.append(line)
        threading.Timer(0.1, os.utime, (path,)).start()

    with pytest.raises(OwnedError):
        owned(tmp_path, say=say).__enter__()
    assert "was last in use by process 4711 on node7" in said[0]
    assert "cannot be checked from here; waiting up to" in said[0]


def test_an_owner_on_another_machine_without_heartbeats_counts_as_dead(tmp_path: Path) -> None:
    claim(tmp_path, content=ELSEWHERE, silent=LEASE - 1.5)
    with owned(tmp_path, say=lambda line: None):
        found = owner_of(tmp_path)
        assert found is not None
        assert found.pid == os.getpid()


def test_an_owner_sends_heartbeats_and_detects_losing_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "HEARTBEAT", 0.02)
    lost: list[str] = []
    monkeypatch.setattr(ownership, "_exit", lost.append)
    with owned(tmp_path):
        path = tmp_path / OWNER / "0"
        os.utime(path, (1e9, 1e9))
        until(lambda: path.stat().st_mtime > 1e9)
        claim(tmp_path, number=1, content=ELSEWHERE)
        until(lambda: lost)
    assert "was taken over by process 4711 on node7" in lost[0]


def test_a_slow_process_cannot_revive_an_old_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sees a dead owner, and claims the next number after two others have come and gone and a third holds the folder."""
    with forked(hold(tmp_path)):
        until(lambda: is_held(tmp_path))
    others = ExitStack()
    look = ownership.owner_of

    def slow(folder: Path) -> Any:
        found = look(folder)
        monkeypatch.setattr(ownership, "owner_of", look)
        for _ in range(2):
            with owned(folder):
                pass
        others.enter_context(owned(folder))
        return found

    monkeypatch.setattr(ownership, "owner_of", slow)
    with others, pytest.raises(OwnedError):
        owned(tmp_path).__enter__()
    assert [path.name for path in (tmp_path / OWNER).iterdir()] == ["3"]


def test_a_fork_of_the_owner_does_not_release_the_folder(tmp_path: Path) -> None:
    with owned(tmp_path):
        holding = ExitStack()

        (tmp_path / "other").mkdir()
        context = owned(tmp_path / "other")
        holding.enter_context(context)
        with forked(holding.close) as pid:
            os.waitpid(pid, os.WNOHANG)
            until(lambda: ownership._start_time(pid) == "dead")
        assert owner_of(tmp_path / "other") is not None
        holding.close()
        assert owner_of(tmp_path / "other") is None


def test_a_claim_is_never_partly_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    link = os.link

    def look(draft: str, claim: Path) -> None:
        seen.extend(path.name for path in claim.parent.iterdir() if path.name.isdecimal())
        link(draft, claim)
        seen.append(claim.read_text())

    monkeypatch.setattr(os, "link", look)
    with owned(tmp_path):
        [text] = seen
        assert json.loads(text)["pid"] == os.getpid()
        assert [path.name for path in (tmp_path / OWNER).iterdir()] == ["0"]


def test_a_folder_can_be_claimed_without_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    with owned(tmp_path), pytest.raises(OwnedError):
        owned(tmp_path).__enter__()


def test_a_full_disk_leaves_no_claim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ownership.tempfile, "NamedTemporaryFile", full)
        with pytest.raises(OSError, match="No space left"):
            owned(tmp_path).__enter__()
    with owned(tmp_path):
        disown(tmp_path)
    assert list(tmp_path.iterdir()) == []
