"""The answers to a study: what its runs measured and were made by, from their folders, or from the file that a report comes with.

That file, `runs.jsonl.gz`, has a line of JSON for the study, its question and its plan, then one for each run.
"""

import gzip
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from attnkit.ablation.plan import FORMAT, Plan, StoredPlan, check_seeds, read_question
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.validity import Acceptances, Accepted, acceptances
from attnkit.files import LARGEST_JSON, parse_json, read_bytes, read_gzip, short_path
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import FINAL, PROVENANCE, Result, Status, known, result_of, status_of, stored
from attnkit.worker.provenance import Provenance
from attnkit.worker.records import read

RUNS = "runs.jsonl.gz"
SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass(frozen=True, kw_only=True)
class Answer:
    """A run."""

    status: Mapping[str, Any]  # its state, as `attnkit.worker.folder.status_of` returns it
    result: Mapping[str, Any] = field(default_factory=dict)  # its measurements; empty if there are none
    provenance: Provenance | None = None  # its provenance, if that is known


@dataclass(frozen=True, kw_only=True)
class Answers:
    """Everything that a report is computed from, besides the plan."""

    runs: Mapping[str, Answer]  # the runs by their keys
    asked: Mapping[str, Any]  # the question as it was written down before the first run; empty if it was not
    accepted: tuple[Accepted, ...]  # the differences in code, packages, data or processor despite which it counts


def answers_of(plan: Plan) -> Answers:
    """Return the answers in the folders of a plan's runs."""
    runs = {run.key: answer_in(plan.run_folder(run.key)) for run in plan.runs}
    return Answers(runs=runs, asked=read_question(plan.study_folder) or {}, accepted=acceptances(plan.study_folder))


def answer_in(folder: Path) -> Answer:
    """Return the answer in the folder of a run."""
    status = status_of(folder)  # first: a run that ends now writes its result before its status
    try:
        result = result_of(folder)
    except ConfigurationError:  # as its status says, too
        result = {}
    return Answer(status=status, result=result, provenance=stored(Provenance, folder / PROVENANCE))


def packed(plan: Plan, answers: Answers) -> bytes:
    """Return the file from which `unpacked` returns a plan and its answers, in their order; equal ones have equal files."""
    study = asdict(plan.study) | {"recipe": short_path(plan.study.recipe)}
    kept = plan.stored()
    for inspection in kept["inspections"].values():
        inspection["sources"] = {}  # paths on this machine
    accepted = asdict(Acceptances(accepted=answers.accepted))
    head = {"format": FORMAT, "study": study, "plan": kept, "asked": dict(answers.asked), "accepted": accepted}
    lines = [head]
    for key, answer in answers.runs.items():
        provenance = None if answer.provenance is None else asdict(answer.provenance)
        status = answer.status if answer.status["status"] in FINAL else {"status": "pending"}
        lines.append({"key": key, "status": status, "result": answer.result, "provenance": provenance})
    return gzip.compress("".join(f"{json.dumps(line)}\n" for line in lines).encode(), mtime=0)


def unpacked(file: Path, folder: Path) -> tuple[Plan, Answers]:
    """Return the plan and the answers in a file that a report came with, compressed or not; reports on them are written in `folder`.

    Raises:
        ConfigurationError: It is not such a file, or is damaged.
    """
    content = read_bytes(file, limit=LARGEST_JSON)
    content = read_gzip(file) if content.startswith(b"\x1f\x8b") else content
    try:
        head, *lines = (parse_json(line) for line in content.splitlines())
        if not isinstance(head, dict) or head.get("format") != FORMAT:
            raise ConfigurationError(f"it is not a file of runs of this version of attnkit, which begins with format {FORMAT}")
        study = read(StudySpec, head["study"], where="study")
        kept = read(StoredPlan, head["plan"], where="plan")
        accepted = read(Acceptances, head["accepted"], where="accepted").accepted
        runs = {line["key"]: _read_answer(line) for line in lines}
        plan = Plan(study=study, folder=folder, **vars(kept))
        if missing := [run.key for run in plan.runs if run.key not in runs]:
            raise ConfigurationError(f"it lacks the run {missing[0]}")
        plan.check()
        if asked := dict(head["asked"]):
            check_seeds(asked)
    except (ConfigurationError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigurationError(f"{file} has no runs of a study: {error}") from error
    return plan, Answers(runs=runs, asked=asked, accepted=accepted)


def _read_answer(line: Mapping[str, Any]) -> Answer:
    status = dict(line["status"])
    if status != {"status": "pending"}:
        status = known(read(Status, status, where="status"))
    result = read(Result, line["result"], where="result") if line["result"] else None
    if result is None and status["status"] == "ok":
        raise ConfigurationError("a run that is ok has no result")
    return Answer(
        status=status,
        result={} if result is None else known(result),
        provenance=None if line["provenance"] is None else read(Provenance, line["provenance"], where="provenance"),
    )


def is_packed(name: str) -> bool:
    """Return whether the name of a study is that of a file of runs."""
    return name.endswith(SUFFIXES)
