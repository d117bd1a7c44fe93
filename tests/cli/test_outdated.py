"""Checkpoints of an earlier version: weights under other names are read; an outdated data section is refused with what to do instead."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

Command = Callable[..., Any]


@pytest.fixture
def old(trained: Path, tmp_path: Path) -> Path:
    """A checkpoint with a data set and a key of its own time."""
    checkpoint = torch.load(trained, weights_only=True)
    checkpoint["callbacks"]["attnkit_recipe"]["data"] = {"name": "dictionary", "max_validation_words": 10}
    torch.save(checkpoint, tmp_path / "old.ckpt")
    return tmp_path / "old.ckpt"


def test_an_outdated_data_section_is_refused_with_what_to_write(attnkit: Command, old: Path, tiny: str) -> None:
    for command in (["test"], ["fit", "--trainer.max_epochs", 2], ["test", "--data.batch_tokens", 64]):
        outcome = attnkit(*command, "--ckpt_path", old)
        assert outcome.status == 2
        assert f"the data section of {old}, written by attnkit" in outcome.err
        assert "dictionary" in outcome.err
        assert "add --config RECIPE with a data section" in outcome.err
    assert attnkit("generate", old, "abc").status == 0


def test_another_data_section_takes_its_place(attnkit: Command, old: Path, tiny: str, tmp_path: Path) -> None:
    files = ["--data.corpus", "files", "--data.corpus.train", "words.tsv", "--data.corpus.test", "words.tsv"]
    for given in (["--config", tiny], ["--data", "text_pairs", *files]):
        outcome = attnkit("test", "--ckpt_path", old, *given)
        assert outcome.status == 0, outcome.err
        assert "is not valid in attnkit" in outcome.err
        assert "the given one is used" in outcome.err


@pytest.fixture
def first_edition(trained: Path, tmp_path: Path) -> Path:
    """A checkpoint with the names that weights had in the first edition (commit 52a1cc7)."""
    checkpoint = torch.load(trained, weights_only=True)
    names = {".cross_mixer": ".cross_attention", ".mixer": ".self_attention"}
    for name in list(checkpoint["state_dict"]):
        old = reduce(lambda text, new: text.replace(new, names[new]), names, name)
        checkpoint["state_dict"][old] = checkpoint["state_dict"].pop(name)
    assert "model.stack.decoder.layers.0.self_attention_residual.norm.weight" in checkpoint["state_dict"]
    assert "model.stack.decoder.layers.0.cross_attention.query.weight" in checkpoint["state_dict"]
    torch.save(checkpoint, tmp_path / "first.ckpt")
    return tmp_path / "first.ckpt"


def test_weights_of_the_first_edition_are_read(attnkit: Command, first_edition: Path, trained: Path, tiny: str) -> None:
    answer = attnkit("generate", trained, "abc", "cab").out
    assert attnkit("generate", first_edition, "abc", "cab").out == answer
    outcome = attnkit("fit", "--config", tiny, "--ckpt_path", first_edition, "--trainer.max_epochs", 2)
    assert outcome.status == 0, outcome.err
    assert attnkit("test", "--ckpt_path", first_edition).out == attnkit("test", "--ckpt_path", trained).out


def test_an_exported_model_of_the_first_edition_is_read(attnkit: Command, first_edition: Path, trained: Path) -> None:
    assert attnkit("export", trained, "--out", "new.safetensors").status == 0
    with safe_open("new.safetensors", framework="pt") as file:
        weights, metadata = {name: file.get_tensor(name) for name in sorted(file.keys())}, file.metadata()
    old = {name.replace(".cross_mixer", ".cross_attention").replace(".mixer", ".self_attention"): w for name, w in weights.items()}
    save_file(old, "old.safetensors", metadata)
    assert attnkit("generate", "old.safetensors", "abc").out == attnkit("generate", trained, "abc").out
