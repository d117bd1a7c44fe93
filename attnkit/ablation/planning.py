"""Plans a study: its runs, the compositions left out and why, and the differences between variants. No torch."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from attnkit.ablation.contrasts import declared
from attnkit.ablation.design import Variant, differences, refuse_shown, settings
from attnkit.ablation.inspection import inspect
from attnkit.ablation.plan import Plan, Run
from attnkit.ablation.spec import SEED_KINDS, StudySpec
from attnkit.ablation.tuning import best_of, check_tunable, ended_in_folders, outcomes, proposed, trials_of
from attnkit.registry import FAMILIES, IMPORTS, ConfigurationError
from attnkit.worker.answers import Inspection
from attnkit.worker.folder import key_of

LONG = 200  # values longer than this many characters are abbreviated


def make_plan(study: StudySpec, folder: Path) -> Plan:
    """Return the plan of a study; raise a `ConfigurationError` if a key or level is wrong or the baseline cannot be built."""
    plan = _plan_of(study, study.expanded(), folder)
    if all(v.reference is None or v.name in plan.same for v in plan.variants):
        reasons = [f"{name} is the same composition as {reference}" for name, reference in plan.same.items()]
        reasons += [f"{v.name} is left out: {why}" for v, why in plan.left_out]
        reasons += [f"{v.name} has no reference, such as 'baseline'" for v in plan.variants[1:] if v.reference is None]
        raise ConfigurationError(f"the study {study.name!r} has nothing to compare: {'; '.join(reasons)}")
    if study.tune is None:
        return plan
    check_tunable(study, plan.variants)
    points = {v.name: study.tune.first for v in plan.variants}
    while True:
        tuning, tried = trials_of(study, plan.variants, points)
        trials = _plan_of(tuning, tried, folder)
        if trials.left_out:
            raise ConfigurationError(f"tune: {trials.left_out[0][0].name} cannot be built: {trials.left_out[0][1]}")
        _refuse_grown(plan.variants[0], trials, points[plan.variants[0].name])
        found = outcomes(plan.variants, trials, points, ended_in_folders(trials))
        if not found or len(points[plan.variants[0].name]) >= study.tune.count:
            break
        points = {name: [*points[name], proposed(study.tune.search, one, better=tuning.better)] for name, one in found.items()}
    tuned = {name: best_of(one, better=tuning.better) for name, one in found.items()}
    if tuned:
        chosen = [replace(v, overrides={**v.overrides, **tuned[v.name].chosen}) for v in plan.variants]
        plan = replace(_plan_of(study, chosen, folder), left_out=plan.left_out)
    return replace(plan, trials=trials, tuned=tuned)


def _refuse_grown(baseline: Variant, trials: Plan, points: Sequence[Mapping[str, Any]]) -> None:
    """Raise if tuning changes the baseline's size: its trials would be matched to the first trial, but the tuned baseline would not."""
    own = [{**baseline.overrides, **point} for point in points]
    if grown := [v.name for v in trials.variants if v.overrides in own and trials.inspections[v.name].adjusted is not None]:
        raise ConfigurationError(
            f"tune: {grown[0]!r} differs in size from {trials.variants[0].name!r}, so match would adjust the trial but not the baseline of "
            "the results: tune only settings that leave the size unchanged, or remove match"
        )


def _plan_of(study: StudySpec, variants: Sequence[Variant], folder: Path) -> Plan:
    chosen = [v for v in variants if v.excluded is None]
    if not chosen or chosen[0] is not variants[0]:
        raise ConfigurationError(f"the reference {variants[0].name!r} is excluded, so nothing can be compared with it")
    budget = study.budget.overrides if study.budget else {}
    _refuse_lost(study, chosen)
    imports = {IMPORTS: list(study.imports)} if study.imports else {}
    compositions = [{**imports, **study.set, **v.overrides, **budget} for v in chosen]
    match = asdict(study.match) if study.match else None
    found = inspect(study.recipe, compositions, match=match, cache=folder / "inspections")
    _refuse_mistakes(chosen, found)
    inspections = {v.name: i for v, i in zip(chosen, found, strict=True)}
    if study.budget is not None and study.budget.on == "flops" and (uncounted := [n for n, i in inspections.items() if not i.counts_flops]):
        raise ConfigurationError(
            f"budget: the FLOPs of {uncounted[0]!r} cannot be counted, as its model is not an attnkit task: use steps, tokens or seconds"
        )
    if study.metric.startswith("test/") and (without := [n for n, i in inspections.items() if not i.keeps_best]):
        raise ConfigurationError(
            f"metric {study.metric!r}: a test metric needs the best checkpoint, but the runs of {without[0]!r} keep none: give your "
            "LightningModule an attribute `monitor`, such as ('val/loss', 'min'), or add a ModelCheckpoint to the recipe"
        )
    left_out = [(v, v.excluded) for v in variants if v.excluded is not None]
    left_out += [(v, i.error) for v, i in zip(chosen, found, strict=True) if i.error is not None]
    kept = tuple(v for v in chosen if inspections[v.name].error is None)
    if orphans := [v for v in kept if v.reference is not None and v.reference not in {k.name for k in kept}]:
        raise ConfigurationError(f"{orphans[0].name!r} is compared with {orphans[0].reference!r}, which is left out")
    if unmade := [(v.name, reason) for v, reason in left_out if v.name in {name for pair in study.compare for name in pair}]:
        raise ConfigurationError(f"compare: the variant {unmade[0][0]!r} is left out, because: {unmade[0][1]}; remove its pairs")
    plan = Plan(
        study=study,
        folder=folder,
        variants=kept,
        left_out=tuple(left_out),
        inspections=inspections,
        runs=_runs(study, kept, inspections),
        side_effects={v.name: side_effects(v, kept, inspections, matched=study.match.adjust if study.match else None) for v in kept},
    )
    declared(study, plan)  # raises if a contrast is invalid
    return plan


