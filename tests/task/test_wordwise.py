import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from samples.framed import framed

from attnkit import ConfigurationError, attention_maps, record_attention, tasks, tokenizers
from attnkit.corpus.base import Question
from attnkit.task.attending import read_batch
from attnkit.task.base import Task
from attnkit.task.question_answering import passage_segments

STACK = {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "position": "sinusoidal"}
FAST: dict[str, Any] = {"optimizer": {"name": "adamw", "lr": 0.02}, "schedule": "constant"}
Fit = Callable[..., Trainer]
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # Lightning on torch 2.13


def test_tags_that_depend_on_the_previous_word_are_learned_and_restored(tmp_path: Path, fit: Fit) -> None:
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


def test_spans_are_learned_and_restored(tmp_path: Path, fit: Fit) -> None:
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


def test_perfect_spans_next_to_punctuation_score_one(tmp_path: Path, fit: Fit) -> None:
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
def test_the_best_span_matches_a_slow_search(max_words: int) -> None:
    tokenizer = {"name": "word", "tokens": list("abcde")}
    task: Any = tasks.build({"name": "question_answering", "stack": STACK, "tokenizer": tokenizer, "max_words": max_words})
    words = torch.tensor([[0, 0, 0, 1, 0, 2, 3, 0]])
    for seed in range(20):
        outputs = torch.randn(1, 8, 2, generator=torch.Generator().manual_seed(seed))
        places = [3, 5, 6]
        spans = [(i, j) for i in range(3) for j in range(i, min(3, i + max_words))]
        first, last = max(spans, key=lambda span: float(outputs[0, places[span[0]], 0] + outputs[0, places[span[1]], 1]))
        batch = {"words": words, "text": [Question("a", "b c d", "b c", 0)]}
        assert task.answers(outputs, batch)[0].answer == " ".join("bcd"[first : last + 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            task.updates(outputs, batch)
    told = ["answers longer than max_words=1 words cannot be found, such as 'b c'"] * (max_words == 1)
    assert [str(each.message) for each in caught] == told  # once


WORDS = tokenizers.build("word").train(["a b c d e f"])
ROWS = torch.tensor([[1, 4, 5, 2, 6, 7, 8, 2], [1, 9, 2, 5, 6, 2, 0, 0]])
SEGMENTED = {"name": "token", "num_segments": 2}


def asking(embedding: dict[str, Any]) -> Any:
    task = tasks.build({"name": "question_answering", "stack": STACK, "embedding": embedding, "tokenizer": WORDS.spec})
    task.configure_model()
    return task


def test_the_question_has_the_first_segment_and_the_passage_the_second() -> None:
    task = asking(SEGMENTED)
    read = []
    task.model.embedding.register_forward_pre_hook(lambda _, given: read.append(given[1]))
    task(ROWS)
    assert read[0].tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1, 1, 1]]
    assert passage_segments(torch.tensor([[1, 4, 2, 2, 6, 2, 0]]), 2).tolist() == [[0, 0, 0, 0, 1, 1, 1]]
    batch = {
        "tokens": ROWS,
        "words": torch.tensor([[0, 0, 0, 0, 1, 2, 3, 0], [0, 0, 0, 1, 0, 2, 0, 0]]),
        "label": torch.tensor([[4, 5], [3, 3]]),
    }
    loss = task.objective(batch).loss
    loss.backward()
    assert (task.model.embedding.segment.grad.abs().amax(1) > 1e-6).all()
    for segment in task.model.embedding.segment.detach():
        segment += torch.linspace(-1, 1, len(segment))
        before, loss = loss, task.objective(batch).loss
        assert abs(loss - before) > 1e-6


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_second_segment_the_model_ignores_segments(count: int) -> None:
    task = asking({"name": "token", "num_segments": count})
    assert torch.equal(task(ROWS), task.model(ROWS, ROWS != 0))


def test_recorded_maps_use_the_segments_of_the_task() -> None:
    task = asking(SEGMENTED)
    torch.nn.init.normal_(task.model.embedding.segment)
    with torch.no_grad(), record_attention(task.model) as expected:
        task(ROWS)
    found = read_batch(task, {"tokens": ROWS}, 2).maps()
    assert found.keys() == expected.keys() == {"stack.encoder.layers.0.mixer"}
    for path, weights in found.items():
        assert torch.equal(weights, expected[path])
    without = attention_maps(task.model, ROWS, mask=ROWS != 0)
    assert all((weights - without[path]).abs().max() > 1e-3 for path, weights in found.items())


def test_rows_without_labels_are_not_scored() -> None:
    task: Any = tasks.build({"name": "question_answering", "stack": STACK, "tokenizer": {"name": "word", "tokens": ["a"]}})
    batch = {"words": torch.tensor([[0, 1, 2]] * 2), "label": torch.tensor([[1, 2], [-1, -1]])}
    outputs = torch.zeros(2, 3, 2)
    sums = task.sums(outputs, batch)
    assert sums.targets == 2
    torch.testing.assert_close(sums.nll, 2 * torch.tensor(2.0).log())  # of two words each


@pytest.mark.parametrize(("name", "own"), [("tagging", {"classes": ["a", "b"]}), ("question_answering", {})])
def test_wrong_metrics_raise_one_error(name: str, own: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"unknown metric 'bleu'.*Names: "):
        tasks.build({"name": name, "stack": STACK, "tokenizer": {"name": "word", "tokens": ["a"]}, "metrics": ["bleu"], **own})
