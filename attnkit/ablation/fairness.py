"""The questions that a careful reader would ask, answered from stored results."""

from attnkit.ablation.looks import looks
from attnkit.ablation.results import Results
from attnkit.wording import counted

Check = tuple[bool, str]


def checklist(results: Results) -> list[Check]:
    """Return each question as a statement, and whether it holds."""
    study, plan = results.study, results.plan
    unpaired, failures, mixed = results.unpaired(), results.failures(), results.mixtures()
    accepted = results.accepted()
    effects = sum(len(e) for e in plan.side_effects.values())
    seeded = all(plan.inspections[v.name].takes_seed for v in plan.variants)
    unhashed, miscounted = results.unhashed(), results.miscounted()
    only = f", but not with the seeds {unpaired}" if unpaired else ""
    only += f", which does not cover their values of type {', '.join(unhashed)}" if unhashed else ""
    seeds = "the order of the data has its own seed"
    if not seeded:
        seeds += ": no, the data take none" if not plan.limits else ": only for draws from global generators, see below"
    exceptions = f", except for {counted(effects, 'argument')}, listed below" if effects else ""
    return [
        (not unpaired and not unhashed, f"all variants saw the same batches in the same order, by a hash of every batch{only}"),
        *_starts(results),
        (seeded, seeds),
        (not failures, f"every run has a result: {len(results.runs) - len(failures)} of {len(results.runs)}"),
        _sizes(results),
        *([(False, f"the plan and the training differ in the number of parameters of {', '.join(miscounted)}")] if miscounted else []),
        (
            not mixed,
            "all runs were made with the same code, packages, data and processor" + (f", except {'; '.join(mixed)}" if mixed else ""),
        ),
        *((False, f"{counted(len(one.runs), 'run')} accepted although something had changed: {one.reason}") for one in accepted),
        _optional_stopping(results),
        (effects == 0, f"variants differ only as the study asks{exceptions}"),
        (study.min_effect is not None, "the smallest difference that matters was declared"),
        *_tuning(results),
    ]


def _starts(results: Results) -> list[Check]:
    found = results.starts()
    if found is None:
        return []
    equal, different = found
    text = "parameters with the name and shape of one of the baseline start with its values, by a hash of each"
    others = ", ".join(f"{count} in {variant}" for variant, count in different.items())
    return [(not different, f"{text}: {equal:,} of {equal + sum(different.values()):,}" + (f", but not {others}" if others else ""))]


def _sizes(results: Results) -> Check:
    study, plan = results.study, results.plan
    by_flops = study.match is not None and study.match.on == "flops"
    sizes = [(plan.inspections[v.name].flops if by_flops else results.parameters(v.name)) or 0 for v in plan.variants]
    if not all(sizes):
        return False, "the sizes of the variants are not known"
    spread = max(sizes) / min(sizes) - 1
    limit = study.match.tolerance if study.match else 0.0
    text = f"the {'FLOPs' if by_flops else 'sizes'} of the variants differ by {spread:.1%}"
    return spread <= 2 * limit + 0.005, text + (f" (match: up to {limit:.1%} each)" if limit else "")


def _optional_stopping(results: Results) -> Check:
    if not results.answers.asked:
        return False, "no record shows that the number of seeds was set before the results"
    before = results.answers.asked.get("runs_before", 0)
    known = (
        f", but {before} of {len(results.plan.runs)} runs had been made for other studies before this one was declared: its error rates "
        "hold only if their results had no influence on its question and seeds"
    )
    if results.study.decide is not None:
        return not before, "the numbers of seeds and the level of each look were set before the results" + (known if before else "")
    added = [seed for seed in results.answers.asked.get("seeds_added", ()) if seed in results.study.seeds]
    text = "the number of seeds was set before the results"
    total = sum(look.alpha for look in looks(results.study, results.answers.asked))
    later = f", but {added} were added later, and paid for: the probability of any false verdict is at most {total:.3g}"
    return not (added or before), text + (later if added else "") + (known if before else "")


def _tuning(results: Results) -> list[Check]:
    tune, tuned = results.study.tune, results.plan.tuned
    asked = "every variant was tuned with the same number of trials"
    if tune is None:
        return [(False, f"{asked}: nothing was tuned, and the settings of the recipe may favour its own components")]
    if not tuned:
        return [(False, f"{asked}: the trials are not finished")]
    edges = [name for name, found in tuned.items() if found.edges]
    inside = "the best values of tuning are inside their grids or ranges"
    trials = counted(tune.count, "combination") + " of values" if len(tune.keys) > 1 else counted(tune.count, "value")
    return [
        (True, f"{asked}: {tune}, {trials} with {tune.seeds} seeds each, separate from those of the results"),
        (not edges, inside + (f", but not for {', '.join(edges)}: a better one may lie beyond" if edges else "")),
    ]
