import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from samples.framed import framed

from attnkit import ConfigurationError, tasks
from attnkit.corpus.base import Question
from attnkit.task.base import Task

STACK = {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "position": "sinusoidal"}
FAST: dict[str, Any] = {"optimizer": {"name": "adamw", "lr": 0.02}, "schedule": "constant"}
Fit = Callable[..., Trainer]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # Lightning on torch 2.13


def test_tags_that_depend_on_the_word_before_are_learned_and_restored(tmp_path: Path, fit: Fit) -> None:
    path = tmp_path / "tags.tsv"
    words = [("a", "b"), ("b", "a"), ("a", "a"), ("b", "b")] * 8
    path.write_text("words\ttags\n" + "".join(f"{x} {y}\tfirst after_{x}\n" for x, y in words), encoding="utf-8")
    data = framed("tagged_text", train=str(path), validation=str(path), tokenizer="word", batch_tokens=64)
    torch.manual_seed(0)
    task = tasks.build(
        {
            "name": "tagging",
            "stack": STACK,
            "tokenizer": data.tokenizer_spec,
            "classes": data.classes,
            "optimizer": {"name": "adamw", "lr": 0.02},
            "schedule": "constant",
        }
    )
    trainer = fit(task, data.train_dataloader(), max_epochs=20)
    metrics = trainer.validate(task, data.val_dataloader(), verbose=False)[0]
    trainer.save_checkpoint(tmp_path / "task.ckpt")
    assert metrics["val/accuracy"] == metrics["val/f1"] == 1
    batch = next(iter(data.val_dataloader()))
    answers = Task.load(tmp_path / "task.ckpt").eval().predict_step(batch, 0)
    assert [str(answer) for answer in answers] == [f"{text}\tfirst after_{text[0]}" for text in batch["text"]]


def test_spans_are_found_and_restored(tmp_path: Path, fit: Fit) -> None:
    path = tmp_path / "questions.tsv"
    rows = [f"{q}\tx {a} {b} y\t{a if q == 'one' else f'{a} {b}'}\t2\n" for q in ("one", "two") for a in "abc" for b in "def"] * 2
    path.write_text("question\tpassage\tanswer\tstart\n" + "".join(rows), encoding="utf-8")
    data = framed("questions", train=str(path), validation=str(path), tokenizer="word", batch_tokens=128)
    torch.manual_seed(0)
    task = tasks.build(
        {
            "name": "question_answering",
            "stack": STACK,
            "tokenizer": data.tokenizer_spec,
            "optimizer": {"name": "adamw", "lr": 0.02},
            "schedule": "constant",
        }
    )
    trainer = fit(task, data.train_dataloader(), max_epochs=20)
    metrics = trainer.validate(task, data.val_dataloader(), verbose=False)[0]
    trainer.save_checkpoint(tmp_path / "task.ckpt")
    assert metrics["val/exact_match"] == metrics["val/f1"] == 1
    batch = next(iter(data.val_dataloader()))
    assert [found.answer for found in Task.load(tmp_path / "task.ckpt").eval().predict_step(batch, 0)] == [r.answer for r in batch["text"]]


def test_a_model_that_finds_every_span_scores_one_next_to_punctuation(tmp_path: Path, fit: Fit) -> None:
    path = tmp_path / "questions.jsonl"
    rows = [{"question": "q", "passage": f'x "{a}", y.', "answer": a, "start": 3} for a in "abcd"] * 4
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = framed("questions", train=str(path), validation=str(path), tokenizer="word", batch_tokens=128)
    task = tasks.build({"name": "question_answering", "stack": STACK, "tokenizer": data.tokenizer_spec, **FAST})
    trainer = fit(task, data.train_dataloader(), max_epochs=20)
    metrics = trainer.validate(task, data.val_dataloader(), verbose=False)[0]
    assert metrics["val/loss"] < 0.1
    assert metrics["val/exact_match"] == metrics["val/f1"] == 1


@pytest.mark.parametrize("max_words", [1, 2, 9])
def test_the_best_span_is_that_of_a_slow_search(max_words: int) -> None:
    tokenizer = {"name": "word", "tokens": list("abcde")}
    task: Any = tasks.build({"name": "question_answering", "stack": STACK, "tokenizer": tokenizer, "max_words": max_words})
    words = torch.tensor([[0, 0, 0, 1, 0, 2, 3, 0]])
    for seed in range(20):
        outputs = torch.randn(1, 8, 2, generator=torch.Generator().manual_seed(seed))
        places = [3, 5, 6]
        spans = [(i, j) for i in range(3) for j in range(i, min(3, i + max_words))]
        first, last = max(spans, key=lambda span: float(outputs[0, places[span[0]], 0] + outputs[0, places[span[1]], 1]))
        batch = {"words": words, "text": [Question("a", "b c d", "b", 0)]}
        assert task.answers(outputs, batch)[0].answer == " ".join("bcd"[first : last + 1])


def test_rows_without_labels_are_not_scored() -> None:
    task: Any = tasks.build({"name": "question_answering", "stack": STACK, "tokenizer": {"name": "word", "tokens": ["a"]}})
    batch = {"words": torch.tensor([[0, 1, 2]] * 2), "label": torch.tensor([[1, 2], [-1, -1]])}
    outputs = torch.zeros(2, 3, 2)
    sums = task.sums(outputs, batch)
    assert sums.targets == 2
    torch.testing.assert_close(sums.nll, 2 * torch.tensor(2.0).log())  # of two words each


@pytest.mark.parametrize(("name", "own"), [("tagging", {"classes": ["a", "b"]}), ("question_answering", {})])
def test_wrong_metrics_get_one_error(name: str, own: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown metric 'bleu'.*Names: "):
        tasks.build({"name": name, "stack": STACK, "tokenizer": {"name": "word", "tokens": ["a"]}, "metrics": ["bleu"], **own})
