"""A report comes with its runs in one file, from which anyone can recompute every number."""

import gzip
import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.answers import answers_of, packed, unpacked
from attnkit.ablation.plan import Tuned
from attnkit.ablation.question import add_seeds
from attnkit.ablation.report import markdown, write_report
from attnkit.ablation.results import Results
from attnkit.ablation.validity import accept
from attnkit.cli.ablate import ablate
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import STUDY, stored, study
from tests.ablation.test_validity import finished, make

Use = Callable[[str], None]


def results() -> Results:
    finished()
    Path("my_plugin.py").write_text("scale = 0.5  # a comment\n")
    accept(make(), "a comment")
    add_seeds(study(seeds=2), Path("runs"), 1, spend=0.01)
    plan = make()
    plan.lock()
    return Results(plan)  # a seed was added and has no runs yet


def files(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@cache
def written() -> dict[str, bytes]:
    """Return the files of the report of those results."""
    write_report(results(), Path("out"))
    return files(Path("out"))


def test_a_report_from_the_file_equals_the_original(worker: Use) -> None:
    content = written()["runs.jsonl.gz"]
    Path("runs.jsonl.gz").write_bytes(content)
    plan, answers = unpacked(Path("runs.jsonl.gz"), Path("there"))
    write_report(Results(plan, answers), Path("again"))
    assert len(written()) > 8
    assert files(Path("again")) == written()
    Path("runs.jsonl").write_bytes(gzip.decompress(content))
    bare, same = unpacked(Path("runs.jsonl"), Path("there"))
    assert packed(bare, same) == content


def test_tables_keep_their_order_in_the_file() -> None:
    rows = {"position=none": {"their none": 1.5}, "position=learned": {"their learned": 1.2}, "baseline": {"theirs": 1.0}}
    values: dict[str, list[float | str]] = {name: [1.0, 1.1, 1.2] for name in ("baseline", "position=none", "position=learned")}
    grid = {"model.stack.dropout": [0.0, 0.1], "model.optimizer.lr": [1e-3, 1e-2]}
    made = stored(values, seeds=3, published={"source": "a paper", "better": "lower", "rows": rows}, tune={"grid": grid, "seeds": 2})
    tried = tuple((chosen, 1.0) for chosen in made.study.tune.first)
    tuned = {name: Tuned(chosen=tried[0][0], means=tried, edges=("lr",)) for name in ("baseline", "position=none", "position=learned")}
    before = Results(replace(made.plan, tuned=tuned), made.answers)
    Path("runs.jsonl.gz").write_bytes(packed(before.plan, before.answers))
    after = Results(*unpacked(Path("runs.jsonl.gz"), Path("there")))
    assert markdown(after) == markdown(before)
    assert packed(after.plan, after.answers) == packed(before.plan, before.answers)


def test_equal_answers_produce_identical_files(worker: Use) -> None:
    plan = results().plan
    assert packed(plan, answers_of(plan)) == packed(plan, answers_of(plan))


@pytest.mark.parametrize(
    "damage",
    [
        lambda lines: [],
        lambda lines: ["{"],
        lambda lines: ["[]", *lines[1:]],
        lambda lines: [json.dumps(json.loads(lines[0]) | {"format": 1}), *lines[1:]],
        lambda lines: lines[:-1],
        lambda lines: [*lines, lines[-1].replace('"ok"', '"diverged"')],  # the same run with a different answer
        lambda lines: [lines[0], *(line.replace('"status": "ok"', '"status": "fine"') for line in lines[1:])],
        lambda lines: [lines[0].replace('"d"', '"e"'), *lines[1:]],  # a job that does not match its key
        lambda lines: [lines[0], json.dumps({"key": 5}), *lines[1:]],
        lambda lines: [lines[0], json.dumps(json.loads(lines[1]) | {"result": None}), *lines[2:]],
        lambda lines: [lines[0], json.dumps(json.loads(lines[1]) | {"status": {"status": "failed"}}), *lines[2:]],
        lambda lines: [json.dumps(json.loads(lines[0]) | {"asked": None}), *lines[1:]],
        lambda lines: [json.dumps(json.loads(lines[0]) | {"asked": {"seeds_at_start": 3}}), *lines[1:]],
        lambda lines: [json.dumps(json.loads(lines[0]) | {"asked": {"looks_added": [{"x": 1}]}}), *lines[1:]],
    ],
)
def test_a_damaged_file_is_refused(worker: Use, damage: Callable[[list[str]], list[str]]) -> None:
    lines = gzip.decompress(written()["runs.jsonl.gz"]).decode().splitlines()
    Path("damaged.jsonl").write_text("\n".join(damage(lines)))
    with pytest.raises(ConfigurationError, match=r"damaged\.jsonl has no runs of a study"):
        unpacked(Path("damaged.jsonl"), Path("there"))


def test_a_run_without_a_result_is_reproduced(worker: Use, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("attnkit.cli.ablate.RUN", "fake_worker")
    Path("s.yaml").write_text(json.dumps(STUDY))
    assert ablate(["reproduce", "s.yaml", "position=none:1", "--folder", "elsewhere"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("val/loss: ")
    assert "There is no result of this run in elsewhere to compare with." in said
