"""The plan of a study in words: its variants, their cost, and the differences that its seeds can show."""

from collections import Counter

from attnkit.ablation.contrasts import family, inestimable
from attnkit.ablation.engine import edges
from attnkit.ablation.estimate import Estimate, Timing
from attnkit.ablation.looks import forecast, looks
from attnkit.ablation.plan import Plan
from attnkit.ablation.progress import clock
from attnkit.ablation.statistics import detectable, fewest_seeds
from attnkit.ablation.tuning import written
from attnkit.ablation.validity import stale_lines, state_of
from attnkit.registry import nearest
from attnkit.wording import counted


def outline(planned: Plan, times: Estimate, *, jobs: int) -> list[str]:
    """Return the plan of a study as lines of text, with the estimated `times` of its runs, `jobs` of them at once."""
    study = planned.study
    factors = f"{counted(len(planned.variants), 'variant')} x {counted(len(study.seeds), 'seed')}"
    lines = [f"{study.name}: {factors} = {counted(len(planned.runs), 'run')} of {study.recipe}"]
    equal = {**planned.same, **planned.twins}
    lines += [f"note: {name} is the same composition as {other} and shares its runs" for name, other in equal.items()]
    baseline = planned.inspections[planned.variants[0].name].parameters or 0
    for variant in planned.variants:
        inspection = planned.inspections[variant.name]
        size = inspection.parameters
        gap = f" ({size / baseline - 1:+.1%})" if baseline and size and size != baseline else ""
        adjusted = f", {study.match.adjust} = {inspection.adjusted}" if study.match and inspection.adjusted is not None else ""
        flops = f", {inspection.flops:,} FLOPs" if inspection.flops is not None else ""
        parameters = "parameters unknown before the runs" if size is None else f"{size:,} parameters"
        lines.append(f"  {variant.name}: {parameters}{gap}{flops}{adjusted}{_time(times.timings.get(variant.name))}")
        lines += [f"      also: {effect}" for effect in planned.side_effects[variant.name]]
    lines += [f"  left out: {variant.name}: {reason}" for variant, reason in planned.left_out]
    lines += [f"  cannot be estimated, as variants are left out: {effect}" for effect in inestimable(study, planned)]
    lines += [f"note: {limit}" for limit in planned.limits]
    if study.budget:
        lines.append(_budget(planned))
    if planned.trials is not None and study.tune is not None:
        each = f"{counted(study.tune.count, 'value')} x {counted(study.tune.seeds, 'seed')} for each variant"
        lines.append(f"First, {counted(len(planned.trials.runs) + _unproposed(planned), 'run')} tune {study.tune}: {each}.")
        lines += [f"  {name}: {written(found.chosen)}" for name, found in planned.tuned.items()]
        lines += edges(planned)
    return [*lines, *_power(planned), *stale_lines(planned), *_times(planned, times, jobs=jobs)]


def _time(timing: Timing | None) -> str:
    """Return the known costs of a variant, to be appended to its line."""
    if timing is None:
        return ""
    flops = f", {timing.flops_per_token:,} FLOPs/token" if timing.flops_per_token else ""
    return f"{flops}, about {clock(timing.seconds)} a run{f' (as {timing.like})' if timing.like else ''}"


def _times(planned: Plan, times: Estimate, *, jobs: int) -> list[str]:
    """Return the lines about the duration of the whole study."""
    lines = [f"note: {name} could not be timed: {reason}" for name, reason in times.failed.items()]
    metric = planned.study.metric
    if times.logged and metric.startswith("val/") and metric not in times.logged:
        near, logged = nearest(metric, times.logged), ", ".join(sorted(times.logged))
        lines.append(f"note: no validation of the probe logged the metric {metric!r}.{near} Logged: {logged}.")
    todo = [r for r in planned.all_runs if state_of(planned, r)["status"] in ("pending", "interrupted", "damaged", "stale")]
    later = [] if planned.trials is None or planned.tuned else list(planned.runs)  # after tuning
    count = len(todo) + len(later) + (more := _unproposed(planned))
    if not count or times.mean is None:
        return lines
    known = {name: timing.seconds for name, timing in times.timings.items()}
    seconds = sum(known.get(r.variants[0], times.mean) for r in (*todo, *later)) + more * times.mean
    trials = f" ({counted(count - len(later), 'trial')} of tuning, then {counted(len(later), 'run')} of the results)" if later else ""
    basis = ", ".join(f"{count} from {what}" for what, count in Counter(timing.basis for timing in times.timings.values()).items())
    at_once = f"{jobs} at a time, if they fit on the machine" if jobs > 1 else "one after another (--jobs N: N at a time)"
    return [
        *lines,
        f"{counted(count, 'run')} to do{trials}: about {clock(seconds / min(jobs, count))}, {at_once}. Times by variant: {basis}.",
    ]


def _unproposed(planned: Plan) -> int:
    """Return the number of trials that a search will add, at most; their values depend on earlier trials."""
    tune, trials = planned.study.tune, planned.trials
    if tune is None or trials is None or planned.tuned or not tune.search:
        return 0
    compositions = {planned.compositions[v.name] for v in planned.variants}
    return len(compositions) * tune.count * tune.seeds - len(trials.runs)


def _power(planned: Plan) -> list[str]:
    """Return lines on the differences that the seeds can show, and on the cost of looks."""
    study = planned.study
    count = max(1, len(family(study, planned)))
    compared = counted(count, "contrast")
    if study.quantile is not None:
        needed = fewest_seeds(study.quantile, level=study.alpha / count)
        able = "verdicts are possible" if len(study.seeds) >= needed else f"no verdict is possible: that takes at least {needed} seeds"
        return [f"With {counted(len(study.seeds), 'seed')} and {compared} of the {study.quantile:g} quantile, {able}."]
    if study.decide is None:
        smallest = detectable(len(study.seeds), alpha=study.alpha / count)
        return [
            f"With {len(study.seeds)} seeds and {compared}, differences of at least {smallest:.2f} standard deviations (of "
            f"the paired differences) are detected with a power of 0.8."
        ]
    lines = [f"Looks at {', '.join(map(str, study.decide.at))} seeds, until each of {compared} is decided. By simulation, a difference of"]
    for f in forecast(looks(study, {}), count):
        each = f"{f.seeds:.1f} seeds ({f.seeds * len(planned.variants):.0f} runs, if every contrast is like this one)"
        deviations = "1 standard deviation" if f.effect == 1 else f"{f.effect:g} standard deviations"
        lines.append(f"  {deviations} is shown with a probability of {f.decided:.2f}, after {each}")
    return lines


def _budget(planned: Plan) -> str:
    budget, recipe = planned.study.budget, planned.inspections[planned.variants[0].name].recipe
    assert budget is not None
    assert recipe is not None
    if budget.on == "steps":
        return f"Each run and its schedule have {budget.limit:,} steps."
    known = {key: value for key, value in (recipe.get("trainer") or {}).items() if key in ("max_epochs", "max_steps") and value}
    length = ", ".join(f"{key} {value}" for key, value in known.items()) or "Lightning's default"
    return (
        f"Each run ends at the first step at which it has used {budget.limit:,} {budget.on}. The number of steps is unknown in advance: "
        f"the schedule has the length set in the trainer section ({length}), and a run that needs more steps fails."
    )
