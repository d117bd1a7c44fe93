"""Runs Python modules in their own processes without waiting for imports: forks of a process that has torch, Lightning and attnkit.

Each runs as under `python -m`, with its own folder, environment, session and output. Tests of start-up itself use `subprocess`.
"""

import atexit
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path

from attnkit.worker.warm import Fork, Server, can_fork, shared

Process = Fork | subprocess.Popen[bytes]
ENVIRONMENT = dict(os.environ)
"""Of every command: that of pytest once all tests are collected."""


@contextmanager
def started(
    *words: str | Path, cwd: Path, out: str | Path = os.devnull, err: str | Path = os.devnull, environment: dict[str, str] | None = None
) -> Iterator[Process]:
    """Start a module with arguments; kill it at the end if it is still running.

    Args:
        *words: The module and its arguments: of the command, `"attnkit", "fit", ...`.
        cwd: Its folder, where it finds modules, too.
        out: The file that its stdout goes into.
        err: The file that its stderr goes into.
        environment: Its variables that differ from those of pytest at the start.
    """
    command, variables = [str(word) for word in words], ENVIRONMENT | (environment or {})
    with Path(out).open("wb") as stdout, Path(err).open("wb") as stderr:
        process: Process | None = None
        if can_fork():
            server = _server(frozenset(environment.items())) if environment else shared()
            assert server is not None
            process = server.start(command, directory=cwd, environment=variables, out=stdout, err=stderr)
        if process is None:  # a GPU, which no fork could use
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                cwd=cwd, stdin=subprocess.PIPE, stdout=stdout, stderr=stderr, env=variables, start_new_session=True,
            )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdin is not None
        with suppress(BrokenPipeError):
            process.stdin.close()


def run(*words: str | Path, cwd: Path, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a module to its end and return its exit status and output; for the arguments, see `started`."""
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder, "out"), Path(folder, "err")
        with started(*words, cwd=cwd, out=out, err=err, environment=environment) as process:
            assert process.stdin is not None
            process.stdin.close()
            code = process.wait(600)
        return subprocess.CompletedProcess(words, code, out.read_text(encoding="utf-8"), err.read_text(encoding="utf-8"))


def run_ranks(*words: str | Path, cwd: Path) -> None:
    """Run a module to its end in two processes, which get their rank and the first one's port as arguments."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder, ExitStack() as ranks:
        files = [Path(folder, f"err{rank}") for rank in range(2)]
        processes = [ranks.enter_context(started(*words, str(rank), str(port), cwd=cwd, err=err)) for rank, err in enumerate(files)]
        codes = [process.wait(300) for process in processes]
        assert codes == [0, 0], "\n".join(err.read_text(encoding="utf-8") for err in files)


@cache
def _server(environment: frozenset[tuple[str, str]]) -> Server:
    server = Server()
    atexit.register(server.close)
    return server
