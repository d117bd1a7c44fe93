"""One owner for a folder: a claim that names a process, and is renewed while that process lives. Works on network file systems.

    FOLDER/.owner/7    who holds the folder; the file's time is the owner's last sign of life

A claim is a file with a number, created exclusively. To take over what a dead process left is to create the next number, so of several
processes that try it at once, one succeeds. The greatest number counts, and is never removed: a process that was slow cannot bring back
a smaller one. No file is locked: `flock` is not reliable on network file systems, and does not say who holds it.

On the same machine, a process that is gone is known to be dead, and one that is stopped is known to live. Whether a process on another
machine lives is judged by its last sign of life. Both times are the file server's, so it does not matter whether the clocks agree.
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

OWNER = ".owner"
"""The folder of claims, in the folder that is claimed."""

RENEWED = 10.0
"""Seconds between two signs of life."""

LEASE = 120.0
"""Seconds without one after which an owner on another machine counts as dead; above the 60 s for which NFS may keep a file's time."""

RELEASED = 0.0
"""The time of a claim that was given back. To set it needs no room on the disk."""


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that holds a folder.

    Attributes:
        pid: Its number; 0: not known, because it has not written its claim yet.
        host: The name of its machine.
        machine: What tells machines apart: this boot of the system and the namespace of its process numbers; empty where that is not known.
        started: When the process began, as the system counts it: numbers of processes are used again.
        since: When it claimed the folder, in seconds since 1970.
    """

    pid: int = 0
    host: str = ""
    machine: str = ""
    started: str = ""
    since: float = 0.0

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is just beginning"
        here = "" if self.is_here() else f" on {self.host}"
        return f"process {self.pid}{here}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"

    def is_here(self) -> bool:
        """Return whether this process can see whether the owner lives."""
        return bool(self.machine) and self.machine == machine()


class OwnedError(ConfigurationError):
    """A folder belongs to another process that lives.

    Args:
        folder: The folder.
        owner: The process.
    """

    def __init__(self, folder: Path, owner: Owner) -> None:
        stop = (
            f"stop it with `kill {owner.pid}` (it saves its state first)"
            if owner.is_here()
            else f"stop it on {owner.host or 'its machine'}"
        )
        super().__init__(f"{folder} is in use by {owner}. Wait until it ends, or {stop}, and try again")
        self.owner = owner


def owner_of(folder: Path) -> Owner | None:
    """Return the living process that holds a folder, if there is one. Changes nothing and does not wait."""
    while (number := _newest(folder)) is not None:
        with suppress(FileNotFoundError):  # there is a newer one
            owner, seen = _read(folder / OWNER / str(number))
            return owner if seen != RELEASED and (_lives(owner) if owner.is_here() else _age(folder, seen) < LEASE) else None
    return None


@contextmanager
def owned(folder: Path, *, say: Callable[[str], None] | None = None, lost: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold a folder, which must exist, until the end of the `with` block.

    Args:
        folder: The folder.
        say: Wait for an owner on another machine: until it shows that it lives, or must be dead (at most `LEASE` seconds). Is told so.
        lost: Is told, from another thread, that the folder was taken over, which happens if this process was stopped for longer than
            `LEASE` seconds and another machine took it for dead (default: end this process at once, since the folder is not its own).

    Raises:
        OwnedError: It belongs to another process, or to this one.

    Example:
        >>> with tempfile.TemporaryDirectory() as name, owned(Path(name)):
        ...     owner_of(Path(name)).pid == os.getpid()
        True
    """
    claim, me, ended = _claim(folder, say), os.getpid(), threading.Event()
    renewing = threading.Thread(target=_renew, args=(claim, ended, lost or _end), daemon=True, name="attnkit-owner")
    renewing.start()
    try:
        yield
    finally:
        if os.getpid() == me:  # and not a fork of it
            ended.set()
            renewing.join(RENEWED)
            with suppress(OSError):  # the folder was removed
                os.utime(claim, (RELEASED, RELEASED))


def disown(folder: Path) -> None:
    """Remove the claims on a folder that its owner is about to remove."""
    for claim in list((folder / OWNER).glob("*")):
        claim.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / OWNER).rmdir()


def machine() -> str:
    """Return what tells machines, boots and containers apart; empty if this system does not say."""
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
        if newest != mine:  # between the look and the claim another process took the folder, and removed this number
            claim.unlink(missing_ok=True)
            continue
        for older in _numbers(folder):
            if older < mine:
                (folder / OWNER / str(older)).unlink(missing_ok=True)
        return claim


def _created(claim: Path, text: str) -> bool:
    """Create a claim, whole from the start, and return whether it was this process that did."""
    with tempfile.NamedTemporaryFile("w", dir=claim.parent) as draft:
        draft.write(text)
        draft.flush()
        os.fchmod(draft.fileno(), 0o644)  # others may ask who it is
        with suppress(OSError):  # it exists, or this file system has no hard links
            os.link(draft.name, claim)
        if os.fstat(draft.fileno()).st_nlink > 1:  # a file server may report an error after it has made the link
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
    """Watch an owner on another machine; return False at its next sign of life, and True when there was none for `LEASE` seconds."""
    number = _newest(folder)
    try:
        claim = folder / OWNER / str(number)
        _, first = _read(claim)
        left = LEASE - _age(folder, first)
        if left > 0:
            unsure = f"{folder} was last in use by {owner}, which cannot be checked from here"
            say(f"note: {unsure}; waiting up to {left:.0f} s for its next sign of life")
        until = time.monotonic() + left
        while time.monotonic() < until:
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))
            _, seen = _read(claim)
            if seen != first:
                return seen == RELEASED
    except FileNotFoundError:
        return False
    return True


def _renew(claim: Path, ended: threading.Event, lost: Callable[[str], None]) -> None:
    while not ended.wait(RENEWED):
        with suppress(OSError):  # the next renewal may succeed
            newest = _newest(claim.parents[1])
            if newest is not None and newest > int(claim.name):
                owner, _ = _read(claim.with_name(str(newest)))
                lost(f"{claim.parents[1]} was taken over by {owner}, because this process gave no sign of life for {LEASE:.0f} s")
                return
            os.utime(claim)


def _end(message: str) -> None:
    print(f"attnkit: error: {message}; it ends without saving", file=sys.stderr, flush=True)
    os._exit(1)


def _numbers(folder: Path) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder / OWNER) if name.isdecimal()]
    except FileNotFoundError:
        return []


def _newest(folder: Path) -> int | None:
    return max(_numbers(folder), default=None)


def _read(claim: Path) -> tuple[Owner, float]:
    """Return who made a claim, and the owner's last sign of life by the file server's clock."""
    with claim.open() as file:  # opening asks a file server, not its cache
        text, seen = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        return Owner(**json.loads(text)), seen
    except (ValueError, TypeError):  # it is still being written, or its process died then
        return Owner(), seen


def _age(folder: Path, seen: float) -> float:
    """Return the seconds since a time of the file server."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder / OWNER) as probe:
            return os.fstat(probe.fileno()).st_mtime - seen
    except OSError:  # this process may not write here
        return time.time() - seen


def _lives(owner: Owner) -> bool:
    """Return whether a process of this machine lives: a zombie does not, nor does another process with its number."""
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is someone else's
    return _started(owner.pid) in (owner.started, "")


def _started(pid: int) -> str:
    """Return when a process of this machine began; `dead` of a zombie; empty if the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the name before it may hold anything
    except FileNotFoundError:
        return ""
    except OSError:  # ProcessLookupError: it ended while it was read
        return "dead"
    return "dead" if fields[0] in "ZX" else fields[19]
