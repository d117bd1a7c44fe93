"""Carries out a study: all of its runs, or look by look those that are needed to decide what is open."""

from collections.abc import Mapping, Sequence
from typing import Any

from attnkit.ablation.engine import run_plan
from attnkit.ablation.plan import Plan
from attnkit.ablation.progress import Progress, Say
from attnkit.ablation.results import Results


def run_study(
    plan: Plan,
    *,
    jobs: int | None = None,
    fail_fast: bool = False,
    gpus: Sequence[int] = (),
    engine: Mapping[str, Any] | None = None,
    say: Say = print,
    progress: Progress | None = None,
) -> Plan:
    """Carry out the runs that are not finished. With `decide`, one look after another, until nothing is open.

    The looks are computed from stored results alone: a killed study continues where it stopped. Where a run failed, its contrast stays
    open, and further looks wait until it is run again. Arguments and errors are those of `attnkit.ablation.engine.run_plan`.
    """
    options: dict[str, Any] = {"jobs": jobs, "fail_fast": fail_fast, "gpus": gpus, "engine": engine, "say": say}
    if plan.study.decide is None:
        return run_plan(plan, progress=progress, **options)
    if plan.trials is not None and not plan.tuned:
        plan = run_plan(plan, progress=progress, only=(), **options)
    done: set[str] = set()
    while (keys := {run.key for run in Results(plan).runs}) != done:
        say(f"the next look needs {len(keys - done)} more of {len(plan.runs)} runs")
        if progress is not None:
            progress.ended.clear()
        plan, done = run_plan(plan, progress=progress, only=keys, **options), keys
    return plan
