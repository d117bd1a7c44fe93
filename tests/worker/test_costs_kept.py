"""Counts of operations that are kept: what another run counted, and never what something else was counted for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import attnkit
from attnkit.task import Task
from attnkit.worker import costs, sources
from attnkit.worker.costs import Counts, count, kept_count
from attnkit.worker.provenance import Provenance, processor

SPEC = attnkit.tokenizers.build("character").train(["abcd"]).spec
MADE = Provenance(code={"attnkit.norm": "a"}, data={"words.tsv": "b"}, packages={"torch": "2"}, processor=processor(1))


@pytest.fixture(autouse=True)
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The lengths of what is counted and not read from the cache, which is empty."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path))
    found: list[tuple[int, int]] = []

    def noted(task: Task, s: int, t: int) -> Counts:
        found.append((s, t))
        return count(task, s, t)

    monkeypatch.setattr(costs, "count", noted)
    return found


def task(*, width: int = 8, **others: Any) -> Task:
    stack = {"name": "decoder", "d_model": width, "num_layers": 1, "num_heads": 2}
    found: Task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": SPEC, **others})
    found.configure_model()
    return found


def test_a_cached_count_is_reused_and_equals_a_fresh_one(counted: list[tuple[int, int]]) -> None:
    first = kept_count(task(), 3, 0, made=lambda: MADE)
    again = kept_count(task(optimizer={"name": "adamw", "lr": 0.5}, schedule="constant"), 3, 0, made=lambda: replace(MADE))
    assert first == again == count(task(), 3, 0)
    assert counted == [(3, 0)]


@pytest.mark.parametrize(
    ("made", "other", "lengths"),
    [
        (replace(MADE, code={"attnkit.norm": "changed"}), {}, (3, 0)),
        (replace(MADE, code={**MADE.code, "plugin": "c"}), {}, (3, 0)),
        (replace(MADE, data={"words.tsv": "changed"}), {}, (3, 0)),
        (replace(MADE, packages={"torch": "3"}), {}, (3, 0)),
        (replace(MADE, processor=processor(2)), {}, (3, 0)),
        (MADE, {"width": 16}, (3, 0)),
        (MADE, {"max_length": 9}, (3, 0)),
        (MADE, {}, (4, 0)),
        (MADE, {}, (3, 1)),
    ],
)
def test_any_change_is_counted_again(made: Provenance, other: Any, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([Counts(flops=((1, 0, 5),), elementwise=6), Counts(flops=((1, 0, 7),), elementwise=8)])
    monkeypatch.setattr(costs, "count", lambda task, s, t: next(found))
    assert kept_count(task(), 3, 0, made=lambda: MADE) == Counts(flops=((1, 0, 5),), elementwise=6)
    assert kept_count(task(**other), *lengths, made=lambda: made) == Counts(flops=((1, 0, 7),), elementwise=8)


def test_weights_of_another_shape_are_counted_again_despite_equal_arguments(counted: list[tuple[int, int]]) -> None:
    kept_count(task(), 3, 0, made=lambda: MADE)
    other = task()
    other.register_buffer("table", other.model.state_dict()[next(iter(other.model.state_dict()))].clone())
    kept_count(other, 3, 0, made=lambda: MADE)
    assert counted == [(3, 0), (3, 0)]


def test_a_count_that_imports_or_reads_something_is_not_cached(counted: list[tuple[int, int]]) -> None:
    later = replace(MADE, code={**MADE.code, "plugin": "c"})
    for after, expected in ((later, 1), (MADE, 2), (MADE, 2)):  # the second is kept: it is what the third reads
        states = iter([MADE, after])
        kept_count(task(), 3, 0, made=lambda: next(states))  # noqa: B023
        assert len(counted) == expected


@pytest.mark.parametrize("content", ["", "{}", '{"flops": [[1, 0]], "elementwise": 3}', '{"flops": [[1, 0, 2.5]], "elementwise": 3}'])
def test_a_damaged_count_is_counted_again(counted: list[tuple[int, int]], tmp_path: Path, content: str) -> None:
    first = kept_count(task(), 3, 0, made=lambda: MADE)
    [file] = tmp_path.rglob("*.json")
    file.write_text(content)
    assert kept_count(task(), 3, 0, made=lambda: MADE) == first
    assert counted == [(3, 0), (3, 0)]


def test_without_a_cache_everything_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "file"))
    assert kept_count(task(), 3, 0, made=lambda: MADE) == count(task(), 3, 0)


def test_package_versions_are_recorded_at_first_import(monkeypatch: pytest.MonkeyPatch) -> None:
    before = sources.packages()
    monkeypatch.setattr(sources, "version", lambda name: "of a later installation")
    assert sources.packages() == before
    assert {"python", "torch", "numpy"} <= before.keys()
    assert "attnkit" not in before
