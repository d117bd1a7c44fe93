"""The page of a running study, from stored files alone: progress, learning curves, decisions so far and the remaining cost."""

import time
from collections.abc import Sequence
from dataclasses import replace

from attnkit.ablation.answers import Answers, answers_of
from attnkit.ablation.figures import paired, progress
from attnkit.ablation.looks import looks
from attnkit.ablation.measurements import mean
from attnkit.ablation.plan import Plan, Run
from attnkit.ablation.progress import clock
from attnkit.ablation.report import ENVIRONMENT, omissions, page, path_lines, subtitle
from attnkit.ablation.results import Results, sentence
from attnkit.ablation.statistics import Comparison
from attnkit.ablation.tables import Table
from attnkit.worker.answers import Underway
from attnkit.worker.folder import FINAL, FINISHED, UNDERWAY, stored

REFRESHED = 10  # seconds after which a browser reloads the page


def live_page(plan: Plan, *, more: bool = False) -> str:
    """Return the current page of a study: its report once all runs are finished, unless `more` runs will follow those of the plan."""
    answers, underway = so_far(plan)
    results = Results(plan, answers)
    if results.complete and not more:
        return page(results)
    ended = [run for run in results.runs if results.status[run.key]["status"] in FINAL]
    settled, open_ = decisions(results)
    drawn = [figure for figure in (progress(results), paired(results)) if figure.svg is not None]
    return ENVIRONMENT.get_template("live.html").render(
        study=results.study,
        refreshed=REFRESHED,
        now=time.strftime("%H:%M:%S"),
        subtitle=subtitle(results),
        ended=len(ended),
        total=len(results.runs),
        to_go=cost_to_go(results),
        running=_running(results, underway),
        settled=[(c.verdict if c.kind == "difference" else "", sentence(c, results.study)) for c in settled],
        open=open_,
        path=[line for line in path_lines(results) if "not all runs are finished" not in line],
        failures=[line for line in omissions(results) if ": pending" not in line and ": running" not in line],
        figures=drawn,
    )


def so_far(plan: Plan) -> tuple[Answers, dict[str, Underway]]:
    """Return the answers of a plan, including the learning curves of running runs, and the progress of those runs by key."""
    answers = answers_of(plan)
    unfinished = [run.key for run in plan.runs if answers.runs[run.key].status["status"] == "running"]
    found = {key: one for key in unfinished if (one := stored(Underway, plan.run_folder(key) / UNDERWAY)) is not None}
    curves = {key: replace(answers.runs[key], result={"metrics": {}, "curve": one.curve}) for key, one in found.items()}
    return replace(answers, runs={**answers.runs, **curves}), found


def decisions(results: Results) -> tuple[list[Comparison], list[str]]:
    """Return the verdicts that no later run can change, and the contrasts that are still open, in words.

    A verdict is shown only once all runs of its look are finished: an unplanned look would have to be paid for, and a failed run may be
    repeated.
    """
    last = looks(results.study, results.answers.asked)[-1]
    keys = results.plan.key_by_variant
    settled: dict[str, Comparison] = {}
    open_: dict[str, str] = {}
    for step in results.path:
        seeds = results.study.seeds[: step.look.seeds]
        for c in step.compared:
            runs = {keys[name, seed] for name in results.contrasts[c.variant].weights for seed in seeds}
            ended = sum(results.status[key]["status"] in FINISHED for key in runs)
            failed = sum(results.status[key]["status"] == "failed" for key in runs)
            if ended == len(runs) and (c.verdict != "inconclusive" or step.look == last or c.variant in step.given_up):
                settled[c.variant] = c
                open_.pop(c.variant, None)
            else:
                against = f" against {c.reference}" if c.kind == "difference" else ""
                open_[c.variant] = (
                    f"{results.study.side(c.variant)}{against}: {ended} of {len(runs)} runs of the look at {len(seeds)} seeds"
                    + (f", {failed} failed" if failed else "")
                )
    return list(settled.values()), list(open_.values())


def cost_to_go(results: Results) -> list[str]:
    """Return the cost of the remaining runs and, with `decide`, of the most that may follow, with as many at a time as now."""
    at_once = max(1, sum(results.status[run.key]["status"] == "running" for run in results.runs))
    each = mean([seconds for run in results.plan.runs if (seconds := results.status[run.key].get("wall_seconds"))])

    def cost(runs: Sequence[Run]) -> str:
        left = sum(results.status[run.key]["status"] not in FINAL for run in runs)
        return f"{left} runs" + ("" if each is None else f", about {clock(left * each / at_once)}")

    lines = [f"To go: {cost(results.runs)}" + (f", {at_once} at a time" if at_once > 1 else "")]
    if results.study.decide is not None:
        lines.append(f"If nothing more is decided before the last look: {cost(results.plan.runs)}")
    return lines


def _running(results: Results, underway: dict[str, Underway]) -> Table:
    rows = []
    for run in results.runs:
        if (state := results.status[run.key])["status"] == "running":
            one = underway.get(run.key)
            steps = "-" if one is None else f"{one.step:,}" + (f" of {one.steps:,}" if one.steps else "")
            last = one.curve[-1] if one is not None and one.curve else {}
            metric = results.study.metric.replace("test/", "val/")
            value = last.get(metric, last.get("val/loss"))
            shown = "-" if value is None else f"{metric if metric in last else 'val/loss'} {value:.4g}"
            rows.append((False, (f"{run.variants[0]}, seed {run.seed}", str(state["owner"]), steps, shown)))
    return Table(("run", "by", "steps", "last validation"), rows)
