"""The plan of a study: which runs there are, which compositions are left out and why, and what differs between them. No torch."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any

from attnkit import __version__
from attnkit.ablation.design import Variant, layer
from attnkit.ablation.inspection import Inspection, as_plain, inspect
from attnkit.ablation.store import key_of, read_json, write_json
from attnkit.ablation.study import SEED_KINDS, Study, read_question
from attnkit.ablation.tuning import Tuned, best_of, trials_of
from attnkit.registry import ConfigurationError

NO_QUESTION = ("seeds", "timeout", "retries", "engine", "recipe", "file", "lengths", "published")
"""What of a study may change when there are results: how it is run, and what its report shows."""


STORED = ("variants", "left_out", "inspections", "runs", "side_effects", "tuned")
"""What of a plan is kept for its report."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training.

    Attributes:
        key: Names its folder: a hash of `job`.
        variants: Which variants it is a run of; several if they are the same composition.
        seed: The seed of the study.
        job: All that the run depends on, as plain data.
    """

    key: str
    variants: tuple[str, ...]
    seed: int
    job: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study comes to.

    Attributes:
        study: The study.
        folder: Of all results.
        variants: Those that are run.
        left_out: Those that are not, each with the reason.
        inspections: What each variant is, by name.
        runs: In the order in which they are begun: seed by seed, so that a study that is stopped early is still paired.
        side_effects: What differs from the reference beyond what was asked for, by variant.
        trials: The plan of what must be run before, if the study tunes.
        tuned: What those trials found, by variant; empty if they are not all run. Until then the runs are those of untuned variants.
    """

    study: Study
    folder: Path
    variants: tuple[Variant, ...]
    left_out: tuple[tuple[Variant, str], ...]
    inspections: Mapping[str, Inspection]
    runs: tuple[Run, ...]
    side_effects: Mapping[str, tuple[str, ...]]
    trials: "Plan | None" = None
    tuned: Mapping[str, Tuned] = field(default_factory=dict)

    @property
    def study_folder(self) -> Path:
        """Where the report is."""
        return self.folder / self.study.name

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The runs of tuning, and those of the result when it is known what they are."""
        if self.trials is None:
            return self.runs
        return (*self.trials.runs, *(self.runs if self.tuned else ()))

    def run_folder(self, key: str) -> Path:
        """Return where a run's files are."""
        return self.folder / "runs" / key

    @property
    def key_by_variant(self) -> dict[tuple[str, int], str]:
        """The key of the run of each variant and seed."""
        return {(variant, run.seed): run.key for run in self.runs for variant in run.variants}

    def lock(self) -> None:
        """Write down the question before there are answers. More seeds are no other question.

        Raises:
            ConfigurationError: There are results of this name for another question.
        """
        file = self.study_folder / "study.json"
        asked = read_question(self.study_folder)
        question = question_of(self.study)
        question["variants_resolved"] = {name: key_of(i.recipe) for name, i in self.inspections.items() if i.recipe is not None}
        if asked is None:
            asked = question | {"seeds_at_start": list(self.study.seeds)}
            write_json(file, asked)
        if changed := [k for k in question if asked.get(k) != question[k]]:
            raise ConfigurationError(
                f"{self.study_folder} has results of another study: {', '.join(changed)} changed since. Changing the question after the "
                f"answer is known makes p-values void; give the study another name (runs that are the same are used again), "
                f"or undo the change"
            )
        added = [seed for seed in self.study.seeds if seed not in asked["seeds_at_start"]]
        if added != asked.get("seeds_added", []):
            write_json(file, asked | {"seeds_added": added})
        if self.tuned:
            write_json(self.study_folder / "tuning.json", {name: asdict(tuned) for name, tuned in self.tuned.items()})
        write_json(self.study_folder / "plan.json", _plain({name: getattr(self, name) for name in STORED}))


def question_of(study: Study) -> dict[str, Any]:
    """Return what a study asks, as plain data: what must not change when there are results."""
    return {key: _plain(value) for key, value in asdict(study).items() if key not in NO_QUESTION}


