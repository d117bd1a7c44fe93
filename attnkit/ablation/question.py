"""The question of a study, recorded before there are answers, with its seeds and those that were paid for later. No torch."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from attnkit.ablation.spec import StudySpec
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import read_json, write_json
from attnkit.worker.records import read

NO_QUESTION = (
    *("seeds", "timeout", "retries", "engine", "threads", "accept_code", "recipe", "file"),  # how the study is run
    *("lengths", "published", "tasks", "scales"),  # what the reports show
)
"""The settings that may change even if there are results, except `retries` of failures that count as outcomes."""

OPTIONAL = ("compare", "count_as_diverged")
"""The settings that older questions and files of runs lack; where they are empty, new ones lack them, too."""

RESOLVED = "variants_resolved"
"""The key of a question under which the hash of each variant's complete recipe is stored."""

FORMAT = 4
"""The format of `study.json` and of files of runs; must be increased with every change to their keys, except for optional ones."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """A look at the results.

    Attributes:
        seeds: The number of seeds, counted from the first.
        alpha: The part of alpha that the look spends.
    """

    seeds: int
    alpha: float


@dataclass(frozen=True, kw_only=True)
class AskedSeeds:
    """The seeds of a question: those the study began with, those added later, and the looks that were paid for.

    Attributes:
        seeds_at_start: The seeds that the study began with.
        seeds_added: The seeds that were added later.
        looks_added: The looks that were paid for.
        runs_before: The number of the study's runs that other studies had made before the question was recorded; 0 if unrecorded.
    """

    seeds_at_start: tuple[int, ...]
    seeds_added: tuple[int, ...] = ()
    looks_added: tuple[Look, ...] = ()
    runs_before: int = 0


def refuse_change(folder: Path, asked: Any, question: Mapping[str, Any], *, recipes: str = "") -> None:
    """Raise a `ConfigurationError` if a question differs from the one recorded before the results in a folder.

    `recipes` describes, for the message, which complete recipes differ.
    """
    if changed := [recipes if key == RESOLVED else key for key in changed_keys(asked, question)]:
        raise ConfigurationError(
            f"{folder} has results of another study: {', '.join(changed)} changed since. Changing the question once the answer is known "
            "invalidates p-values: give the study another name (equal runs are reused), or undo the change"
        )


def changed_keys(asked: Any, question: Mapping[str, Any]) -> list[str]:
    """Return the keys of a question whose values are not those that were recorded."""
    asked = asked if isinstance(asked, dict) else {}
    keys = (*question, *(key for key in (*OPTIONAL, "retries") if key in asked and key not in question))
    return [key for key in keys if asked.get(key) != question.get(key)]


def question_of(study: StudySpec) -> dict[str, Any]:
    """Return the question of a study as plain data; it must not change once there are results."""
    question: dict[str, Any] = json.loads(json.dumps({key: value for key, value in asdict(study).items() if key not in NO_QUESTION}))
    if question["tune"] and question["tune"]["better"] is None:
        del question["tune"]["better"]  # questions recorded before this key existed lack it
    for key in OPTIONAL:
        if not question[key]:
            del question[key]  # as above
    if again := {kind: times for kind, times in study.retries.items() if times and kind in study.count_as_diverged}:
        question["retries"] = again  # each gives a failing variant another chance
    return question


def read_question(folder: Path) -> dict[str, Any] | None:
    """Return the question of the results in a study's folder; None if there are no results.

    Raises:
        ConfigurationError: The file is damaged, or was written by another version of attnkit. It is not recreated, because it proves
            that the question preceded the answers.
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
            f"{folder} was made by another version of attnkit, whose studies this one cannot read: rename the study or move the folder "
            f"away, then run it again"
        )
    return dict(asked)


def check_seeds(asked: Mapping[str, Any]) -> None:
    """Raise a `ConfigurationError` if a question does not record which seeds it began with or what was paid for added ones."""
    read(AskedSeeds, {f.name: asked[f.name] for f in fields(AskedSeeds) if f.name in asked}, where="its question")


def with_added_seeds(study: StudySpec, folder: Path) -> StudySpec:
    """Return the study with the seeds that were added later, as recorded in this folder.

    Raises:
        ConfigurationError: The study names seeds that were not paid for, omits seeds of its results, or lists them in a different order,
            which would change the seeds that looks see.
    """
    asked = read_question(folder / study.name) or {}
    more = study.with_seeds(*asked.get("seeds_added", []))
    known = [*asked.get("seeds_at_start", []), *asked.get("seeds_added", [])]
    if study.decide is None and asked.get("decide") is None and [seed for seed in more.seeds if seed in known] != known:
        raise ConfigurationError(
            f"{folder / study.name} has results for the seeds {known}, but the study names {list(study.seeds)}: leaving out seeds whose "
            "results are known would allow choosing the answer. Name all of them in this order; a report can be made before all have run"
        )
    refuse_unpaid(more, asked)
    return more


def refuse_unpaid(study: StudySpec, asked: Mapping[str, Any]) -> None:
    """Raise a `ConfigurationError` if a study has seeds that its recorded question, if any, lacks."""
    known = {*asked.get("seeds_at_start", study.seeds), *asked.get("seeds_added", [])}
    if study.decide is None and (unpaid := [seed for seed in study.seeds if seed not in known]):
        raise ConfigurationError(
            f"the seeds {unpaid} were added after the first results. Looking again is testing again: remove them from the study and pay "
            f"for them with attnkit ablate seeds --add {len(unpaid)} --spend ALPHA, or plan looks in advance with decide in a new study"
        )


def add_seeds(study: StudySpec, folder: Path, count: int, *, spend: float) -> StudySpec:
    """Return a study with additional seeds, and record them in its folder, where the report finds them.

    Verdicts already reached stay. Open contrasts are compared again with all seeds, at the level `spend`; the probability of any false
    verdict of the study is then at most alpha plus everything spent.

    Raises:
        ConfigurationError: There are no results yet, the study plans its own looks, `count` is below 1, or `spend` is not between 0 and 1.
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
        raise ConfigurationError("the study plans its looks in advance (decide); more seeds need a new study with a larger max_seeds")
    first = max(*study.seeds, *asked.get("seeds_added", [])) + 1
    more = with_added_seeds(study, folder).with_seeds(*range(first, first + count))
    added = [seed for seed in more.seeds if seed not in asked["seeds_at_start"]]
    paid = [*asked.get("looks_added", []), {"seeds": len(more.seeds), "alpha": spend}]
    write_json(file, asked | {"seeds_added": added, "looks_added": paid})
    return more
