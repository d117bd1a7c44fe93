"""One owner per folder: a claim names a process, which renews it for as long as it lives. Works on network file systems.

    FOLDER/.owner/7    the owner of the folder; the file's modification time is the owner's last heartbeat

A claim is a numbered file, created exclusively. Taking over from a dead process means creating the next number, so if several processes try
at once, exactly one succeeds. The highest number counts and is never removed, so a slow process cannot revive a lower one. No file is
locked: `flock` is unreliable on network file systems, and does not say who holds the lock.

On the same machine, a process that no longer exists is dead, and a stopped one is alive. Whether a process on another machine is alive is
judged by its last heartbeat. Both times come from the file server, so clocks need not agree.
"""

import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from attnkit.registry import ConfigurationError

OWNER = ".owner"  # name of the folder of claims, within the claimed folder
HEARTBEAT = 10.0  # seconds between heartbeats

LEASE = 120.0
"""Seconds without a heartbeat after which an owner on another machine counts as dead; NFS may cache a timestamp for up to 60 s."""

RELEASED = 0.0  # modification time of a released claim; setting it needs no disk space


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that holds a folder."""

    pid: int = 0  # process id, or 0 if it is unknown because the claim is not written yet
    host: str = ""  # host name of its machine
    machine: str = ""  # identifies the machine: the boot id of the system and the PID namespace, or an empty string if they are unknown
    started: str = ""  # start time of the process in the system's units, because process ids are reused
    since: float = 0.0  # when it claimed the folder, in seconds since 1970

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is just starting"
        host = "" if self.is_here() else f" on {self.host}"
        return f"process {self.pid}{host}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"

    def is_here(self) -> bool:
        """Return whether this process can check that the owner is alive."""
        return bool(self.machine) and self.machine == machine()


class OwnedError(ConfigurationError):
    """A folder belongs to another process, which is alive."""

    def __init__(self, folder: Path, owner: Owner) -> None:
        stop = (
            f"stop it with `kill {owner.pid}` (it saves its state first)"
            if owner.is_here()
            else f"stop it on {owner.host or 'its machine'}"
        )
        super().__init__(f"{folder} is in use by {owner}. Wait until it ends, or {stop}, and try again")
        self.owner = owner


def owner_of(folder: Path) -> Owner | None:
    """Return the live process that holds a folder, or None. Changes nothing and does not wait."""
    while (number := _newest(folder)) is not None:
        with suppress(FileNotFoundError):  # a newer one has replaced it
            owner, heartbeat = _read(folder / OWNER / str(number))
            return owner if heartbeat != RELEASED and (_is_alive(owner) if owner.is_here() else _age(folder, heartbeat) < LEASE) else None
    return None


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder was held by a process that has released it or died; False if none has held it yet. Changes nothing."""
    return _newest(folder) is not None and owner_of(folder) is None


