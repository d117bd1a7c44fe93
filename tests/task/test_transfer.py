"""A task that starts from the weights of another one's checkpoint."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import EMAWeightAveraging

import attnkit
from attnkit.checkpoint import CheckpointError
from attnkit.task import Task

TOKENIZER = attnkit.tokenizers.build("word").train(["a b c d e f"])
STACK = {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
BATCH = {"tokens": torch.tensor([[1, 4, 5, 2], [1, 6, 2, 0]]), "label": torch.tensor([0, 1])}


def make(kind: str = "classification", **changed: Any) -> Any:
    own = {"classes": ["x", "y"]} if kind == "classification" else {}
    return attnkit.tasks.build(
        {"name": kind, "stack": STACK, "tokenizer": TOKENIZER.spec, "optimizer": {"name": "sgd", "lr": 0.0}, "schedule": "constant", **own}
        | changed
    )


def batch(kind: str) -> dict[str, Any]:
    return BATCH if kind == "classification" else {**BATCH, "label": torch.tensor([0.5, -0.5])}


@pytest.fixture
def start(fit: Callable[..., Any], tmp_path: Path, seed: int) -> Path:
    """The checkpoint of a regression."""
    path = tmp_path / "start.ckpt"
    fit(make("regression"), [batch("regression")]).save_checkpoint(path)
    return path


def weights(task: Task, part: str) -> dict[str, torch.Tensor]:
    return {name: w for name, w in task.state_dict().items() if name.startswith(f"model.{part}.")}


def same(task: Task, path: Path, part: str) -> bool:
    there = Task.load(path)
    pairs = [(w, weights(there, part).get(name)) for name, w in weights(task, part).items()]
    assert pairs
    return all(v is not None and torch.equal(w, v) for w, v in pairs)


def test_stack_and_embedding_are_transferred_and_the_rest_is_new(
    fit: Callable[..., Any], start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make(init_from=str(start), stack={**STACK, "dropout": 0.4, "backend": "reference"}, pooler=True)
    fit(task, [BATCH])
    shown = capsys.readouterr().out
    assert same(task, start, "stack")
    assert same(task, start, "embedding")
    assert "(task regression): taken for stack (" in shown
    assert "embedding (80 parameters)" in shown
    assert "note: head is newly initialised" in shown
    assert "note: pooler is newly initialised" in shown


@pytest.mark.filterwarnings("ignore:You're using the WeightAveraging callback:UserWarning")
def test_averaged_weights_begin_at_the_transferred_ones(fit: Callable[..., Any], start: Path) -> None:
    task = make(init_from=str(start))
    fit(task, [BATCH], callbacks=[EMAWeightAveraging(update_starting_at_step=100)])  # the fit ends with the average
    assert same(task, start, "stack")


def test_rotary_scaling_may_differ_from_the_pretrained_model(fit: Callable[..., Any], tmp_path: Path, seed: int) -> None:
    path = tmp_path / "short.ckpt"
    fit(make("regression", stack={**STACK, "position": "rotary"}), [batch("regression")]).save_checkpoint(path)
    yarn = {"name": "rotary", "scaling": {"name": "yarn", "factor": 4.0, "original_length": 16}}
    task = make("regression", init_from=str(path), stack={**STACK, "position": yarn})
    fit(task, [batch("regression")])
    assert same(task, path, "stack")


@pytest.mark.parametrize(
    ("changed", "taken", "notes"),
    [
        ({"stack": {**STACK, "num_layers": 2}}, {"embedding"}, ["stack is newly initialised: its stack differs in num_layers"]),
        (
            {"stack": {"name": "recurrent_encoder", "d_model": 8, "num_layers": 1}},
            {"embedding"},
            ["the checkpoint has stack encoder, not 'recurrent_encoder'"],
        ),
        ({"embedding": {"name": "token", "scale": False}}, {"stack"}, ["embedding is newly initialised: its embedding differs in scale"]),
        (
            {"tokenizer": attnkit.tokenizers.build("word").train(["f a x y z q"]).spec},
            {"stack"},
            ["the tokenizer of the checkpoint differs"],
        ),
        ({"stack": {**STACK, "d_model": 16}}, set(), ["NONE are taken", "no embedding.weight of this shape", "differs in d_model"]),
    ],
)
def test_a_part_with_a_different_composition_is_reinitialised_with_a_note(
    changed: dict[str, Any], taken: set[str], notes: list[str], fit: Callable[..., Any], start: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = make(init_from=str(start), **changed)
    fit(task, [BATCH])
    shown = capsys.readouterr().out
    assert {part for part in ("stack", "embedding") if same(task, start, part)} == taken
    for note in notes:
        assert re.search(note, shown)


def test_a_decoder_is_initialised_from_a_matching_language_model(fit: Callable[..., Any], tmp_path: Path, seed: int) -> None:
    stack = {**STACK, "name": "decoder"}
    lm = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec, "optimizer": {"name": "sgd", "lr": 0.0}})
    fit(lm, [{"tokens": BATCH["tokens"]}]).save_checkpoint(tmp_path / "lm.ckpt")
    task = make(init_from=str(tmp_path / "lm.ckpt"), stack=stack, pooling="last")
    fit(task, [BATCH])
    assert same(task, tmp_path / "lm.ckpt", "stack")
    assert same(task, tmp_path / "lm.ckpt", "embedding")


@pytest.mark.parametrize("kind", ["causal_lm", "seq2seq"])
def test_a_generator_is_initialised_from_one_of_its_kind(fit: Callable[..., Any], tmp_path: Path, seed: int, kind: str) -> None:
    spec: dict[str, Any] = {"name": kind, "optimizer": {"name": "sgd", "lr": 0.0}, "schedule": "constant"}
    if kind == "causal_lm":
        spec |= {"stack": {**STACK, "name": "decoder"}, "tokenizer": TOKENIZER.spec}
        batch, parts = {"tokens": BATCH["tokens"]}, ("stack", "embedding")
    else:
        spec |= {"stack": {**STACK, "name": "encoder_decoder"}, "src_tokenizer": TOKENIZER.spec, "tgt_tokenizer": TOKENIZER.spec}
        batch, parts = {"src": BATCH["tokens"], "tgt": BATCH["tokens"]}, ("stack", "embeddings")
    path = tmp_path / "generator.ckpt"
    fit(attnkit.tasks.build(spec), [batch]).save_checkpoint(path)
    task, other = attnkit.tasks.build(spec | {"init_from": str(path)}), attnkit.tasks.build(spec)
    for one in (task, other):
        fit(one, [batch])
    assert [(same(task, path, part), same(other, path, part)) for part in parts] == [(True, False)] * 2


@pytest.mark.parametrize(
    ("changed", "note"),
    [
        ({}, None),
        ({"classes": ["y", "x"]}, "head is newly initialised: the classes of the checkpoint differ"),
        ({"pooling": "last"}, "head is newly initialised: the pooling of the checkpoint differs"),
        (
            {"tokenizer": attnkit.tokenizers.build("word").train(["f a x y z q"]).spec},
            "head is newly initialised: the tokenizer of the checkpoint differs",
        ),
        ({"kind": "regression"}, "head is newly initialised: it belongs to the task"),
    ],
)
def test_a_head_is_transferred_if_the_task_matches(
    changed: dict[str, Any], note: str | None, fit: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    path, kind = tmp_path / "labels.ckpt", changed.get("kind", "classification")
    fit(make(), [BATCH]).save_checkpoint(path)
    capsys.readouterr()
    task = make(init_from=str(path), **{"kind": kind} | changed)
    fit(task, [batch(kind)])
    shown = capsys.readouterr().out
    assert (note or "taken for stack") in shown
    assert ("head (" in shown) == (note is None)
    if kind == "classification":
        assert same(task, path, "head") == (note is None)


@pytest.mark.parametrize("is_older", [False, True])  # than an option of the head
def test_an_untied_language_model_transfers_its_head(is_older: bool, fit: Callable[..., Any], tmp_path: Path, seed: int) -> None:
    spec = {"name": "causal_lm", "stack": {**STACK, "name": "decoder"}, "tokenizer": TOKENIZER.spec, "tie": "none"}
    spec |= {"optimizer": {"name": "sgd", "lr": 0.0}, "schedule": "constant"}
    fit(attnkit.tasks.build(spec), [{"tokens": BATCH["tokens"]}]).save_checkpoint(tmp_path / "lm.ckpt")
    if is_older:
        checkpoint = torch.load(tmp_path / "lm.ckpt", weights_only=True)
        assert checkpoint["hyper_parameters"]["head"].pop("excluded") is None
        torch.save(checkpoint, tmp_path / "lm.ckpt")
    task = attnkit.tasks.build(spec | {"init_from": str(tmp_path / "lm.ckpt")})
    fit(task, [{"tokens": BATCH["tokens"]}])
    assert [same(task, tmp_path / "lm.ckpt", part) for part in ("stack", "embedding", "head")] == [True] * 3


def test_resuming_and_loading_never_need_the_initial_checkpoint(fit: Callable[..., Any], start: Path, tmp_path: Path) -> None:
    task = make(init_from=str(start), optimizer={"name": "sgd", "lr": 0.1})
    own = tmp_path / "own.ckpt"
    fit(task, [BATCH] * 2).save_checkpoint(own)
    start.unlink()
    again = Task.load(own)
    fit(again, [BATCH], ckpt_path=own, max_epochs=2)
    fit(Task.load(own), [BATCH])  # goes on from the loaded weights
    assert not torch.equal(again.model.head.projection.weight, task.model.head.projection.weight)
    fresh = make(init_from=str(start))
    with pytest.raises(CheckpointError, match="no checkpoint at"):
        fit(fresh, [BATCH])


def test_a_model_used_before_the_fit_is_still_initialised(fit: Callable[..., Any], start: Path) -> None:
    task = make(init_from=str(start))
    task.predict_texts(["a b"])
    assert not same(task, start, "stack")
    fit(task, [BATCH])
    assert same(task, start, "stack")


def test_word_vectors_load_once_and_never_overwrite_transferred_ones(
    fit: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str], seed: int
) -> None:
    vectors = np.random.default_rng(seed).normal(size=(2, 3))
    lines = [f"{word} {' '.join(f'{x:.6f}' for x in row)}" for word, row in zip("ab", vectors, strict=True)]
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    spec = {"name": "pretrained", "path": str(path), "dim": 3}
    task = make(embedding=spec)
    trainer = fit(task, [BATCH])
    shown = capsys.readouterr().out
    assert "embedding: 2 of 10 words have a vector" in shown
    trainer.save_checkpoint(tmp_path / "start.ckpt")
    path.unlink()
    assert Task.load(tmp_path / "start.ckpt").predict_texts(["a b"])
    follower = make(embedding=spec, init_from=str(tmp_path / "start.ckpt"))
    fit(follower, [BATCH])
    assert same(follower, tmp_path / "start.ckpt", "embedding")
