"""The answers to a study: the results and provenance of its runs, read from their folders or from the file that comes with a report.

That file, `runs.jsonl.gz`, has a JSON line for the study, its question and its plan, followed by one for each run. If the study was tuned,
the same follows for its trials, without curves and measurements by example. For a study of several tasks and sizes, it has a line for the
whole study, followed by the lines of each cell.
"""

import gzip
import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from attnkit.ablation.cells import cells
from attnkit.ablation.plan import Plan, StoredPlan
from attnkit.ablation.question import FORMAT, OPTIONAL, check_seeds, read_question
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.tuning import Ended, check_tuned, stored_trials, trials_behind
from attnkit.ablation.validity import Acceptances, Accepted, acceptances
from attnkit.files import LARGEST_JSON, parse_json, read_bytes, read_gzip, short_path
from attnkit.registry import ConfigurationError, nearest
from attnkit.worker.folder import FINAL, PROVENANCE, Result, Status, known, result_of, status_of, stored
from attnkit.worker.provenance import Provenance
from attnkit.worker.records import read

RUNS = "runs.jsonl.gz"
SUFFIXES = (".jsonl", ".jsonl.gz")
LONG = ("curve", "lengths", "examples", "example_set", "starts")  # measurements of trials that no report shows, left out for their size


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer of one run."""

    status: Mapping[str, Any]  # its state, as `attnkit.worker.folder.status_of` returns it
    result: Mapping[str, Any] = field(default_factory=dict)  # its measurements; empty if there are none
    provenance: Provenance | None = None  # its provenance, if known


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Everything that a report is computed from, except the plan."""

    runs: Mapping[str, Answer]  # the runs by their keys
    asked: Mapping[str, Any]  # the question as recorded before the first run; empty if it was not recorded
    accepted: tuple[Accepted, ...]  # differences in code, packages, data or processor that were accepted, so that the runs count
    trials: "tuple[Plan, Answers] | None" = None  # those of the trials by which the study was tuned; None if it was not, or they are lost


def answers_of(plan: Plan) -> Answers:
    """Return the answers in the folders of a plan's runs, and of the trials by which it was tuned.

    Until tuning has chosen values, all runs are pending: those of the untuned variants, which another study may have made, are no answers.
    """
    untuned = Answer(status={"status": "pending"}) if plan.study.tune is not None and not plan.tuned else None
    runs = {run.key: untuned or answer_in(plan.run_folder(run.key)) for run in plan.runs}
    asked = read_question(plan.study_folder) or {}
    return Answers(runs=runs, asked=asked, accepted=acceptances(plan.study_folder), trials=_trials_of(plan) if plan.tuned else None)


def _trials_of(plan: Plan) -> tuple[Plan, Answers] | None:
    if (trials := plan.trials or stored_trials(plan)) is None:
        return None
    answers = answers_of(trials)
    try:
        check_tuned(plan, trials, _ended(trials, answers))
    except ConfigurationError:  # they were removed, or made again since
        return None
    return trials, answers


def _ended(plan: Plan, answers: Answers) -> Ended:
    return {key: (plan.study.counted(one.status)["status"], one.result.get("metrics", {})) for key, one in answers.runs.items()}


def answer_in(folder: Path) -> Answer:
    """Return the answer in the folder of a run."""
    status = status_of(folder)  # read first: a run that is just ending writes its result before its status
    try:
        result = result_of(folder)
    except ConfigurationError:  # the status reports this too
        result = {}
    return Answer(status=status, result=result, provenance=stored(Provenance, folder / PROVENANCE))


def packed(plan: Plan, answers: Answers) -> bytes:
    """Return the bytes of a file from which `unpacked` restores a plan and its answers, in order; equal answers give equal bytes."""
    return _compressed(_lines(plan, answers))


def packed_cells(study: StudySpec, found: Mapping[str, tuple[Plan, Answers]]) -> bytes:
    """Return the bytes of the file of a study of several tasks and sizes, from each cell's plan and answers, by name.

    The first line holds the study and the number of lines of each cell; those lines follow, as they would be in the cell's own file.
    """
    lines = {name: _lines(*one) for name, one in found.items()}
    whole = _short(asdict(study)) | {"tasks": {name: _short(asdict(task)) for name, task in study.tasks.items()}}
    head = {"format": FORMAT, "whole": whole, "cells": {name: len(those) for name, those in lines.items()}}
    return _compressed([head, *(line for those in lines.values() for line in those)])


def _compressed(lines: list[dict[str, Any]]) -> bytes:
    return gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode(), mtime=0)


def _short(section: dict[str, Any]) -> dict[str, Any]:
    section = {key: value for key, value in section.items() if key not in OPTIONAL or value}
    return section if section["recipe"] is None else section | {"recipe": short_path(section["recipe"])}


def _lines(plan: Plan, answers: Answers) -> list[dict[str, Any]]:
    trials = [] if answers.trials is None else _block(*answers.trials, without=LONG)
    head, *runs = _block(plan, answers)
    study = {"format": FORMAT, "study": _short(asdict(plan.study))}
    return [study | ({"trials": len(trials)} if trials else {}) | head, *runs, *trials]


def _block(plan: Plan, answers: Answers, *, without: Collection[str] = ()) -> list[dict[str, Any]]:
    kept = plan.stored()
    for inspection in kept["inspections"].values():
        inspection["sources"] = {}  # paths on this machine
    accepted = asdict(Acceptances(accepted=answers.accepted))
    lines: list[dict[str, Any]] = [{"format": FORMAT, "plan": kept, "asked": dict(answers.asked), "accepted": accepted}]
    for key, answer in answers.runs.items():
        provenance = None if answer.provenance is None else asdict(answer.provenance)
        status = answer.status if answer.status["status"] in FINAL else {"status": "pending"}
        result = {name: value for name, value in answer.result.items() if name not in without}
        lines.append({"key": key, "status": status, "result": result, "provenance": provenance})
    return lines


