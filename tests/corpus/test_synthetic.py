"""The answers of synthetic tasks, found again by other means; their splits, seeds and arguments."""

import itertools
import re
from collections.abc import Sequence
from typing import get_args

import pytest

from attnkit import ConfigurationError, corpora
from attnkit.corpus.base import Part
from attnkit.corpus.synthetic import Synthetic

TASKS = sorted(name for name in corpora.built_in() if issubclass(corpora.get(name), Synthetic))
SMALL = {"train_rows": 40, "validation_rows": 20, "test_rows": 20}


def symbols(prompt: str) -> list[str]:
    return [token for token in prompt.split() if token not in ".="]


def added(prompt: str) -> str:
    return str(sum(map(int, re.findall(r"\+(\d+)", prompt))))


def repeated(prompt: str) -> str:
    *before, last = prompt.split()
    assert before.count(last) == 1
    return prompt.split()[before.index(last) + 1]


def closed(prompt: str) -> str:
    while (shorter := re.sub(r"\((\d+) \)\1 ?", "", prompt).strip()) != prompt:
        prompt = shorter
    return " ".join(reversed(prompt.replace("(", ")").split()))


SOLVED = {
    "copy": lambda prompt: " ".join(symbols(prompt)),
    "reverse": lambda prompt: " ".join(reversed(symbols(prompt))),
    "selective_copy": lambda prompt: " ".join(symbols(prompt)),
    "adding": added,
    "induction": repeated,
    "nested_brackets": closed,
}


def distance_of(name: str, prompt: str) -> int:
    """Return the distance in a prompt."""
    tokens = prompt.split()
    if name == "adding":
        first, second = (i for i, token in enumerate(tokens) if "+" in token)
        return second - first
    if name == "induction":
        return len(tokens) - 1 - tokens.index(tokens[-1])
    return len(tokens) - closed(prompt).count(")") if name == "nested_brackets" else tokens.count(".")


def rows(name: str, part: Part = "test", *, seed: int = 0, **arguments: int) -> Sequence[Sequence[str]]:
    return corpora.build({"name": name, **SMALL, **arguments}, seed=seed).turns(part)


def test_every_task_has_a_solver() -> None:
    assert {*SOLVED, "associative_recall"} == set(TASKS)


@pytest.mark.parametrize("name", SOLVED)
def test_answers_match_a_solver(name: str) -> None:
    for prompt, answer in rows(name):
        assert answer == SOLVED[name](prompt), prompt


def test_each_recall_query_is_answered_with_its_keys_value() -> None:
    for first, *turns in rows("associative_recall", pairs=5, queries=3, distance=2):
        *shown, query = first.split()
        assert shown[10:] == [".", "."]
        values = dict(zip(shown[0:10:2], shown[1:10:2], strict=True))
        assert len(values) == 5
        asked = [query, *turns[1::2]]
        assert turns[0::2] == [values[key] for key in asked]
        assert len(set(asked)) == 3


@pytest.mark.parametrize("name", TASKS)
def test_rows_follow_from_the_seed_and_splits_are_disjoint(name: str) -> None:
    found = {(part, seed): set(rows(name, part, seed=seed)) for part in get_args(Part) for seed in (0, 1)}
    for (part, seed), (other, another) in itertools.combinations(found, 2):
        shared = found[part, seed] & found[other, another]
        assert not shared if part != other else len(shared) < len(found[part, seed])
    for part in get_args(Part):
        assert rows(name, part, seed=1) == rows(name, part, seed=1)
        assert rows(name, part, seed=1)[:10] == rows(name, part, seed=1, train_rows=10, validation_rows=10, test_rows=10)


@pytest.mark.parametrize("name", TASKS)
def test_the_distance_is_as_requested(name: str) -> None:
    for distance in (2, 6):
        for first, *_ in rows(name, distance=distance):
            assert distance_of(name, first) == distance
        assert corpora.build({"name": name, **SMALL}).at_distance(distance).turns("test") == rows(name, distance=distance)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "copy", "length": 0}, "length must be at least 1"),
        ({"name": "copy", "test_rows": 0}, "test_rows must be at least 1"),
        ({"name": "adding", "distance": 16}, "distance must be from 1 to length - 1 = 15, but is 16"),
        ({"name": "induction", "distance": 1}, "distance must be from 2 to length - 1 = 15, but is 1"),
        ({"name": "nested_brackets", "distance": 3}, "even"),
        ({"name": "associative_recall", "pairs": 40}, "must not decrease"),
        ({"name": "associative_recall", "queries": 5}, "must not decrease"),
    ],
)
def test_out_of_range_arguments_are_rejected(spec: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        corpora.build(spec)


def test_too_few_distinct_rows_are_rejected_with_advice() -> None:
    with pytest.raises(ConfigurationError, match="raise the vocabulary or the length"):
        [*map(len, (rows("copy", part, length=1, vocabulary=1) for part in get_args(Part)))]
