"""The plan of a study and its files: the question, recorded before there are answers, and the plan, for reports. No torch.

runs/ablations/runs/<key>/    a run; studies share them
runs/ablations/<study>/       study.json, plan.json, report.*
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from attnkit.ablation.design import Variant, differences
from attnkit.ablation.spec import StudySpec
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Inspection
from attnkit.worker.folder import key_of, read_json, read_record, status_of, stored, write_json
from attnkit.worker.records import read

NO_QUESTION = (
    *("seeds", "timeout", "retries", "engine", "threads", "accept_code", "recipe", "file"),  # how the study is run
    *("lengths", "published", "tasks", "scales"),  # what its reports show
)
"""The settings that may change once there are results."""

RESOLVED = "variants_resolved"
"""The key of a question that has the hash of the complete recipe of each variant."""

SHOWN = 6  # the most settings that a message names

FORMAT = 4
"""The format of `study.json` and of files of runs; any change to their keys needs a new number."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A look at the results.

    Attributes:
        seeds: The number of seeds, from the first.
        alpha: The part of alpha that it spends.
    """

    seeds: int
    alpha: float


@dataclass(frozen=True, kw_only=True)
class AskedSeeds:
    """The seeds of a question: those with which the study began, those that were added, and the looks that were paid for.

    Attributes:
        seeds_at_start: The seeds with which it began.
        seeds_added: Those that were added.
        looks_added: The looks that were paid for.
        runs_before: How many of its runs other studies had made before it was asked; 0 also if that was not written down.
    """

    seeds_at_start: tuple[int, ...]
    seeds_added: tuple[int, ...] = ()
    looks_added: tuple[Look, ...] = ()
    runs_before: int = 0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training.

    Attributes:
        key: The name of its folder: a hash of `job`.
        variants: The variants that it is a run of; several if they are the same composition.
        seed: The seed of the study.
        job: Everything that the run depends on, as plain data.
    """

    key: str
    variants: tuple[str, ...]
    seed: int
    job: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """The outcome of tuning for a variant.

    Attributes:
        chosen: The best values, by key.
        means: The metric's mean over the seeds of tuning, by combination of values; None if a run diverged.
        edges: The keys whose best value is the lowest or the highest number that was tried: a better one may lie beyond.
    """

    chosen: Mapping[str, Any]
    means: tuple[tuple[Mapping[str, Any], float | None], ...]
    edges: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """The part of a plan that is kept for its report.

    Attributes:
        variants: The variants that are run.
        left_out: The variants that are not, each with the reason.
        inspections: The inspection of each variant, by name.
        runs: The runs in the order in which they start: seed by seed, so that a study that is stopped early is still paired.
        side_effects: Differences from the reference that the study does not ask for, by variant.
        tuned: The outcome of tuning, by variant; empty if the study does not tune, or its trials are not finished.
    """

    variants: tuple[Variant, ...]
    left_out: tuple[tuple[Variant, str], ...]
    inspections: Mapping[str, Inspection]
    runs: tuple[Run, ...]
    side_effects: Mapping[str, tuple[str, ...]]
    tuned: Mapping[str, Tuned] = field(default_factory=dict)

    @property
    def compositions(self) -> dict[str, str]:
        """The key of the complete recipe of each variant."""
        return {name: key_of(i.recipe) for name, i in self.inspections.items() if i.recipe is not None}

    @property
    def limits(self) -> tuple[str, ...]:
        """Sentences about effects of the user's own classes that the study can neither control nor measure."""
        return tuple(dict.fromkeys(limit for v in self.variants for limit in self.inspections[v.name].limits))

    @property
    def key_by_variant(self) -> dict[tuple[str, int], str]:
        """The key of the run of each variant and seed."""
        return {(variant, run.seed): run.key for run in self.runs for variant in run.variants}

    @property
    def same(self) -> dict[str, str]:
        """The variants that are the same composition as their reference, with that reference."""
        keys, seeds = self.key_by_variant, {run.seed for run in self.runs}
        return {v.name: v.reference for v in self.variants if v.reference and all(keys[v.name, s] == keys[v.reference, s] for s in seeds)}

    @property
    def twins(self) -> dict[str, str]:
        """The variants that are the same composition as an earlier one, which is not their reference, with that variant."""
        first: dict[tuple[str, ...], str] = {}
        keys, seeds = self.key_by_variant, sorted({run.seed for run in self.runs})
        earlier = {v.name: first.setdefault(tuple(keys[v.name, s] for s in seeds), v.name) for v in self.variants}
        return {name: twin for name, twin in earlier.items() if twin != name and name not in self.same}


