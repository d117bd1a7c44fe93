"""Worker processes, which end with the process that started them. No torch."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any

from attnkit.ownership import OWNER, is_abandoned, owned
from attnkit.train.numbering import LAUNCHED
from attnkit.worker.folder import note, status_of, write_json
from attnkit.worker.lifeline import DRIVEN, GRACE, TIMEOUT, took_too_long
from attnkit.worker.warm import Fork, Server, shared

RUN, INSPECTION, PROBE = "attnkit.worker.run", "attnkit.worker.inspection", "attnkit.worker.probe"
"""The modules that run as worker processes."""

PREFIX = "attnkit-"  # the prefix of the temporary folders of questions

POLL = 0.05

Process = subprocess.Popen[bytes] | Fork


@dataclass(frozen=True, kw_only=True)
class Job:
    """The work of one process; its folder contains the question, `job.json`, and receives the answer."""

    folder: Path
    directory: Path  # the working directory of the process, which paths in recipes may be relative to
    worker: str = RUN  # the module that the process runs
    gpu: int | None = None  # the only GPU that the process sees; None: all GPUs of the machine
    timeout: float | None = None  # seconds after which the process is stopped
    threads: int = 1  # CPU threads of the process

    def carry_out(self, stop: Event | None = None, server: Server | None = None) -> int:
        """Start the process, as a fork of `server` if given, wait for it to end or for `stop`, and return its exit status."""
        environment = {name: value for name, value in os.environ.items() if name not in LAUNCHED}  # this is no rank of another's run
        environment["OMP_NUM_THREADS"] = str(self.threads)
        if self.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.gpu)
        limit = [f"{TIMEOUT}{self.timeout}"] if self.timeout is not None else []
        words = [self.worker, str(self.folder), DRIVEN, *limit]
        process: Process | None = None
        with (self.folder / "stdout.txt").open("ab") as out, (self.folder / "stderr.txt").open("ab") as err:
            if server is not None:
                process = server.start(words, directory=self.directory, environment=environment, out=out, err=err)
            if process is None:
                command = [sys.executable, "-m", *words]
                process = subprocess.Popen(
                    command, cwd=self.directory, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment, start_new_session=True
                )
        try:
            return self._wait(process, stop)
        finally:
            _end(process)
            assert process.stdin is not None
            process.stdin.close()

    def _wait(self, process: Process, stop: Event | None) -> int:
        began = time.monotonic()
        while stop is None or not stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(POLL)
            if self.timeout is not None and time.monotonic() - began > self.timeout:
                _end(process)
                note(self.folder, "timeout", took_too_long(self.timeout))
                break
        return -signal.SIGTERM


def _end(process: Process) -> None:
    """Stop a process and its children if they are still running, first with SIGTERM, so that they can save a checkpoint."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # data loaders, other ranks
    process.wait()


def ask(worker: str, question: Any, *, timeout: float | None = None, threads: int = 1) -> tuple[list[dict[str, Any]], str]:
    """Ask a worker, `INSPECTION` or `PROBE`; return its answers in order, and the reason why some are missing (empty if none are)."""
    _remove_abandoned()
    with tempfile.TemporaryDirectory(prefix=PREFIX) as name, owned(Path(name)):
        folder = Path(name)
        write_json(folder / "job.json", question)
        code = Job(folder=folder, directory=Path.cwd(), worker=worker, timeout=timeout, threads=threads).carry_out(server=shared())
        lines = (folder / "stdout.txt").read_text(encoding="utf-8").splitlines()
        errors = (folder / "stderr.txt").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        ended = status_of(folder).get("message", "")
    why = ended or (errors[-1].removeprefix("attnkit: error: ") if errors else f"its process ended with status {code}")
    return [json.loads(line) for line in lines if line.startswith("{")], why if code else ""


def _remove_abandoned() -> None:
    """Remove the folders of questions whose process was killed; a process that ends otherwise removes its own folder."""
    for claims in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{OWNER}"):
        if is_abandoned(claims.parent):
            shutil.rmtree(claims.parent, ignore_errors=True)  # folders of other users stay
