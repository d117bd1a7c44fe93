"""Estimates how long the runs of a plan will take, from finished runs or from a few steps in a worker process. No torch."""

import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from attnkit import __version__
from attnkit.ablation.plan import Plan
from attnkit.ablation.progress import Printer
from attnkit.files import code_version
from attnkit.wording import counted
from attnkit.worker.answers import Probe
from attnkit.worker.folder import key_of, status_of, stored, write_json
from attnkit.worker.job import PROBE, ask

MOST = 8
"""The maximum number of variants to probe; if there are more, an evenly spaced sample is probed."""
SECONDS = 60.0
"""Time, in seconds, after which no further variant is probed."""
PATIENCE = 180.0
"""Time, in seconds, after which the worker process is stopped."""


@dataclass(frozen=True, kw_only=True)
class Timing:
    """The duration of a run of a variant.

    Attributes:
        seconds: The duration of a run.
        basis: Where the duration comes from.
        like: The variant whose duration stands in for this one's; None if this one's is known.
        flops_per_token: Training FLOPs per token, if the variant was probed.
    """

    seconds: float
    basis: Literal["finished runs", "a probe of a few steps", "the variant nearest in parameters"]
    like: str | None = None
    flops_per_token: int | None = None


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The known durations of a run and the reasons for failed probes, each by variant, and the metrics that validations logged."""

    timings: Mapping[str, Timing] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    logged: frozenset[str] = frozenset()

    @property
    def mean(self) -> float | None:
        """The seconds per run, averaged over variants; None if nothing is known."""
        return sum(t.seconds for t in self.timings.values()) / len(self.timings) if self.timings else None


def estimate(plan: Plan, *, probe: bool, say: Printer = print) -> Estimate:
    """Estimate how long the runs of a plan will take. Results of probes are cached.

    With `probe`, variants without a known duration are probed, which `say` announces; otherwise, only earlier probes are used.
    """
    known = _finished(plan)
    runs = [run for run in plan.runs if run.seed == plan.study.seeds[0]]
    machine = [platform.node(), os.cpu_count(), plan.study.threads, os.environ.get("CUDA_VISIBLE_DEVICES")]
    shared = [__version__, code_version(), machine]
    jobs = {run.variants[0]: run.job for run in runs if run.variants[0] not in known}
    files = {name: plan.folder / "probes" / f"{key_of([shared, _without_seeds(job)])}.json" for name, job in jobs.items()}
    unknown = [name for name, file in files.items() if stored(Probe, file) is None]
    failed = {}
    if probe and unknown and len(files) - len(unknown) < MOST:
        chosen = spread(unknown, MOST)
        which = f"{len(chosen)} of {len(unknown)} variants" if len(chosen) < len(unknown) else counted(len(chosen), "variant")
        say(f"timing a few steps of {which} (at most {PATIENCE:.0f} s; --no-probe skips it)")
        failed = _probe({name: jobs[name] for name in chosen}, files, threads=plan.study.threads)
    logged: set[str] = set()
    for name, file in files.items():
        if (found := stored(Probe, file)) is not None:
            logged.update(found.logged)
            known[name] = Timing(seconds=found.seconds, basis="a probe of a few steps", flops_per_token=found.flops_per_token)
    known |= {name: known[run.variants[0]] for run in runs for name in run.variants if run.variants[0] in known}  # same composition
    sizes = {name: inspection.parameters or 0 for name, inspection in plan.inspections.items()}
    timings = {}
    for name in [v.name for v in plan.variants] if known else []:
        near = min(known, key=lambda other: abs(sizes[other] - sizes[name]))
        as_near = Timing(seconds=known[near].seconds, basis="the variant nearest in parameters", like=near)
        timings[name] = known.get(name, as_near)
    return Estimate(timings=timings, failed=failed, logged=frozenset(logged))


def spread(names: Sequence[str], count: int) -> list[str]:
    """Return at most `count` of the names, evenly spaced, including the first and the last.

    Example:
        >>> spread("abcdefg", 3), spread("ab", 3)
        (['a', 'd', 'g'], ['a', 'b'])
    """
    if len(names) <= count:
        return list(names)
    return [names[round(i * (len(names) - 1) / (count - 1))] for i in range(count)]


def _finished(plan: Plan) -> dict[str, Timing]:
    """Return the mean duration of the finished runs of each variant that has any."""
    times: dict[str, list[float]] = {}
    for run in plan.runs:
        status = status_of(plan.run_folder(run.key))
        if status["status"] == "ok" and "wall_seconds" in status:
            for name in run.variants:
                times.setdefault(name, []).append(status["wall_seconds"])
    return {name: Timing(seconds=sum(found) / len(found), basis="finished runs") for name, found in times.items()}


def _without_seeds(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a job that its duration depends on."""
    data = {key: value for key, value in job["recipe"].get("data", {}).items() if key != "seed"}
    return {**job, "recipe": {**job["recipe"], "data": data}, "seeds": None}


def _probe(jobs: Mapping[str, Mapping[str, Any]], files: Mapping[str, Path], *, threads: int) -> dict[str, str]:
    """Probe the jobs in a worker process and store its answers; return, by variant, why an answer is missing."""
    question = {"began": time.time(), "seconds": SECONDS, "jobs": list(jobs.values())}
    answers, why = ask(PROBE, question, timeout=PATIENCE, threads=threads)
    failed = {}
    for name, answer in zip(jobs, answers, strict=False):
        if "error" in answer:
            failed[name] = answer["error"]
        else:
            write_json(files[name], answer)
    if len(answers) < len(jobs) and why:
        failed[list(jobs)[len(answers)]] = why
    return failed