def whole_in(name: str | Path) -> StudySpec | None:
    """Return the study of several tasks and sizes stored in a file; None if the file holds a single study or `name` selects a cell."""
    file, cell = _named(str(name))
    if cell:
        return None
    with _refusing(file):
        return _parts(file)[0]


def unpacked(name: str | Path, folder: Path) -> tuple[Plan, Answers]:
    """Return the plan and the answers in a file that came with a report, compressed or not; reports on them go to `folder`.

    `FILE:CELL` selects a cell of a study of several tasks and sizes.
    """
    file, cell = _named(str(name))
    with _refusing(file):
        whole, parts = _parts(file)
    if whole is None and cell:
        raise ConfigurationError(f"{file} holds the runs of a single study: leave out :{cell}")
    if cell not in parts:
        first, near = next(iter(parts)), nearest(cell, parts)
        raise ConfigurationError(f"{file} has {len(parts)} cells; choose one, as in {file}:{first}.{near} Cells: {', '.join(parts)}")
    with _refusing(file):
        plan, answers = _answered(parts[cell], folder)
        study = plan.study if whole is None else next(one.study for one in cells(whole) if one.name == cell)
        added = plan.study.seeds[len(study.seeds) :]
        if plan.study != replace(study, recipe=plan.study.recipe, seeds=(*study.seeds, *added)):
            raise ConfigurationError(f"the study of {cell} does not match the whole study")
        return plan, answers


def _parts(file: Path) -> tuple[StudySpec | None, dict[str, list[bytes]]]:
    """Return the study of several tasks and sizes and the lines of each of its cells; for a single study, None and all lines."""
    content = read_bytes(file, limit=LARGEST_JSON)
    lines = (read_gzip(file) if content.startswith(b"\x1f\x8b") else content).splitlines()
    head = _head(lines)
    if "whole" not in head:
        return None, {"": lines}
    whole, counts, rest = read(StudySpec, head["whole"], where="whole"), head["cells"], iter(lines[1:])
    if list(counts) != [cell.name for cell in cells(whole)] or sum(counts.values()) != len(lines) - 1:
        raise ConfigurationError("lines are missing")
    return whole, {name: list(islice(rest, count)) for name, count in counts.items()}


@contextmanager
def _refusing(file: Path) -> Iterator[None]:
    try:
        yield
    except (ConfigurationError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{file} has no runs of a study: {error}") from error


def _head(lines: list[bytes]) -> Mapping[str, Any]:
    head = parse_json(lines[0]) if lines else None
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise ConfigurationError(f"not a file of runs written by this version of attnkit, whose first line has format {FORMAT}")
    return head


def _answered(lines: list[bytes], folder: Path) -> tuple[Plan, Answers]:
    head = _head(lines)
    study, count = read(StudySpec, head["study"], where="study"), head.get("trials", 0)
    if type(count) is not int or not 0 <= count < len(lines):
        raise ConfigurationError("lines of tuning trials are missing")
    own = len(lines) - count
    plan, answers = _read_block(lines[:own], study, folder)
    if not count:
        return plan, answers
    trials, tried = _read_block(lines[own:], trials_behind(plan)[0], folder)
    check_tuned(plan, trials, _ended(trials, tried))
    return plan, replace(answers, trials=(trials, tried))


def _read_block(lines: list[bytes], study: StudySpec, folder: Path) -> tuple[Plan, Answers]:
    head = _head(lines)
    kept = read(StoredPlan, head["plan"], where="plan")
    accepted = read(Acceptances, head["accepted"], where="accepted").accepted
    if len(lines) - 1 != len(kept.runs):
        raise ConfigurationError(f"its plan has {len(kept.runs)} runs, but {len(lines) - 1} follow: it was cut off, or files were joined")
    runs = {line["key"]: _read_answer(line) for line in map(parse_json, lines[1:])}
    plan = Plan(study=study, folder=folder, **vars(kept))
    if missing := [run.key for run in plan.runs if run.key not in runs]:
        raise ConfigurationError(f"run {missing[0]} is missing")
    plan.check()
    if asked := dict(head["asked"]):
        check_seeds(asked)
    return plan, Answers(runs=runs, asked=asked, accepted=accepted)


def _read_answer(line: Mapping[str, Any]) -> Answer:
    status = dict(line["status"])
    if status != {"status": "pending"}:
        status = known(read(Status, status, where="status"))
    result = read(Result, line["result"], where="result") if line["result"] else None
    if result is None and status["status"] == "ok":
        raise ConfigurationError("a run with status ok has no result")
    return Answer(
        status=status,
        result={} if result is None else known(result),
        provenance=None if line["provenance"] is None else read(Provenance, line["provenance"], where="provenance"),
    )


def is_packed(name: str) -> bool:
    """Return whether a study's name is that of a file of runs, or of a cell in one.

    Example:
        >>> is_packed("runs.jsonl.gz"), is_packed("runs.jsonl.gz:spelling.small"), is_packed("study.yaml:spelling.small")
        (True, True, False)
    """
    return _named(name)[0].name.endswith(SUFFIXES)


def _named(name: str) -> tuple[Path, str]:
    file, _, cell = name.rpartition(":")
    return (Path(file), cell) if file.endswith(SUFFIXES) else (Path(name), "")
