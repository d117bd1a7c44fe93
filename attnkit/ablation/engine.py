"""Executes the training runs of a plan, several at a time, each in its own process. No torch.

The files of the runs are the only record of progress: this process may be killed at any point, alone or with its children, and a new one
picks up from there. When it ends, the processes of its runs save their state and exit too. It waits for runs that a process of another
study or machine is working on.
"""

import errno
import signal
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attnkit.ablation.discard import forget, restart, set_aside
from attnkit.ablation.estimate import estimate
from attnkit.ablation.gpus import Gpus
from attnkit.ablation.plan import Plan, Run
from attnkit.ablation.planning import make_plan
from attnkit.ablation.progress import Others, Printer, Progress
from attnkit.ablation.tuning import written
from attnkit.ablation.validity import accept, changed, stale_lines, state_of
from attnkit.ownership import Owner
from attnkit.registry import ConfigurationError, nearest, require_at_least
from attnkit.wording import counted
from attnkit.worker.folder import BUSY, FINAL, FINISHED, FULL, READ_ONLY, note, result_of, status_of, write_json
from attnkit.worker.job import POLL, RUN, Job
from attnkit.worker.launch import Submit, launching

STOPPED = {128 + number: number for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
"""The signal behind each exit status of a run that saved its state and exited on request."""


@contextmanager
def explaining_full_disk(folder: str | Path) -> Iterator[None]:
    """Raise a `ConfigurationError` that says what to do if the disk of a results folder is full or the folder is read-only."""
    try:
        yield
    except OSError as error:
        if error.errno in READ_ONLY and Path(folder).absolute() in Path(str(error.filename)).absolute().parents:
            raise ConfigurationError(
                f"{folder} cannot be written to ({error.filename}: {error.strerror}); copy it to a writable place and pass that as --folder"
            ) from error
        if error.errno not in FULL:
            raise
        raise ConfigurationError(
            f"the disk of {folder} is full; free some space and run the command again: finished runs are kept, and the others continue"
        ) from error


@dataclass
class _Active:
    run: Run
    job: Job
    handle: Any  # a future
    began: float


def run_plan(
    plan: Plan,
    *,
    jobs: int | None = None,
    fail_fast: bool = False,
    gpus: Sequence[int] = (),
    engine: Mapping[str, Any] | None = None,
    say: Printer = print,
    progress: Progress | None = None,
) -> Plan:
    """Execute the unfinished runs, after the tuning trials if the study tunes. Return the plan of the results, with tuned values.

    With `decide`, one look follows another until every contrast is decided. Looks are computed from stored results alone, so a killed study
    continues where it stopped. If a run failed, its contrast stays open, and further looks wait until it has been repeated.

    Args:
        plan: The plan.
        jobs: The number of concurrent runs (default: with local processes, 1, or one for each of `gpus`; with other engines, all runs at
            once). If it exceeds the number of `gpus`, runs share a GPU as far as its memory allows; see `attnkit.ablation.gpus`.
        fail_fast: Stop at the first failure.
        gpus: Numbers of the GPUs to use; each local process sees one of them (default: every process sees all GPUs).
        engine: Where runs are executed (default: as the study says); see `attnkit.worker.launch`.
        say: Called with each progress message.
        progress: Updated as runs start and end.

    Raises:
        ConfigurationError: Results of another study have this name, a run does not log the metric, a tuning trial failed, the disk is
            full or the folder read-only, the engine's package is missing, or a run failed and `fail_fast` is set.
    """
    require_at_least(1, jobs=jobs)
    spec = engine or plan.study.engine
    progress = progress or Progress()
    if gpus and spec["name"] != "local":
        raise ConfigurationError(f"--gpus assigns GPUs of this machine; for the engine {spec['name']}, set its argument gpus")
    plan.refuse_other()  # before trials are run
    while (trials := plan.trials) is not None and not plan.tuned:
        say(f"tuning {plan.study.tune}: {counted(len(trials.runs), 'trial')}")
        with explaining_full_disk(plan.folder):
            plan.lock_tuning()
        run_plan(trials, jobs=jobs, fail_fast=fail_fast, gpus=gpus, engine=engine, say=say, progress=progress)
        plan = make_plan(plan.study, plan.folder)
        if not plan.tuned and plan.trials is not None and len(plan.trials.runs) == len(trials.runs):
            raise ConfigurationError("a tuning trial failed: attnkit ablate status shows which, and attnkit ablate retry repeats it")
        progress.ended.clear()
    for line in edges(plan):
        say(line)
    plan.refuse_other()  # tuning may have chosen other values
    if plan.study.accept_code is not None and (count := accept(plan, plan.study.accept_code)):
        say(f"stale runs accepted: {count} ({plan.study.accept_code})")
    done: set[str] = set()
    with explaining_full_disk(plan.folder):
        plan.lock()
        while (keys := _needed(plan)) != done:
            if plan.study.decide is not None:
                if more := sum(state_of(plan, run)["status"] not in FINAL for run in plan.runs if run.key in keys):
                    say(f"the next look needs {more} more of {len(plan.runs)} runs")
                progress.ended.clear()
            chosen = replace(plan, runs=tuple(run for run in plan.runs if run.key in keys))
            Engine(chosen, fail_fast=fail_fast, gpus=gpus, say=say, progress=progress).work(spec, jobs)
            done = keys
    return plan


def _needed(plan: Plan) -> set[str]:
    """Return the keys of the runs that the results are known to need so far."""
    from attnkit.ablation.results import Results  # needs the extra `ablate`: fails before the first run if it is missing

    return {run.key for run in (plan.runs if plan.study.decide is None else Results(plan).runs)}


def edges(plan: Plan) -> list[str]:
    """Return a warning for each variant whose tuned value is the lowest or highest one tried, or whose trials all diverged."""
    return [
        f"warning: {name}: the best tuned value, {written(found.chosen)}, is at the edge of the grid of {', '.join(found.edges)}"
        if any(mean is not None for _, mean in found.means)
        else f"warning: {name}: every tuning trial diverged, so {written(found.chosen)} is just the first value, not the best"
        for name, found in plan.tuned.items()
        if found.edges
    ]


class Engine:
    """Schedules the runs of one `attnkit ablate run`; its arguments are those of `run_plan`."""

    def __init__(self, plan: Plan, *, fail_fast: bool, gpus: Sequence[int], say: Printer, progress: Progress) -> None:
        self.plan, self.fail_fast, self.say, self.progress = plan, fail_fast, say, progress
        self.gpus = Gpus(gpus) if gpus else None
        self.full = False  # whether the next run must wait for another one to end
        self.alone: set[str] = set()  # keys of runs that must not share a GPU
        self.queue: list[Run] = []
        self.active: list[_Active] = []
        self.tries: Counter[str] = Counter()
        self.others = Others(say)
        progress.total = len(plan.runs)
        for line in stale_lines(replace(plan, trials=None)):
            say(line)
        for run in plan.runs:
            state, folder = state_of(plan, run), plan.run_folder(run.key)
            if state.get("kind") == "disk_full":  # the run itself is not at fault
                forget(folder)
                state = state_of(plan, run)
            if state["status"] in FINAL:
                progress.ended[state["status"]] += 1
                if state["status"] == "ok":
                    check_metric(plan, run)
                continue
            if state["status"] == "damaged":
                say(f"{_name(run)}: {state['message']}; running it again")
                forget(folder)
            if state["status"] == "stale":
                set_aside(plan, run)
            self.queue.append(run)

    def work(self, spec: Mapping[str, Any], jobs: int | None) -> None:
        """Execute all runs; on an error or Ctrl-C, end their processes before raising."""
        if done := self.progress.ended.total():
            failed = self.progress.ended["failed"]
            again = f"; {failed} of them failed, and attnkit ablate retry repeats them" if failed else ""
            self.say(f"{done} of {self.progress.total} runs are already finished{again}")
        if not self.queue:
            return
        self.progress.expected = estimate(self.plan, probe=False).mean
        apart = len(self.gpus.numbers) if self.gpus else 1
        self.progress.jobs = jobs or (apart if spec["name"] == "local" else len(self.queue))
        if to_go := self.progress.to_go():
            self.say(f"{self.progress.left} runs, about {to_go}")
        with launching(spec) as submit:
            while self.queue or self.active:
                while len(self.active) < self.progress.jobs and not self.full and self.others.is_time() and (run := self._next()):
                    self._start(submit, run)
                    self.progress.active = {_name(a.run): a.began for a in self.active}
                time.sleep(POLL)
                for active in [a for a in self.active if a.handle.done()]:
                    self.active.remove(active)
                    self.full = False
                    self.progress.active = {_name(a.run): a.began for a in self.active}
                    self._look_at(active, shared=self.gpus is not None and self.gpus.release(active.run.key))

    def _next(self) -> Run | None:
        """Return a queued run that no process is working on, or None; other engines' processes may hold runs or have finished them."""
        held: dict[str, Owner] = {}
        for run in list(self.queue):
            state = status_of(self.plan.run_folder(run.key))
            if state["status"] == "running":
                held[_name(run)] = state["owner"]
                continue
            self.queue.remove(run)
            if state["status"] not in FINAL:
                return run
            self._end(run, None)
        self.others.wait_for(held)
        return None

    def _start(self, submit: Submit, run: Run) -> None:
        folder, study, gpu = self.plan.run_folder(run.key), self.plan.study, None
        if self.gpus is not None:
            peak = self._peak(run) if self._shares and run.key not in self.alone else None
            if (gpu := self.gpus.place(run.key, peak)) is None:
                self.full = True
                self.queue.insert(0, run)
                return
        if changed(self.plan, run):  # a run must not continue with changed code or data
            restart(folder)
        write_json(folder / "job.json", {**run.job, "name": _name(run), "shared_gpu": self._shares})  # again: the file may be damaged
        job = Job(folder=folder.absolute(), directory=Path.cwd(), gpu=gpu, timeout=study.timeout, threads=study.threads, worker=RUN)
        self.active.append(_Active(run, job, submit(job), time.monotonic()))

    @property
    def _shares(self) -> bool:
        """Whether runs may share a GPU: not with a budget in seconds, because sharing a GPU slows a run down."""
        budget = self.plan.study.budget
        return self.gpus is not None and self.progress.jobs > len(self.gpus.numbers) and (budget is None or budget.on != "seconds")

    def _peak(self, run: Run) -> float | None:
        """Return the peak memory of finished runs of the same variant; None if none has finished."""
        alike = (self.plan.run_folder(one.key) for one in self.plan.runs if set(one.variants) & set(run.variants))
        return max((peak for folder in alike if (peak := result_of(folder).get("memory"))), default=None)

    def _look_at(self, active: _Active, *, shared: bool) -> None:
        try:
            code = active.handle.result()
        except OSError:
            raise  # an error of this machine
        except Exception as error:  # an error of the machine that the run was on
            kind, message = "killed", f"lost: {[type(error).__name__, *str(error).strip().splitlines()][-1]}"
        else:
            if code == BUSY:
                self.queue.append(active.run)
                return
            number = -code if code < 0 else STOPPED.get(code)
            kind, message = ("killed", f"killed by {signal.Signals(number).name}") if number else ("error", f"exit status {code}")
        note(active.job.folder, kind, message)
        self._end(active.run, time.monotonic() - active.began, shared=shared)

    def _end(self, run: Run, elapsed: float | None, *, shared: bool = False) -> None:
        folder = self.plan.run_folder(run.key)
        status, counted_as, progress = status_of(folder), self.plan.state(run)["status"], self.progress
        kind, name, again, stale = str(status.get("kind")), _name(run), "", list[str]()
        if status["status"] == "failed" and kind == "out_of_memory" and shared:
            self.alone.add(run.key)
            again = "out of memory on a shared GPU; running again on a GPU of its own"
        elif status["status"] == "failed" and self.tries[run.key] < self.plan.study.retries.get(kind, 0):
            self.tries[run.key] += 1
            again = f"{kind} ({status['message']}); retry {self.tries[run.key]}"
        elif counted_as in FINISHED and not self.tries[run.key] and (stale := changed(self.plan, run)):
            self.tries[run.key] += 1  # only once, in case its inputs change all the time
            again = f"{'; '.join(stale)}; running it again"
        if stale:
            set_aside(self.plan, run)
        elif again:
            forget(folder)
        if again:
            self.say(f"{name}: {again}")
            self.queue.append(run)
            return
        progress.ended[counted_as] += 1
        if elapsed is not None:
            progress.durations.append(elapsed)
        metric, metrics = self.plan.study.metric, result_of(folder).get("metrics", {}) if status["status"] == "ok" else {}
        shown = status.get("message", "")
        if metric in metrics:
            value = metrics[metric]
            shown = f"{metric} is not finite: counts as diverged" if value is None else f"{metric} {value:.5g}"
        took = f"{elapsed:.0f} s" if elapsed is not None else "by another process"
        to_go = f", {progress.to_go()}" if progress.to_go() else ""
        self.say(f"[{progress.ended.total()}/{progress.total}] {counted_as:<8} {name}  {shown}  {took}{to_go}")
        if status["status"] == "ok":
            check_metric(self.plan, run)
        elif kind == "disk_full":
            forget(folder)
            raise OSError(errno.ENOSPC, status.get("message"))
        elif counted_as == "failed" and self.fail_fast:
            raise ConfigurationError(f"{name} failed ({kind}): {status.get('message')}; see attnkit ablate logs")


def check_metric(plan: Plan, run: Run) -> None:
    """Raise if a run with status ok has not logged the study's metric."""
    metric, logged = plan.study.metric, result_of(plan.run_folder(run.key)).get("metrics", {})
    if metric in logged:
        return
    logged_by_others = any(metric in result_of(plan.run_folder(one.key)).get("metrics", {}) for one in plan.runs)
    what = f"the metric {metric!r} is never logged"
    if logged_by_others:
        what = f"{_name(run)} has not logged the metric {metric!r}, which other runs have logged: make its variant log it, or remove it"
    raise ConfigurationError(f"{what}.{nearest(metric, logged)} Logged: {', '.join(sorted(logged)) or 'none'}.")


def retry(plan: Plan) -> int:
    """Reset failed runs, so that they are repeated, and return their number; one that diverged, or counts so, is not a failed run."""
    failed = [run for run in plan.all_runs if plan.state(run)["status"] in ("failed", "damaged")]
    for run in failed:
        forget(plan.run_folder(run.key))
    return len(failed)


def _name(run: Run) -> str:
    return f"{run.variants[0]} seed {run.seed}"
