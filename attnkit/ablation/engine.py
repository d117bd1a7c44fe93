"""Runs the trainings of a plan, each in a process of its own, so many at once. No torch here.

Nothing but the files of the runs says what is done: this process may be killed at any point, alone or with its children, and
another one goes on from there. A run whose process lives on without its parent holds a lock, and is waited for.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from attnkit.ablation.plan import Plan, Run
from attnkit.ablation.store import FINAL, read_json, status_of, write_json
from attnkit.registry import ConfigurationError, nearest

WORKER = "attnkit.cli.cell"
BUSY = 75
"""Exit status of a run that another process is at (EX_TEMPFAIL of sysexits.h)."""
POLL = 0.1

Say = Callable[[str], None]


@dataclass
class _Process:
    run: Run
    folder: Path
    popen: subprocess.Popen[bytes]
    started: float
    slot: int
    files: tuple[IO[bytes], ...]


def run_plan(plan: Plan, *, jobs: int = 1, fail_fast: bool = False, gpus: Sequence[int] = (), say: Say = print) -> None:
    """Run what is not finished.

    Args:
        plan: The plan.
        jobs: How many at once.
        fail_fast: Stop at the first failure.
        gpus: Numbers of the GPUs that are dealt out to the processes (default: every process sees all).
        say: Is told each line of progress.

    Raises:
        ConfigurationError: The study of this name was another one, the metric is never logged, or with `fail_fast` a run failed.
    """
    if jobs < 1:
        raise ConfigurationError(f"jobs must be at least 1, but is {jobs}")
    plan.lock()
    Engine(plan, fail_fast=fail_fast, gpus=gpus, say=say).work(jobs)


class Engine:
    """The processes of one `attnkit ablate run`.

    Args:
        plan: The plan.
        fail_fast: Stop at the first failure.
        gpus: See `run_plan`.
        say: See `run_plan`.
    """

    def __init__(self, plan: Plan, *, fail_fast: bool, gpus: Sequence[int], say: Say) -> None:
        self.plan, self.fail_fast, self.gpus, self.say = plan, fail_fast, gpus, say
        self.queue = [r for r in plan.runs if status_of(plan.run_folder(r.key))["status"] not in FINAL]
        self.active: list[_Process] = []
        self.tries: dict[str, int] = {}
        self.ended = len(plan.runs) - len(self.queue)
        self.durations: list[float] = []

    def work(self, jobs: int) -> None:
        """Run all; at an error or Ctrl-C, end the processes first."""
        if self.ended:
            self.say(f"{self.ended} of {len(self.plan.runs)} runs are finished already")
        try:
            while self.queue or self.active:
                while self.queue and len(self.active) < jobs:
                    slot = min(set(range(jobs)) - {p.slot for p in self.active})
                    self.active.append(self._start(self.queue.pop(0), slot))
                time.sleep(POLL)
                for process in list(self.active):
                    self._look_at(process, jobs)
        finally:
            for process in self.active:
                _kill(process.popen)

    def _start(self, run: Run, slot: int) -> _Process:
        folder = self.plan.run_folder(run.key)
        if not (folder / "job.json").exists():
            write_json(folder / "job.json", run.job)
        environment = dict(os.environ)
        if self.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = str(self.gpus[slot % len(self.gpus)])
        files = (folder / "stdout.txt").open("ab"), (folder / "stderr.txt").open("ab")
        command = [sys.executable, "-m", WORKER, str(folder)]
        popen = subprocess.Popen(command, stdout=files[0], stderr=files[1], env=environment, start_new_session=True)
        return _Process(run, folder, popen, time.monotonic(), slot, files)

    def _look_at(self, process: _Process, jobs: int) -> None:
        code = process.popen.poll()
        elapsed = time.monotonic() - process.started
        limit = self.plan.study.timeout
        if code is None and (limit is None or elapsed < limit):
            return
        self.active.remove(process)
        for file in process.files:
            file.close()
        if code is None:
            _kill(process.popen)
            write_json(process.folder / "status.json", {"status": "failed", "kind": "timeout", "message": f"took more than {limit:g} s"})
        elif code == BUSY:
            time.sleep(1)  # its process outlived an engine that was killed
            self.queue.append(process.run)
            return
        elif status_of(process.folder)["status"] not in FINAL:
            write_json(process.folder / "status.json", _died(code))
        self._end(process, elapsed, jobs)

    def _end(self, process: _Process, elapsed: float, jobs: int) -> None:
        status = status_of(process.folder)
        kind, key = status.get("kind"), process.run.key
        name = f"{process.run.variants[0]} seed {process.run.seed}"
        if status["status"] == "failed" and self.tries.get(key, 0) < self.plan.study.retries.get(str(kind), 0):
            self.tries[key] = self.tries.get(key, 0) + 1
            (process.folder / "status.json").unlink()
            self.say(f"{name}: {kind} ({status['message']}); tried again, the {self.tries[key]}. time")
            self.queue.append(process.run)
            return
        self.ended += 1
        self.durations.append(elapsed)
        left = len(self.plan.runs) - self.ended
        eta = left * sum(self.durations) / len(self.durations) / min(jobs, max(left, 1))
        value = (read_json(process.folder / "result.json") or {}).get("metrics", {}).get(self.plan.study.metric)
        shown = f"{self.plan.study.metric} {value:.5g}" if isinstance(value, float | int) else status.get("message", "")
        self.say(
            f"[{self.ended}/{len(self.plan.runs)}] {status['status']:<8} {name}  {shown}  {elapsed:.0f} s"
            + (f", {_clock(eta)} to go" if left else "")
        )
        if status["status"] == "ok":
            check_metric(self.plan, process.folder)
        elif status["status"] == "failed" and (self.fail_fast or kind == "disk_full"):
            raise ConfigurationError(f"{name} failed ({kind}): {status.get('message')}; attnkit ablate logs says more")


def check_metric(plan: Plan, folder: Path) -> None:
    """Raise if a run that ended well has not logged the metric of the study."""
    logged = (read_json(folder / "result.json") or {}).get("metrics", {})
    if plan.study.metric not in logged:
        raise ConfigurationError(
            f"the metric {plan.study.metric!r} is never logged.{nearest(plan.study.metric, logged)} "
            f"Logged: {', '.join(sorted(logged)) or 'none'}."
        )


def retry(plan: Plan) -> int:
    """Forget how failed runs ended, so that they are run again from their start. Returns how many; a diverged run is no failure."""
    count = 0
    for run in plan.runs:
        folder = plan.run_folder(run.key)
        if status_of(folder)["status"] == "failed":
            shutil.rmtree(folder / "checkpoints", ignore_errors=True)
            (folder / "status.json").unlink()
            count += 1
    return count


def _died(code: int) -> dict[str, Any]:
    if code < 0:
        return {"status": "failed", "kind": "killed", "message": f"killed by {signal.Signals(-code).name}"}
    return {"status": "failed", "kind": "error", "message": f"exit status {code}"}


def _kill(popen: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(popen.pid, signal.SIGTERM)
    try:
        popen.wait(5)
    except subprocess.TimeoutExpired:
        os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()


def _clock(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> _clock(40), _clock(150), _clock(9000)
        ('40 s', '2 min', '2.5 h')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
