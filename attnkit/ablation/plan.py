"""The plan of a study, and its stored form for reports. No torch.

runs/ablations/runs/<key>/    a run; studies share them
runs/ablations/<study>/       study.json, plan.json, report.*
runs/ablations/<study>.tuning/    study.json, plan.json, tune.json
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from attnkit.ablation.design import Variant, differences
from attnkit.ablation.question import FORMAT, RESOLVED, changed_keys, question_of, read_question, refuse_change, refuse_unpaid
from attnkit.ablation.spec import REPLACED, StudySpec, is_possible_outcome
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Inspection, Underway
from attnkit.worker.folder import FINAL, FINISHED, UNDERWAY, key_of, read_json, read_record, result_of, status_of, stored, write_json

TUNE = "tune.json"  # the section `tune` of a study, in the folder of its trials
SHOWN = 6  # maximum number of settings named in a message


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run.

    Attributes:
        key: The name of its folder: a hash of `job`.
        variants: The variants that the run belongs to; several if they are the same composition.
        seed: The study's seed that the run uses.
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
        means: The metric's mean over the tuning seeds, by combination of values; None if a run diverged.
        edges: The keys whose best value is the lowest or highest number tried, so that a better one may lie beyond; all keys if every
            trial diverged.
    """

    chosen: Mapping[str, Any]
    means: tuple[tuple[Mapping[str, Any], float | None], ...]
    edges: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class StoredPlan:
    """The part of a plan that is stored for its report.

    Attributes:
        variants: The variants to run.
        left_out: The variants that are not run, each with the reason.
        inspections: The inspection of each variant, by name.
        runs: The runs in starting order: seed by seed, so that a study stopped early is still paired.
        side_effects: Differences from the reference that the study does not ask for, by variant.
        tuned: The outcome of tuning, by variant; empty if the study does not tune or its trials have not finished.
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
        """Sentences on effects of the user's own classes that the study can neither control nor measure."""
        return tuple(dict.fromkeys(limit for v in self.variants for limit in self.inspections[v.name].limits))

    @property
    def key_by_variant(self) -> dict[tuple[str, int], str]:
        """The key of the run of each variant and seed."""
        return {(variant, run.seed): run.key for run in self.runs for variant in run.variants}

    @property
    def same(self) -> dict[str, str]:
        """Maps each variant that is the same composition as its reference to that reference."""
        keys, seeds = self.key_by_variant, {run.seed for run in self.runs}
        return {v.name: v.reference for v in self.variants if v.reference and all(keys[v.name, s] == keys[v.reference, s] for s in seeds)}

    @property
    def twins(self) -> dict[str, str]:
        """Maps each variant that is the same composition as an earlier one, other than its reference, to that earlier variant."""
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
        trials: The plan of the tuning trials, which run first, if the study tunes. Until they finish, `runs` are those of untuned variants.
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
        """The tuning runs and, once tuning has chosen values, those of the results."""
        if self.trials is None:
            return self.runs
        return (*self.trials.runs, *(self.runs if self.tuned else ()))

    def stored(self) -> dict[str, Any]:
        """Return the part that is stored for the report, as plain data."""
        return asdict(StoredPlan(**{f.name: getattr(self, f.name) for f in fields(StoredPlan)}))

    def run_folder(self, key: str) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / key

    def state(self, run: Run) -> dict[str, Any]:
        """Return the state of a run in its folder, as the study counts it; see `StudySpec.counted`."""
        return self.study.counted(status_of(self.run_folder(run.key)))

    def check(self) -> None:
        """Raise a `ConfigurationError` if variants, runs and inspections do not match, as they may in a damaged file."""
        names = {v.name for v in self.variants}
        matches = {(name, seed) for name in names for seed in self.study.seeds} == set(self.key_by_variant)
        matches &= names <= self.inspections.keys() & self.side_effects.keys() and {v.reference for v in self.variants} <= {*names, None}
        if not matches or any(key_of(run.job) != run.key for run in self.runs):
            raise ConfigurationError("variants, runs and inspections do not match")

    def lock(self) -> None:
        """Record the question before there are answers; raises as `refuse_other` does."""
        if self.trials is not None:
            known = stored(StoredPlan, self.trials.study_folder / "plan.json")
            if known is None or {run.key for run in known.runs} != {run.key for run in self.trials.runs}:  # another study made the rest
                self.lock_tuning()
        if not self.refuse_other():
            before = sum(self.state(run)["status"] in FINISHED for run in self.runs)
            recorded = {"seeds_at_start": list(self.study.seeds), "runs_before": before, "recipe": Path(self.study.recipe).name}
            write_json(self.study_folder / "study.json", self._question() | {"format": FORMAT} | recorded)
        write_json(self.study_folder / "plan.json", self.stored())

    def lock_tuning(self) -> None:
        """Record the question of the trials, and how they tune, before the first of them; raises as `refuse_other` does."""
        assert self.trials is not None
        self._refuse_other_tuning(self.trials)
        write_json(self.trials.study_folder / TUNE, question_of(self.study)["tune"])
        self.trials.lock()

    def refuse_other(self) -> bool:
        """Return whether there are results under this name. Additional seeds do not change the question, but must be paid for.

        Until tuning has chosen values, the plan's complete recipes are those of the trials, so they are compared with the trials' question.
        A question may change as long as none of its runs has given an answer, as when its metric was misspelt.

        Raises:
            ConfigurationError: The results or trials under this name are for another question, or the study has seeds that were not paid
                for.
        """
        is_known = self._refuse_other_results()
        if self.trials is not None and not (is_known and self.tuned):
            self._refuse_other_tuning(self.trials)
        return is_known

    def _refuse_other_results(self) -> bool:
        if (asked := read_question(self.study_folder)) is None:
            return False
        question, before = self._question(), asked.get(RESOLVED) or {}
        is_tuned = self.trials is None or bool(self.tuned)
        recipes = self._changed_recipes(before, question[RESOLVED]) if is_tuned else ""
        try:
            refuse_change(self.study_folder, asked, question | ({} if is_tuned else {RESOLVED: asked.get(RESOLVED)}), recipes=recipes)
        except ConfigurationError:
            if self._has_answers(asked):
                raise
            return False
        refuse_unpaid(self.study, asked)
        return True

    def _refuse_other_tuning(self, trials: "Plan") -> None:
        """Raise a `ConfigurationError` if trials under this name tuned in another way; their own question lacks their number."""
        asked, tune = read_question(trials.study_folder), question_of(self.study)["tune"]
        before = read_json(trials.study_folder / TUNE)
        if asked is not None and isinstance(before, dict) and before != tune and trials._has_answers(asked):
            changed = [f"tune.{key}" for key in {**before, **tune} if before.get(key) != tune.get(key)]
            raise ConfigurationError(
                f"{trials.study_folder} has trials of another tuning: {', '.join(changed)} changed since. Tuning in another way once "
                "trials are known would tune by chance: give the study another name (equal trials are reused), or undo the change"
            )
        trials.refuse_other()

    def _has_answers(self, asked: Mapping[str, Any]) -> bool:
        """Return False only if runs of a recorded question have ended or been interrupted, and none has shown its metric or diverged."""
        earlier, metric = stored(StoredPlan, self.study_folder / "plan.json"), str(asked.get("metric"))
        begun = 0
        for run in () if earlier is None else earlier.runs:
            folder = self.run_folder(run.key)
            state, underway = status_of(folder), stored(Underway, folder / UNDERWAY)
            status = state["status"]
            declares = asked.get("count_as_diverged") or self.study.count_as_diverged  # either question makes it an answer
            is_outcome = status == "diverged" or (declares and is_possible_outcome(state))
            shown = [result_of(folder).get("metrics", {}) if status in FINAL else {}, *(underway.curve if underway else ())]
            if is_outcome or any({metric, metric.replace("test/", "val/")} & one.keys() for one in shown):
                return True
            if any((self.folder / REPLACED).glob(f"{run.key}-*")):  # a stale run
                return True
            begun += status in (*FINAL, "interrupted")
        return not begun  # runs that were removed may have had answers

    def _question(self) -> dict[str, Any]:
        named = {v.name for v in self.study.expanded()}  # not the trials that a search adds, which depend on answers
        return question_of(self.study) | {RESOLVED: {name: key for name, key in self.compositions.items() if name in named}}

    def _changed_recipes(self, before: Mapping[str, str], now: Mapping[str, str]) -> str:
        """Describe which variants' recipes differ from those of the results, and which settings differ in the first of them."""
        if not (names := [name for name in {**before, **now} if before.get(name) != now.get(name)]):
            return ""
        text = f"the complete recipe{'' if len(names) == 1 else 's'} of {', '.join(names)}"
        earlier, new = stored(StoredPlan, self.study_folder / "plan.json"), self.inspections.get(names[0])
        old = earlier.inspections.get(names[0]) if earlier else None
        if old is None or old.recipe is None or new is None:
            return text
        found = list(differences(old.recipe, new.recipe or {}))
        return f"{text} (in {names[0]}: {', '.join(found[:SHOWN])}{', ...' if len(found) > SHOWN else ''})"


def stored_plan(study: StudySpec, folder: Path) -> Plan | None:
    """Return the plan as it was when its runs began, from its file alone; None if the file has none for this question and these seeds.

    A report thus does not depend on how the current code reads the study. None is also returned if the recipe's file name has changed: then
    the recipe must be read, because it may be a different one.
    """
    file = folder / study.name / "plan.json"
    asked, stored = read_question(file.parent), read_record(StoredPlan, file)
    if asked is None or stored is None or changed_keys(asked, question_of(study)):
        return None
    if asked.get("recipe", name := Path(study.recipe).name) != name:
        return None
    plan = Plan(study=study, folder=folder, **vars(stored))
    if {run.seed for run in plan.runs} != set(study.seeds):
        return None
    try:
        plan.check()
    except ConfigurationError as error:
        raise ConfigurationError(f"{file} is damaged: {error}; remove it and it will be recreated") from error
    return plan