def _refuse_lost(study: StudySpec, variants: Sequence[Variant]) -> None:
    """Raise if a setting of a variant or of `set` has no effect because another factor, the budget or `match` replaces it."""
    levels = {(f.name, level.label): settings(level.overrides) for f in study.factors for level in (f.baseline, *f.levels)}
    steps = study.design == "cumulative"  # a step may replace a setting of an earlier one
    pairs = {} if steps else {pair: variant.name for variant in variants for pair in combinations(variant.choices, 2)}
    for (first, second), variant in pairs.items():
        for key in levels[first].keys() & levels[second].keys():
            if levels[first][key] != levels[second][key]:
                raise ConfigurationError(
                    f"factors: {variant!r} sets {key} twice, by {'='.join(first)} and by {'='.join(second)}, but only one can take effect: "
                    "let one factor set it, or exclude the combination"
                )
    budget, adjust = settings(study.budget.overrides if study.budget else {}), study.match.adjust if study.match else None
    for name, overrides in (("set", study.set), *((repr(one.name), one.overrides) for one in variants)):
        given = settings(overrides)
        replaced = [f"budget: it replaces {key}" for key in given if budget.get(key, given[key]) != given[key]]
        replaced += [f"match: it replaces {adjust}"] if adjust in overrides and name != "set" else []
        if replaced:
            raise ConfigurationError(f"{replaced[0]} of {name}, which would have no effect: remove one of the two")
    refuse_shown(study.factors, {adjust}, by="match")


def _refuse_mistakes(variants: Sequence[Variant], found: Sequence[Inspection]) -> None:
    """Raise if the baseline has an error, or a level is a mistake in all its combinations; other failing variants are left out."""
    if found[0].error is not None:
        raise ConfigurationError(f"the reference {variants[0].name!r} cannot be built: {_explained(found[0].error)}")
    mistakes = {v.name: i.error for v, i in zip(variants, found, strict=True) if i.kind == "mistake"}
    for variant in (v for v in variants if v.name in mistakes):
        alike = [[v.name for v in variants if choice in v.choices] for choice in variant.choices] or [[]]
        if any(mistakes.keys() >= {*names} for names in alike):
            raise ConfigurationError(f"{variant.name}: {_explained(mistakes[variant.name] or '')}")


def _explained(error: str) -> str:
    """Return an error from the inspection, with a remedy if it is about a component that only this process has registered."""
    for registry in FAMILIES:
        for name in registry:
            if (unknown := f"unknown {registry.family} {name!r}") in error:
                module = registry.get(name).__module__
                todo = "move the class to a module and list that" if module == "__main__" else f"list the module {module!r}"
                cause = f"{unknown}: {name!r} is registered in this process, but the runs of a study are separate processes"
                return f"{error.partition(unknown)[0]}{cause}. To make them import it, {todo} under imports, as in imports: [my_module]"
    return error


def _runs(study: StudySpec, variants: Sequence[Variant], inspections: Mapping[str, Inspection]) -> tuple[Run, ...]:
    runs: dict[str, Run] = {}
    for seed in study.seeds:
        seeds = {kind: derived_seed(kind, seed if kind in study.vary else study.seeds[0]) for kind in SEED_KINDS}
        for variant in variants:
            inspection = inspections[variant.name]
            assert inspection.recipe is not None
            recipe = dict(inspection.recipe)
            if inspection.takes_seed:
                recipe["data"] = {**recipe["data"], "seed": seeds["data"]}
            job = {"recipe": recipe, "seeds": seeds, "test": study.metric.startswith("test/")} | (
                {"budget": asdict(study.budget)} if study.budget else {}
            )
            key = key_of(job)
            names = (*runs[key].variants, variant.name) if key in runs else (variant.name,)
            runs[key] = Run(key=key, variants=names, seed=seed, job=job)
    return tuple(runs.values())


def derived_seed(kind: str, seed: int) -> int:
    """Return a seed for one purpose, independent across purposes and seeds, and the same for all variants.

    Example:
        >>> derived_seed("data", 0) == derived_seed("data", 0), derived_seed("data", 0) == derived_seed("dropout", 0)
        (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{kind}:{seed}".encode()).digest()[:4]) >> 1


def side_effects(
    variant: Variant, variants: Sequence[Variant], inspections: Mapping[str, Inspection], *, matched: str | None = None
) -> tuple[str, ...]:
    """Return the differences from the reference that no override of either variant asks for.

    These are arguments with different values in the two variants, and arguments of the recipe that were dropped together with their
    component. An argument that only one of two swapped components takes does not count.
    """
    reference = next((v for v in variants if v.name == variant.reference), None)
    mine = inspections[variant.name]
    if reference is None or mine.recipe is None:
        return ()
    theirs = inspections[reference.name]
    asked = settings({**reference.overrides, **variant.overrides} | ({matched: None} if matched else {}))
    notes = []
    for key, (a, b) in differences(mine.recipe, theirs.recipe or {}).items():
        of_a_swap = ... in (a, b) and any(key.startswith(f"{swapped}.") for swapped in asked)
        if key.removesuffix(".name") not in asked and not of_a_swap:
            notes.append(f"{key}: {_shown(b)} -> {_shown(a)}")
    return (*notes, *(note for note in mine.notes if note not in theirs.notes))


def _shown(value: Any) -> str:
    """Return a value as text; if it is long, such as a trained tokenizer, its beginning and a hash."""
    text = "absent" if value is ... else str(value)
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return text if len(text) <= LONG else f"{text[: LONG // 4]}... ({len(text):,} characters, sha256 {digest})"
