"""Starts processes in milliseconds, as forks of a server that has imported torch, Lightning and attnkit. No torch."""

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO

from attnkit.files import code_version

SERVER = "attnkit.worker.server"
LOST = -signal.SIGKILL  # exit status of a fork whose server was killed, so that its real status is unknown


TRIES = 3  # maximum number of servers to start if the code is edited while each of them imports it

OF_ONE_JOB = ("CUDA_VISIBLE_DEVICES", "PL_GLOBAL_SEED", "PL_SEED_WORKERS", "PYTEST_CURRENT_TEST")
"""Environment variables that differ between jobs and are not read at import. Lightning sets the two `PL_` ones when it seeds."""


class Fork:
    """A process forked by a server, with the part of the interface of `subprocess.Popen` that jobs use.

    Its process ID is also that of its session and process group. If `report` closes without an exit status, the server has died.
    """

    def __init__(self, pid: int, report: socket.socket, stdin: IO[bytes]) -> None:
        self.pid, self.stdin = pid, stdin
        self._report = report
        self._code: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or None while the process is running."""
        if self._code is None and select.select([self._report], [], [], 0)[0]:
            with suppress(OSError):
                self._code = int(self._report.recv(20) or LOST)
            self._report.close()
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process to end and return its exit status; raise `subprocess.TimeoutExpired` after `timeout` seconds."""
        if self._code is None:
            select.select([self._report], [], [], timeout)
        if (code := self.poll()) is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        return code


class Server:
    """Starts a fork server when first needed, and a new one if it has died or is out of date.

    It is out of date if a fresh interpreter would now start differently: in another environment or with other attnkit code.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._start: object = None  # the `_start` of the current server
        self._forks = True

    def start(
        self, words: Sequence[str], *, directory: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> Fork | None:
        """Run the Python module `words[0]` with the other words as arguments, in a fork; return None if that is impossible."""
        request = json.dumps({"words": [*words], "directory": str(directory), "environment": dict(environment)}).encode()
        for _ in range(2):
            with self._lock:
                control = self._running(directory, environment)
                if control is None:
                    return None
                found = _fork(control, request, out, err)
                if found is not None:
                    return found
                self._close()  # the server has died
        return None

    def _running(self, directory: Path, environment: Mapping[str, str]) -> socket.socket | None:
        for _ in range(TRIES):
            start = _start(directory, environment)
            if start != self._start:
                self._close()
            if self._control is None and self._forks:
                self._open(start, directory, environment)
            if self._control is None or _start(directory, environment) == start:
                return self._control
        self._close()  # the code was edited each time a server imported it, so the imported version is unknown
        return None

    def _open(self, start: object, directory: Path, environment: Mapping[str, str]) -> None:
        self._start = start
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, "-m", SERVER]
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=dict(environment), cwd=directory, start_new_session=True
            )
        answer = ours.recv(100)
        self._forks = bool(answer) and bool(json.loads(answer)["forks"])
        self._control = ours
        if not self._forks:
            self._close()

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
            threading.Thread(target=self._process.wait, daemon=True).start()  # the server waits for its forks

    def close(self) -> None:
        """End the server; its forks keep running."""
        with self._lock:
            self._close()


def _start(directory: Path, environment: Mapping[str, str]) -> object:
    """Return everything that the start of a process depends on; a server started with a different value cannot fork it."""
    relative = not all(map(os.path.isabs, environment.get("PYTHONPATH", os.sep).split(os.pathsep)))
    return code_version(), directory if relative else None, {k: v for k, v in environment.items() if k not in OF_ONE_JOB}


@cache
def shared() -> Server | None:
    """Return this process's server, which ends with it; None if the system does not support one."""
    if not can_fork():
        return None
    server = Server()
    atexit.register(server.close)
    return server


def can_fork() -> bool:
    """Return whether this system meets the needs of a server: safe forks and file descriptors for processes."""
    return sys.platform == "linux" and hasattr(os, "pidfd_open")


def _fork(control: socket.socket, request: bytes, out: IO[bytes], err: IO[bytes]) -> Fork | None:
    """Request a fork from the server and return it; None if the server has died."""
    read, write = os.pipe()
    report, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            socket.send_fds(control, [request], [read, out.fileno(), err.fileno(), theirs.fileno()])
        pid = int(report.recv(20) or 0)
    except OSError:
        pid = 0
    finally:
        os.close(read)
    if not pid:
        os.close(write)
        report.close()
        return None
    return Fork(pid, report, os.fdopen(write, "wb"))