@dataclass(frozen=True, kw_only=True)
class Plan(StoredPlan):
    """The variants and runs of a study.

    Attributes:
        study: The study.
        folder: The folder of all results.
        trials: The plan of the trials that run first, if the study tunes. Until they are finished, `runs` are those of untuned variants.
    """

    study: StudySpec
    folder: Path
    trials: "Plan | None" = None

    @property
    def study_folder(self) -> Path:
        """The folder of the report."""
        return self.folder / self.study.name

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """The runs of tuning, and those of the results once tuning has chosen."""
        if self.trials is None:
            return self.runs
        return (*self.trials.runs, *(self.runs if self.tuned else ()))

    def stored(self) -> dict[str, Any]:
        """Return the part that is kept for the report, as plain data."""
        return asdict(StoredPlan(**{f.name: getattr(self, f.name) for f in fields(StoredPlan)}))

    def run_folder(self, key: str) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / key

    def check(self) -> None:
        """Raise a `ConfigurationError` if variants, runs and inspections do not match, as in a damaged file."""
        names = {v.name for v in self.variants}
        matches = {(name, seed) for name in names for seed in self.study.seeds} == set(self.key_by_variant)
        matches &= names <= self.inspections.keys() & self.side_effects.keys() and {v.reference for v in self.variants} <= {*names, None}
        if not matches or any(key_of(run.job) != run.key for run in self.runs):
            raise ConfigurationError("variants, runs and inspections do not match")

    def lock(self) -> None:
        """Record the question before there are answers. More seeds do not make it another question, but must be paid for.

        Raises:
            ConfigurationError: There are results of this name for another question, or seeds that were not paid for.
        """
        file = self.study_folder / "study.json"
        asked = read_question(self.study_folder)
        question = question_of(self.study)
        named = {v.name for v in self.study.expanded()}  # a search adds trials, which depend on answers
        question[RESOLVED] = {name: key for name, key in self.compositions.items() if name in named}
        if asked is None:
            before = sum(status_of(self.run_folder(run.key))["status"] in ("ok", "diverged") for run in self.runs)
            asked = question | {"format": FORMAT, "seeds_at_start": list(self.study.seeds), "runs_before": before}
            write_json(file, asked)
        refuse_change(self.study_folder, asked, question, recipes={name: i.recipe or {} for name, i in self.inspections.items()})
        added = [seed for seed in self.study.seeds if seed not in asked["seeds_at_start"]]
        if unpaid := [seed for seed in added if seed not in asked.get("seeds_added", [])]:
            raise ConfigurationError(
                f"the seeds {unpaid} were added after the first results. Looking again is testing again: attnkit ablate seeds --add "
                f"{len(unpaid)} --spend ALPHA pays for it, and decide: in a new study plans its looks beforehand"
            )
        write_json(self.study_folder / "plan.json", self.stored())


def refuse_change(folder: Path, asked: Any, question: Mapping[str, Any], *, recipes: Mapping[str, Mapping[str, Any]] | None = None) -> None:
    """Raise a `ConfigurationError` if a question differs from the one that was recorded before the results in a folder.

    `recipes` are the complete recipes of the variants, with which those of the results are compared.
    """
    asked = asked if isinstance(asked, dict) else {}
    if changed := [key for key in question if asked.get(key) != question[key]]:
        named = [key if key != RESOLVED else _recipes(folder, asked, question, recipes or {}) for key in changed]
        raise ConfigurationError(
            f"{folder} has results of another study: {', '.join(named)} changed since. Changing the question after the answer is known "
            "makes p-values invalid; give the study another name (equal runs are reused), or undo the change"
        )