def stored_plan(study: Study, folder: Path) -> Plan | None:
    """Return the plan as it was when its runs were begun, from its file alone; None if there is none for this question and these seeds.

    So a report does not depend on what the code makes of the study now.
    """
    asked, file = read_question(folder / study.name), folder / study.name / "plan.json"
    stored = read_json(file)
    if asked is None or stored is None or any(asked.get(key) != value for key, value in question_of(study).items()):
        return None
    try:
        plan = _from_stored(stored, study, folder)
        if any(key_of(run.job) != run.key for run in plan.runs):
            raise ValueError("a run has the key of another one")
        complete = {(v.name, seed) for v in plan.variants for seed in study.seeds} == set(plan.key_by_variant)
        known = {v.name for v in plan.variants} <= set(plan.inspections) & set(plan.side_effects)
        references = {v.reference for v in plan.variants if v.reference is not None} <= {v.name for v in plan.variants}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{file} is damaged ({error}); remove it, and it is made anew from the study") from error
    if {run.seed for run in plan.runs} != set(study.seeds):
        return None
    if not (complete and known and references):
        raise ConfigurationError(f"{file} is damaged: variants, runs and inspections do not match; remove it, and it is made anew")
    return plan


def _from_stored(stored: Mapping[str, Any], study: Study, folder: Path) -> Plan:
    excluded = [(Variant(**variant), reason) for variant, reason in stored["left_out"]]
    return Plan(
        study=study,
        folder=folder,
        variants=tuple(Variant(**v | {"choices": tuple(map(tuple, v["choices"]))}) for v in stored["variants"]),
        left_out=tuple(excluded),
        inspections={name: Inspection(**i) for name, i in stored["inspections"].items()},
        runs=tuple(Run(**run | {"variants": tuple(run["variants"])}) for run in stored["runs"]),
        side_effects={name: tuple(notes) for name, notes in stored["side_effects"].items()},
        tuned={name: Tuned(**t | {"means": tuple(map(tuple, t["means"]))}) for name, t in stored.get("tuned", {}).items()},
    )


def add_seeds(study: Study, folder: Path, count: int) -> Study:
    """Return a study with more seeds than when its results began, and keep them in its folder, where the report finds them.

    Raises:
        ConfigurationError: There are no results yet, or the number is not above 0.
    """
    file = folder / study.name / "study.json"
    asked = read_question(file.parent)
    if asked is None:
        raise ConfigurationError(f"{file.parent} has no results yet: set seeds in the study file, before there are any")
    if count < 1:
        raise ConfigurationError(f"--add must be at least 1, but is {count}")
    study = study.with_added_seeds(folder)
    more = study.with_seeds(*range(max(study.seeds) + 1, max(study.seeds) + 1 + count))
    write_json(file, asked | {"seeds_added": [seed for seed in more.seeds if seed not in asked["seeds_at_start"]]})
    return more


def make_plan(study: Study, folder: Path) -> Plan:
    """Return the plan of a study.

    Raises:
        ConfigurationError: A key or a level is wrong, or the baseline cannot be.
    """
    plan = _plan_of(study, study.expanded(), folder)
    if study.tune is None:
        return plan
    tuning, grid = trials_of(study, plan.variants)
    trials = _plan_of(tuning, grid, folder)
    if trials.left_out:
        raise ConfigurationError(f"tune: {trials.left_out[0][0].name} cannot be: {trials.left_out[0][1]}")
    tuned = best_of(study, plan.variants, trials)
    if tuned:
        chosen = [replace(v, overrides={**v.overrides, study.tune.key: tuned[v.name].value}) for v in plan.variants]
        plan = replace(_plan_of(study, chosen, folder), left_out=plan.left_out)
    return replace(plan, trials=trials, tuned=tuned)


def _plan_of(study: Study, variants: Sequence[Variant], folder: Path) -> Plan:
    chosen = [v for v in variants if v.excluded is None]
    if not chosen or chosen[0] is not variants[0]:
        raise ConfigurationError(f"the reference {variants[0].name!r} is excluded; nothing could be compared with it")
    budget = study.budget.overrides if study.budget else {}
    compositions = [layer({**study.set, **v.overrides, **budget}) for v in chosen]
    found = inspect(study.recipe, compositions, match=as_plain(study.match), cache=folder / "inspections")
    _refuse_mistakes(chosen, found)
    inspections = {v.name: i for v, i in zip(chosen, found, strict=True)}
    left_out = [(v, v.excluded) for v in variants if v.excluded is not None]
    left_out += [(v, i.error) for v, i in zip(chosen, found, strict=True) if i.error is not None]
    kept = tuple(v for v in chosen if inspections[v.name].error is None)
    if orphans := [v for v in kept if v.reference is not None and v.reference not in {k.name for k in kept}]:
        raise ConfigurationError(f"{orphans[0].name!r} is compared with {orphans[0].reference!r}, which is left out")
    return Plan(
        study=study,
        folder=folder,
        variants=kept,
        left_out=tuple(left_out),
        inspections=inspections,
        runs=_runs(study, kept, inspections),
        side_effects={v.name: side_effects(v, kept, inspections, matched=study.match.adjust if study.match else None) for v in kept},
    )


