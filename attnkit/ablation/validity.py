"""Which finished runs are still valid: those whose provenance has changed are stale and repeated unless accepted. No torch."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attnkit.ablation.plan import Plan, Run
from attnkit.registry import ConfigurationError
from attnkit.wording import counted
from attnkit.worker.folder import FINISHED, PROVENANCE, read_record, stored, write_json
from attnkit.worker.provenance import Provenance, changes, processor
from attnkit.worker.sources import digest

FILE = "accepted.json"
SHOWN = 12  # maximum number of changes listed


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """Runs that count although they were made with other code, packages or data, or on another processor."""

    reason: str  # as given by the person who accepted them
    runs: Mapping[str, tuple[str, ...]]  # the differences that were accepted, by the keys of the runs


@dataclass(frozen=True, kw_only=True)
class Acceptances:
    """The content of `accepted.json` in a study's folder."""

    accepted: tuple[Accepted, ...] = ()


def acceptances(folder: Path) -> tuple[Accepted, ...]:
    """Return the acceptances recorded in a study's folder."""
    return (read_record(Acceptances, folder / FILE) or Acceptances()).accepted


def changed(plan: Plan, run: Run) -> list[str]:
    """Return sentences on changes in the provenance of a run; empty if there are none, or they were accepted."""
    current = processor(plan.study.threads) if plan.study.engine["name"] == "local" else None
    found = changes(stored(Provenance, plan.run_folder(run.key) / PROVENANCE), current=current)
    folders = [plan.study_folder, *([plan.trials.study_folder] if plan.trials is not None else [])]
    return [] if tuple(found) in [one.runs.get(run.key) for folder in folders for one in acceptances(folder)] else found


def state_of(plan: Plan, run: Run) -> dict[str, Any]:
    """Return the state of a run as `Plan.state` does, but `stale` if it is finished and its provenance has changed."""
    state = plan.state(run)
    if state["status"] in FINISHED and (found := changed(plan, run)):
        return {"status": "stale", "kind": "stale", "message": "; ".join(_shortened(found))}
    return state


def stale_lines(plan: Plan) -> list[str]:
    """Return a line for each change that makes runs stale, with the number of runs."""
    found = Counter(change for run in plan.all_runs if state_of(plan, run)["status"] == "stale" for change in changed(plan, run))
    return _shortened([f"stale: {counted(count, 'run')}: {change}" for change, count in found.most_common()])


def edited_lines(plan: Plan, now: Callable[[], Plan]) -> list[str]:
    """Return notes on edits made since the runs of a stored plan, for reports and comparisons of the runs as they were made.

    `now` makes the plan anew, which takes seconds. It is called only if the recipe file has changed, to tell whether its settings have.
    """
    lines, recipe = stale_lines(plan), Path(plan.study.recipe)
    recorded = {text for i in plan.inspections.values() for path, text in i.sources.items() if Path(path).name == recipe.name}
    if recorded and not (recipe.is_file() and digest(recipe) in recorded):
        problem = "was edited and cannot be compared with that of the runs"
        try:
            planned = now()
            problem = "is not that of the runs"
            planned.refuse_other()
        except ConfigurationError as error:
            lines.append(f"the recipe {plan.study.recipe} {problem}: {error}")
    return [f"note: {line}" for line in (*lines, *["this is about the runs as they were made"] * bool(lines))]


def _shortened(lines: list[str]) -> list[str]:
    return lines if len(lines) <= SHOWN else [*lines[:SHOWN], f"and {len(lines) - SHOWN} more changes"]


def accept(plan: Plan, reason: str) -> int:
    """Accept runs whose code, data, packages or processor have changed, so that they count and continue. Return their number."""
    if not reason.strip():
        raise ConfigurationError("--accept-code needs a reason, which the report prints")
    kept = [run for run in plan.runs if (plan.run_folder(run.key) / PROVENANCE).exists() or state_of(plan, run)["status"] == "stale"]
    found = {run.key: tuple(what) for run in kept if (what := changed(plan, run))}
    if found:
        all_of_them = (*acceptances(plan.study_folder), Accepted(reason=reason, runs=found))
        write_json(plan.study_folder / FILE, asdict(Acceptances(accepted=all_of_them)))
    return len(found)