def _recipes(folder: Path, asked: Mapping[str, Any], question: Mapping[str, Any], recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """Return which variants have other recipes than those of the results, and the settings that differ in the first of them."""
    before, now = asked.get(RESOLVED) or {}, question[RESOLVED]
    names = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    text = f"the complete recipe{'' if len(names) == 1 else 's'} of {', '.join(names)}"
    plan = stored(StoredPlan, folder / "plan.json")
    old = plan.inspections.get(names[0]) if plan else None
    if old is None or old.recipe is None or names[0] not in recipes:
        return text
    found = list(differences(old.recipe, recipes[names[0]]))
    return f"{text} (in {names[0]}: {', '.join(found[:SHOWN])}{', ...' if len(found) > SHOWN else ''})"


def question_of(study: StudySpec) -> dict[str, Any]:
    """Return the question of a study, as plain data: it must not change once there are results."""
    question: dict[str, Any] = json.loads(json.dumps({key: value for key, value in asdict(study).items() if key not in NO_QUESTION}))
    if question["tune"] and question["tune"]["better"] is None:
        del question["tune"]["better"]  # questions recorded before this key existed have none
    return question


def read_question(folder: Path) -> dict[str, Any] | None:
    """Return the question of the results in a study's folder; None if there are no results.

    Raises:
        ConfigurationError: The file is damaged, or another version of attnkit wrote it. It is not recreated: it shows that the question
            came before the answers.
    """
    file = folder / "study.json"
    if (asked := read_json(file)) is None:
        return None
    try:
        check_seeds(asked if isinstance(asked, dict) else {})
    except ConfigurationError as error:
        raise ConfigurationError(f"{file} is damaged: it does not say with which seeds the study began ({error}); restore it") from error
    if asked.get("format") != FORMAT:
        raise ConfigurationError(
            f"{folder} was made by another version of attnkit, whose studies this one cannot read: give the study another name, or "
            f"move the folder away, and run it again"
        )
    return dict(asked)


def check_seeds(asked: Mapping[str, Any]) -> None:
    """Raise a `ConfigurationError` if a question does not say with which seeds it began, or what was paid for added ones."""
    read(AskedSeeds, {f.name: asked[f.name] for f in fields(AskedSeeds) if f.name in asked}, where="its question")


def stored_plan(study: StudySpec, folder: Path) -> Plan | None:
    """Return the plan as it was when its runs began, from its file alone; None if there is none for this question and these seeds.

    A report thus does not depend on how the current code reads the study.
    """
    file = folder / study.name / "plan.json"
    asked, stored = read_question(file.parent), read_record(StoredPlan, file)
    if asked is None or stored is None or any(asked.get(key) != value for key, value in question_of(study).items()):
        return None
    plan = Plan(study=study, folder=folder, **vars(stored))
    if {run.seed for run in plan.runs} != set(study.seeds):
        return None
    try:
        plan.check()
    except ConfigurationError as error:
        raise ConfigurationError(f"{file} is damaged: {error}; remove it, and it will be recreated") from error
    return plan


def with_added_seeds(study: StudySpec, folder: Path) -> StudySpec:
    """Return the study with the seeds that were added to its results in this folder.

    Raises:
        ConfigurationError: The study leaves out seeds of its results, or lists them in another order, so that looks would see other ones.
    """
    asked = read_question(folder / study.name) or {}
    more = study.with_seeds(*asked.get("seeds_added", []))
    known = [*asked.get("seeds_at_start", []), *asked.get("seeds_added", [])]
    if study.decide is None and asked.get("decide") is None and [seed for seed in more.seeds if seed in known] != known:
        raise ConfigurationError(
            f"{folder / study.name} has results for the seeds {known}, but the study names {list(study.seeds)}: leaving out seeds whose "
            "results are known would allow choosing the answer. Name all of them in this order; a report may be made before all have run"
        )
    return more


def add_seeds(study: StudySpec, folder: Path, count: int, *, spend: float) -> StudySpec:
    """Return a study with more seeds than when its results began, and store them in its folder, where the report finds them.

    Verdicts that were reached stay. Open contrasts are compared again with all seeds, at the level `spend`; the probability of any false
    verdict of the study is then at most alpha plus all that was spent.

    Raises:
        ConfigurationError: There are no results yet, the study plans its own looks, or a number is not above 0.
    """
    file = folder / study.name / "study.json"
    asked = read_question(file.parent)
    if asked is None:
        raise ConfigurationError(f"{file.parent} has no results yet: set seeds in the study file instead")
    if count < 1:
        raise ConfigurationError(f"--add must be at least 1, but is {count}")
    if not 0 < spend < 1:
        raise ConfigurationError(f"--spend must be between 0 and 1, but is {spend}: it is added to the study's alpha, {study.alpha:g}")
    if study.decide is not None:
        raise ConfigurationError("the study decides by looks that were planned beforehand; more seeds need a new study with more max_seeds")
    first = max(*study.seeds, *asked.get("seeds_added", [])) + 1
    more = with_added_seeds(study, folder).with_seeds(*range(first, first + count))
    added = [seed for seed in more.seeds if seed not in asked["seeds_at_start"]]
    paid = [*asked.get("looks_added", []), {"seeds": len(more.seeds), "alpha": spend}]
    write_json(file, asked | {"seeds_added": added, "looks_added": paid})
    return more