@contextmanager
def owned(folder: Path, *, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a folder, which must exist, until the end of the `with` block; an `OwnedError` if a process holds it already.

    With `say`, wait for an owner on another machine until its next heartbeat, or until it counts as dead (at most `LEASE` seconds); it is
    called with a message before waiting. This process ends at once if it was stopped for more than `LEASE` seconds, and a process on
    another machine has taken the folder over, because it assumed it was dead.

    Example:
        >>> with tempfile.TemporaryDirectory() as name, owned(Path(name)):
        ...     owner_of(Path(name)).pid == os.getpid()
        True
    """
    claim, me, ended = _claim(folder, say), os.getpid(), threading.Event()
    renewing = threading.Thread(target=_renew, args=(claim, ended), daemon=True, name="attnkit-owner")
    renewing.start()
    try:
        yield
    finally:
        if os.getpid() == me:  # not in a fork of it
            ended.set()
            renewing.join(HEARTBEAT)
            with suppress(OSError):  # the folder was removed
                os.utime(claim, (RELEASED, RELEASED))


def disown(folder: Path) -> None:
    """Remove the claims on a folder that its owner is about to delete."""
    for claim in list((folder / OWNER).glob("*")):
        claim.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / OWNER).rmdir()


def machine() -> str:
    """Return an identifier of this machine, boot and container, or an empty string if the system has none."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _claim(folder: Path, say: Callable[[str], None] | None) -> Path:
    me = Owner(pid=os.getpid(), host=socket.gethostname(), machine=machine(), started=_started(os.getpid()), since=time.time())
    (folder / OWNER).mkdir(exist_ok=True)
    while True:
        number = _newest(folder)
        if (owner := owner_of(folder)) is not None and (say is None or owner.is_here() or not _falls_silent(folder, owner, say)):
            raise OwnedError(folder, owner)
        mine = 0 if number is None else number + 1
        claim = folder / OWNER / str(mine)
        if not _created(claim, json.dumps(asdict(me))):
            continue  # another process was faster
        newest = _newest(folder)
        if newest != mine:  # another process took the folder in between, and removed this number
            claim.unlink(missing_ok=True)
            continue
        for older in _numbers(folder):
            if older < mine:
                (folder / OWNER / str(older)).unlink(missing_ok=True)
        return claim


def _created(claim: Path, text: str) -> bool:
    """Create a claim together with its content, and return whether this process was the one to create it."""
    with tempfile.NamedTemporaryFile("w", dir=claim.parent) as draft:
        draft.write(text)
        draft.flush()
        os.fchmod(draft.fileno(), 0o644)  # so that other users can see the owner
        with suppress(OSError):  # it exists, or this file system has no hard links
            os.link(draft.name, claim)
        if os.fstat(draft.fileno()).st_nlink > 1:  # a file server may report an error although it created the link
            return True
    try:
        with claim.open("x") as file:
            file.write(text)
    except FileExistsError:
        return False
    except BaseException:
        claim.unlink(missing_ok=True)
        raise
    return True


def _falls_silent(folder: Path, owner: Owner, say: Callable[[str], None]) -> bool:
    """Watch an owner on another machine; return False at its next heartbeat, or True after `LEASE` seconds without one."""
    number = _newest(folder)
    try:
        claim = folder / OWNER / str(number)
        _, first = _read(claim)
        left = LEASE - _age(folder, first)
        if left > 0:
            last_use = f"{folder} was last in use by {owner}, which cannot be checked from here"
            say(f"note: {last_use}; waiting up to {left:.0f} s for its next heartbeat")
        deadline = time.monotonic() + left
        while time.monotonic() < deadline:
            time.sleep(min(1.0, max(0.0, deadline - time.monotonic())))
            _, heartbeat = _read(claim)
            if heartbeat != first:
                return heartbeat == RELEASED
    except FileNotFoundError:
        return False
    return True


def _renew(claim: Path, ended: threading.Event) -> None:
    while not ended.wait(HEARTBEAT):
        with suppress(OSError):  # the next renewal may succeed
            newest = _newest(claim.parents[1])
            if newest is not None and newest > int(claim.name):
                owner, _ = _read(claim.with_name(str(newest)))
                _end(f"{claim.parents[1]} was taken over by {owner}, because this process sent no heartbeat for {LEASE:.0f} s")
                return
            os.utime(claim)


def _end(message: str) -> None:
    print(f"attnkit: error: {message}; exiting without saving", file=sys.stderr, flush=True)
    os._exit(1)


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder / OWNER) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _newest(folder: Path) -> int | None:
    return max(_numbers(folder), default=None)


def _read(claim: Path) -> tuple[Owner, float]:
    """Return the owner in a claim, and the owner's last heartbeat by the file server's clock."""
    with claim.open() as file:  # opening asks the file server rather than a cache
        text, heartbeat = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        return Owner(**json.loads(text)), heartbeat
    except (ValueError, TypeError):  # it is still being written, or its process died while writing
        return Owner(), heartbeat


def _age(folder: Path, heartbeat: float) -> float:
    """Return the seconds since `heartbeat`, by the file server's clock."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder / OWNER) as probe:
            return os.fstat(probe.fileno()).st_mtime - heartbeat
    except OSError:  # this process may not write here
        return time.time() - heartbeat


def _is_alive(owner: Owner) -> bool:
    """Return whether a process on this machine is alive; zombies and other processes with the same id do not count."""
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it belongs to another user
    return _started(owner.pid) in (owner.started, "")


def _started(pid: int) -> str:
    """Return the start time of a process on this machine, `dead` for a zombie, or an empty string if it is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name in parentheses may contain anything
    except FileNotFoundError:
        return ""
    except OSError:  # ProcessLookupError: it ended during the read
        return "dead"
    return "dead" if fields[0] in "ZX" else fields[19]
