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

OWNER = ".owner"  # folder of claims inside the claimed folder
HEARTBEAT = 10.0  # seconds between heartbeats

LEASE = 120.0
"""Seconds without a heartbeat until an owner on another machine counts as dead; NFS may cache timestamps for up to 60 s."""

RELEASED = 0.0  # modification time of a released claim; setting it needs no disk space


@dataclass(frozen=True, kw_only=True)
class Owner:
    """The process that holds a folder."""

    pid: int = 0  # process id; 0 if the claim is not written yet
    host: str = ""  # host name of its machine
    machine: str = ""  # boot id and PID namespace, or an empty string if unknown
    started: str = ""  # start time in the system's units, since process ids are reused
    since: float = 0.0  # time of the claim, in seconds since 1970

    def __str__(self) -> str:
        if not self.pid:
            return "a process that is just starting"
        host = "" if self.is_here() else f" on {self.host}"
        return f"process {self.pid}{host}, since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"

    def is_here(self) -> bool:
        """Return whether this process can check if the owner is alive."""
        return bool(self.machine) and self.machine == machine()


class OwnedError(ConfigurationError):
    """A folder belongs to another live process."""

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
        with suppress(FileNotFoundError):  # a newer claim replaced it
            owner, heartbeat = _read(folder / OWNER / str(number))
            return owner if heartbeat != RELEASED and (_is_alive(owner) if owner.is_here() else _age(folder, heartbeat) < LEASE) else None
    return None


def is_abandoned(folder: Path) -> bool:
    """Return whether a folder's last owner released it or died; False if it never had one. Changes nothing."""
    return _newest(folder) is not None and owner_of(folder) is None


@contextmanager
def owned(folder: Path, *, say: Callable[[str], None] | None = None) -> Iterator[None]:
    """Hold an existing folder until the end of the `with` block; raise an `OwnedError` if another process holds it.

    With `say`, wait for an owner on another machine until its next heartbeat, or until it counts as dead (at most `LEASE` seconds), after
    calling `say` with a message. This process exits at once if another machine took the folder over because this process was stopped for
    more than `LEASE` seconds.

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
        if os.getpid() == me:  # not in a forked child
            ended.set()
            renewing.join(HEARTBEAT)
            with suppress(OSError):  # the folder was removed
                os.utime(claim, (RELEASED, RELEASED))


def disown(folder: Path) -> None:
    """Remove the claims on a folder before its owner deletes it."""
    for claim in list((folder / OWNER).glob("*")):
        claim.unlink(missing_ok=True)
    with suppress(OSError):
        (folder / OWNER).rmdir()


def machine() -> str:
    """Return an identifier of this machine, boot and container, or an empty string if there is none."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return ""


def _claim(folder: Path, say: Callable[[str], None] | None) -> Path:
    me = Owner(pid=os.getpid(), host=socket.gethostname(), machine=machine(), started=_start_time(os.getpid()), since=time.time())
    (folder / OWNER).mkdir(exist_ok=True)
    while True:
        number = _newest(folder)
        if (owner := owner_of(folder)) is not None and (say is None or owner.is_here() or not _is_silent(folder, owner, say)):
            raise OwnedError(folder, owner)
        mine = 0 if number is None else number + 1
        claim = folder / OWNER / str(mine)
        if not _try_create(claim, json.dumps(asdict(me))):
            continue  # another process created it first
        newest = _newest(folder)
        if newest != mine:  # another process took the folder meanwhile, and removed this number
            claim.unlink(missing_ok=True)
            continue
        for older in _numbers(folder):
            if older < mine:
                (folder / OWNER / str(older)).unlink(missing_ok=True)
        return claim


def _try_create(claim: Path, text: str) -> bool:
    """Create a claim with its content atomically; return False if another process created it first."""
    with tempfile.NamedTemporaryFile("w", dir=claim.parent) as draft:
        draft.write(text)
        draft.flush()
        os.fchmod(draft.fileno(), 0o644)  # other users may read the owner
        with suppress(OSError):  # it exists, or the file system has no hard links
            os.link(draft.name, claim)
        if os.fstat(draft.fileno()).st_nlink > 1:  # a file server may create the link but report an error
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


def _is_silent(folder: Path, owner: Owner, say: Callable[[str], None]) -> bool:
    """Wait for an owner on another machine; return False at its next heartbeat, or True after `LEASE` seconds without one."""
    number = _newest(folder)
    try:
        claim = folder / OWNER / str(number)
        _, first = _read(claim)
        remaining = LEASE - _age(folder, first)
        if remaining > 0:
            last_use = f"{folder} was last in use by {owner}, which cannot be checked from here"
            say(f"note: {last_use}; waiting up to {remaining:.0f} s for its next heartbeat")
        deadline = time.monotonic() + remaining
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
                _exit(f"{claim.parents[1]} was taken over by {owner}, because this process sent no heartbeat for {LEASE:.0f} s")
                return
            os.utime(claim)


def _exit(message: str) -> None:
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
    """Return a claim's owner and last heartbeat, by the file server's clock."""
    with claim.open() as file:  # opening bypasses the NFS attribute cache
        text, heartbeat = file.read(), os.fstat(file.fileno()).st_mtime
    try:
        return Owner(**json.loads(text)), heartbeat
    except (ValueError, TypeError):  # still being written, or its process died while writing
        return Owner(), heartbeat


def _age(folder: Path, heartbeat: float) -> float:
    """Return the seconds since `heartbeat`, by the file server's clock."""
    try:
        with tempfile.NamedTemporaryFile(dir=folder / OWNER) as probe:
            return os.fstat(probe.fileno()).st_mtime - heartbeat
    except OSError:  # no permission to write here
        return time.time() - heartbeat


def _is_alive(owner: Owner) -> bool:
    """Return whether an owner on this machine is alive, not a zombie, and not another process with a reused id."""
    return process_exists(owner.pid) and _start_time(owner.pid) in (owner.started, "")


def process_exists(pid: int) -> bool:
    """Return whether a process of this machine has this id."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process
    return True


def _start_time(pid: int) -> str:
    """Return a local process's start time, `dead` for a zombie, or an empty string if unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()  # the process name in parentheses may contain anything
    except FileNotFoundError:
        return ""
    except OSError:  # ProcessLookupError: the process ended during the read
        return "dead"
    return "dead" if fields[0] in "ZX" else fields[19]