def _refuse_mistakes(variants: Sequence[Variant], found: Sequence[Inspection]) -> None:
    """Raise for the baseline's error, and for a level that is wrong in all its combinations; one that is wrong in some only cannot be."""
    if found[0].error is not None:
        raise ConfigurationError(f"the reference {variants[0].name!r} cannot be: {found[0].error}")
    mistakes = {v.name: i.error for v, i in zip(variants, found, strict=True) if i.kind == "mistake"}
    for variant in variants:
        for choice in variant.choices or [None]:
            having = [v.name for v in variants if choice is None or choice in v.choices] if choice else [variant.name]
            if variant.name in mistakes and all(name in mistakes for name in having):
                raise ConfigurationError(f"{variant.name}: {mistakes[variant.name]}")


def _runs(study: Study, variants: Sequence[Variant], inspections: Mapping[str, Inspection]) -> tuple[Run, ...]:
    runs: dict[str, Run] = {}
    for seed in study.seeds:
        seeds = {kind: derived_seed(kind, seed if kind in study.vary else study.seeds[0]) for kind in SEED_KINDS}
        for variant in variants:
            inspection = inspections[variant.name]
            assert inspection.recipe is not None
            data = dict(inspection.recipe["data"]) | ({"seed": seeds["data"]} if inspection.takes_seed else {})
            job = {
                "attnkit": __version__,
                "recipe": {**inspection.recipe, "data": data},
                "seeds": seeds,
                "test": study.metric.startswith("test/"),
            } | ({"budget": asdict(study.budget)} if study.budget else {})
            key = key_of(job)
            names = (*runs[key].variants, variant.name) if key in runs else (variant.name,)
            runs[key] = Run(key=key, variants=names, seed=seed, job=job)
    return tuple(runs.values())


def derived_seed(kind: str, seed: int) -> int:
    """Return a seed for one purpose: unrelated between purposes and seeds, and the same for all variants.

    Example:
        >>> derived_seed("data", 0) == derived_seed("data", 0), derived_seed("data", 0) == derived_seed("dropout", 0)
        (True, False)
    """
    return int.from_bytes(hashlib.sha256(f"{kind}:{seed}".encode()).digest()[:4]) >> 1


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted path.

    Example:
        >>> flat({"stack": {"name": "encoder", "d_model": 8}})
        {'stack.name': 'encoder', 'stack.d_model': 8}
    """
    if not isinstance(value, Mapping):
        return {path: value}
    return {k: v for key, item in value.items() for k, v in flat(item, f"{path}.{key}".lstrip(".")).items()}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return where two complete recipes differ: the values of both by dotted path; `...` stands for none."""
    a, b = flat(ours), flat(theirs)
    return {key: (a.get(key, ...), b.get(key, ...)) for key in [*a, *(k for k in b if k not in a)] if a.get(key, ...) != b.get(key, ...)}


def side_effects(
    variant: Variant, variants: Sequence[Variant], inspections: Mapping[str, Inspection], *, matched: str | None = None
) -> tuple[str, ...]:
    """Return what differs from the reference although no override of either says so.

    That is an argument that both have with different values, and one that the recipe gives and the swap of its component dropped. What
    only one of two components takes is not: it belongs to the swap.
    """
    reference = next((v for v in variants if v.name == variant.reference), None)
    mine = inspections[variant.name]
    if reference is None or mine.recipe is None:
        return ()
    theirs = inspections[reference.name]
    given = {**reference.overrides, **variant.overrides} | ({matched: None} if matched else {})
    asked = {f"{key}.{leaf}".rstrip(".") for key, value in given.items() for leaf in flat(value)}
    asked |= {*given, *(f"{key}.name" for key in given)}
    notes = []
    for key, (a, b) in differences(mine.recipe, theirs.recipe or {}).items():
        of_a_swap = ... in (a, b) and any(key.startswith(f"{swapped}.") for swapped in given)
        if key not in asked and not of_a_swap:
            notes.append(f"{key}: {_shown(b)} -> {_shown(a)}")
    return (*notes, *(note for note in mine.notes if note not in theirs.notes))


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list | tuple) else value


def _shown(value: Any) -> str:
    return "absent" if value is ... else str(value)
