"""Texts with labels: files, classes, numbers, batches and cuts."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from samples.framed import framed

from attnkit import ConfigurationError

ROWS = [("so good", "praise"), ("bad", "blame"), ("not so bad at all", "praise"), ("no", "blame")]

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(rows: list[tuple[str, str]] = ROWS, name: str = "a.tsv") -> str:
        (tmp_path / name).write_text("".join(f"{text}\t{label}\n" for text, label in rows), encoding="utf-8")
        return str(tmp_path / name)

    return write


def make(**arguments: Any) -> Any:
    return framed("labelled_text", **{"tokenizer": "word", **arguments})


def test_a_batch_frames_and_pads_tokens_and_numbers_classes_by_sorted_name(write: Write) -> None:
    data = make(train=write())
    assert data.classes == ["blame", "praise"]
    (batch,) = list(data.train_dataloader())
    assert set(batch) == {"example", "tokens", "label"}
    assert batch["label"].dtype == torch.int64
    found = {data.tokenizer.decode(row): data.classes[label] for row, label in zip(batch["tokens"].tolist(), batch["label"], strict=True)}
    assert found == dict(ROWS)
    assert batch["tokens"][:, 0].eq(1).all()
    assert all(row.count(2) == 1 and set(row[row.index(2) + 1 :]) <= {0} for row in batch["tokens"].tolist())


def test_passage_words_requires_unlabelled_texts(write: Write) -> None:
    with pytest.raises(ConfigurationError, match="passage_words has no effect without unlabelled"):
        make(train=write(), passage_words=5)


def test_evaluation_has_texts_and_prediction_has_no_labels(write: Write) -> None:
    data = make(train=write(), validation=write(ROWS[:2], "v.tsv"), test=write(ROWS[2:], "t.tsv"), predict=write(ROWS[::-1], "p.tsv"))
    (validation,), (test,), (prediction,) = map(list, (data.val_dataloader(), data.test_dataloader(), data.predict_dataloader()))
    assert dict(zip(validation["text"], validation["label"].tolist(), strict=True)) == {"so good": 1, "bad": 0}
    assert set(test) == {"example", "tokens", "label", "text"}
    assert "label" not in prediction
    assert prediction["text"] == [text for text, _ in ROWS[::-1]]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.tsv"])
def test_columns_are_found_by_name_and_labels_may_be_numbers(name: str, tmp_path: Path) -> None:
    lines = {
        "a.csv": 'stars,id,review\n1,x,"so, good"\n0,y,bad\n',
        "a.jsonl": '{"review": "so, good", "stars": 1}\n{"review": "bad", "stars": 0}\n',
        "a.tsv": "stars\treview\n1\tso, good\n0\tbad\n",
    }[name]
    (tmp_path / name).write_text(lines)
    for labels, dtype in (("class", torch.int64), ("number", torch.float32)):
        data = make(train=str(tmp_path / name), columns=["review", "stars"], labels=labels)
        (batch,) = list(data.train_dataloader())
        assert sorted(batch["label"].tolist()) == [0, 1]
        assert batch["label"].dtype == dtype


def test_a_validation_fraction_is_held_out_reproducibly(write: Write, rng: np.random.Generator) -> None:
    rows = [(f"w{i // 2}", random.choice("ab")) for i in range(60)]  # every text twice
    path, seed = write(rows), int(rng.integers(100))
    parts = [make(train=path, validation_fraction=0.2, seed=seed) for _ in range(2)]
    train, validation = ([list(data.corpus.labelled(part)) for data in parts] for part in ("train", "validation"))
    assert train[0] == train[1]
    assert {t for t, _ in validation[0]}.isdisjoint({t for t, _ in train[0]})
    assert sorted(train[0] + validation[0]) == sorted(rows)
    assert len({t for t, _ in validation[0]}) == 6


@pytest.mark.parametrize("part", ["train", "validation", "test", "predict"])
def test_long_texts_are_truncated_and_counted_in_every_split(part: Any, write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write()
    data = make(train=path, validation=path, test=path, predict=path, max_length=4)
    with caplog.at_level("INFO"):
        (batch,) = list(data.loader(part))
    assert batch["tokens"].shape == (4, 4)
    assert f"{part}: 4 texts; 1 truncated (longer than max_length=4), no unknown tokens" in caplog.messages
    assert [1, *data.tokenizer.encode("not so"), 2] in batch["tokens"].tolist()


def test_batches_respect_the_budget_and_contain_each_text_once(write: Write, rng: np.random.Generator) -> None:
    rows = [(" ".join(rng.choice(list("abcdef"), size=rng.integers(1, 20))), "x" if i % 2 else "y") for i in range(200)]
    data = make(train=write(rows), test=write(rows, "t.tsv"), batch_tokens=100)
    batches = list(data.train_dataloader())
    assert all(b["tokens"].numel() <= 100 for b in batches)
    assert sum(len(b["label"]) for b in batches) == 200
    assert sorted(text for b in data.test_dataloader() for text in b["text"]) == sorted(text for text, _ in rows)
    padding = sum(b["tokens"].eq(0).sum().item() for b in batches) / sum(b["tokens"].numel() for b in batches)
    assert padding < 0.2


def test_the_state_restores_tokenizer_and_classes_without_the_training_file(write: Write) -> None:
    data = make(train=write())
    state = json.loads(json.dumps(data.state_dict()))
    other = make(test=write([("bad", "praise")], "t.tsv"))
    other.load_state_dict(state)
    (batch,) = list(other.test_dataloader())
    assert batch["label"].tolist() == [1]
    assert other.tokenizer.spec == data.tokenizer.spec
    given = make(test=write([("bad", "praise")], "t.tsv"), tokenizer=data.tokenizer_spec, classes=data.classes)
    assert next(iter(given.test_dataloader()))["label"].tolist() == [1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_length": 2}, "max_length must be at least 3"),
        ({"classes": ["a", "a"]}, "'a' is listed twice"),
        ({"validation_fraction": 1.0}, "together below 1"),
        ({"labels": "classes"}, "labels must be"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(**arguments)


@pytest.mark.parametrize("label", ["inf", "-Infinity", "nan", "1e400", "1e39", "2,5"])
def test_a_label_that_is_not_a_finite_number_is_named(label: str, write: Write) -> None:
    data = make(train=write([("so", "1.5"), ("la", label)]), labels="number")
    with pytest.raises(ConfigurationError, match=rf"the training texts have the label '{label}', which is not a finite number"):
        data.train_dataloader()


def test_wrong_labels_and_missing_splits_are_named(write: Write) -> None:
    data = make(train=write(), validation=write([("so", "prase")], "v.tsv"))
    with pytest.raises(ConfigurationError, match=r"validation texts have the label 'prase', which is not a class. Did you mean 'praise'"):
        data.val_dataloader()
    with pytest.raises(ConfigurationError, match=r"not a finite number; for classes, set data.labels to class"):
        make(train=write(), labels="number").train_dataloader()
    with pytest.raises(ConfigurationError, match="are numbers; use task regression"):
        _ = make(train=write([("a", "1")]), labels="number").classes
    with pytest.raises(ConfigurationError, match=r"there is no test data: set data\.corpus.test to a file"):
        data.test_dataloader()
    with pytest.raises(ConfigurationError, match="such as a tokenizer"):
        _ = make().tokenizer
    with pytest.raises(ConfigurationError, match="has 7 tokens, more than batch_tokens=5: raise batch_tokens, or set max_length"):
        make(test=write(name="t.tsv"), train=write(), batch_tokens=5).test_dataloader()
