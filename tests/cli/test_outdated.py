"""Checkpoints of an earlier version: weights under other names are read; an outdated data section is refused with what to do instead."""

from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from attnkit.checkpoint import CheckpointError
from attnkit.checkpoint.outdated import without_outdated_data
from attnkit.registry import datasets

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


def test_a_data_section_of_the_first_edition_is_read(attnkit: Command, trained: Path, tiny: str, tmp_path: Path) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    tokenizer = {"name": "character", "tokens": None, "lowercase": False, "min_count": 1, "extra_tokens": None}
    checkpoint["callbacks"]["attnkit_recipe"]["data"] = {
        "name": "text_pairs", "train": "words.tsv", "validation": "words.tsv", "test": "words.tsv", "predict": "words.tsv",
        "source_column": "source", "target_column": "target", "validation_fraction": 0.0, "src_tokenizer": tokenizer,
        "tgt_tokenizer": tokenizer, "batch_tokens": 4096, "max_length": None, "seed": 0, "num_workers": 0,
    }  # fmt: skip
    torch.save(checkpoint, "first.ckpt")
    outcome = attnkit("test", "--ckpt_path", "first.ckpt")
    assert outcome.status == 0, outcome.err
    assert "the data section of first.ckpt, written by attnkit" in outcome.err
    assert "is read as that of text_pairs with the corpus files" in outcome.err
    assert outcome.out == attnkit("test", "--ckpt_path", trained).out


COMMON = {"predict": None, "batch_tokens": 2048, "seed": 1, "num_workers": 0}
PAIRS = {**COMMON, "src_tokenizer": "word", "tgt_tokenizer": "word", "max_length": None}
TEXT = {**COMMON, "tokenizer": "word", "context": 64, "stride": None, "document_mask": False}
LABELLED = {**COMMON, "labels": "class", "tokenizer": "word", "max_length": 128}
IMAGES = {key: COMMON[key] for key in ("predict", "seed", "num_workers")} | {"shift": 2, "flip": True, "augmentation": [], "batch_size": 8}
FILES = {"train": "a.tsv", "validation": None, "test": "b.tsv", "validation_fraction": 0.1}


@pytest.mark.parametrize(
    ("old", "corpus", "framing"),
    [
        ({"name": "text_pairs", "source_column": "de", "target_column": 1, **FILES, **PAIRS},
         {"name": "files", **FILES, "columns": ["de", 1]}, {"name": "text_pairs", **PAIRS}),
        ({"name": "labelled_text", "text_column": "text", "label_column": "sign", "classes": None, **FILES, **LABELLED},
         {"name": "files", **FILES, "columns": ["text", "sign"]}, {"name": "labelled_text", "classes": None, **LABELLED}),
        ({"name": "text", "column": "text", "separator": "--", "test_fraction": 0.1, **FILES, **TEXT},
         {"name": "files", **FILES, "test_fraction": 0.1, "separator": "--", "columns": ["text"]}, {"name": "text", **TEXT}),
        ({"name": "labelled_images", "image_column": "image", "label_column": "label", "mean": None, **FILES, **IMAGES},
         {"name": "files", **FILES, "columns": ["image", "label"]}, {"name": "labelled_images", "mean": None, **IMAGES}),
        ({"name": "cmudict", "max_validation_words": 9, **PAIRS},
         {"name": "cmudict"}, {"name": "text_pairs", "max_validation_sources": 9, **PAIRS}),
        ({"name": "scan", "split": "length", "validation_commands": 9, **PAIRS},
         {"name": "scan", "split": "length", "validation_commands": 9}, {"name": "text_pairs", **PAIRS}),
        ({"name": "libreoffice_help", "source": "de", "target": "en", "folder": "d", "max_validation_pairs": 9, **PAIRS},
         {"name": "libreoffice_help", "source": "de", "target": "en", "folder": "d"},
         {"name": "text_pairs", "max_validation_sources": 9, **PAIRS}),
        ({"name": "kjv", "folder": "d", **TEXT}, {"name": "kjv", "folder": "d"}, {"name": "text", **TEXT}),
        ({"name": "movie_snippets", "unlabelled": ["imdb", "tweets"], "folder": "d", **LABELLED},
         {"name": "movie_snippets", "folder": "d"},
         {"name": "labelled_text", "unlabelled": ["imdb", {"name": "movie_snippets", "domain": "tweets"}], **LABELLED}),
        ({"name": "fashion_mnist", "folder": "d", "validation_images": 9, **IMAGES},
         {"name": "fashion_mnist", "folder": "d", "validation_images": 9}, {"name": "labelled_images", **IMAGES}),
        ({"name": "span_corruption", "text": "kjv", "context": 32, "density": 0.2, "src_tokenizer": "word", **COMMON},
         {"name": "kjv"}, {"name": "span_corruption", "context": 32, "density": 0.2, "src_tokenizer": "word", **COMMON}),
    ],
)  # fmt: skip
def test_every_data_set_of_the_first_edition_is_a_framing_of_a_corpus(
    old: dict[str, Any], corpus: dict[str, Any], framing: dict[str, Any]
) -> None:
    checkpoint = {"attnkit": {"version": "0.1.0"}}
    recipe, note = without_outdated_data({"data": old, "name": "r"}, checkpoint, "old.ckpt", given=None)
    assert recipe == {"name": "r", "data": {**framing, "corpus": corpus}}
    assert note is not None
    datasets.resolve(recipe["data"])


def test_the_tokenizers_that_a_data_set_of_the_first_edition_has_trained_are_those_of_its_framing() -> None:
    trained = {"name": "word", "tokens": ["jump", "walk"]}
    checkpoint = {"attnkit": {"version": "0.1.0"}, "Scan": {"src_tokenizer": trained, "tgt_tokenizer": trained}}
    old = {"name": "scan", "split": "length", "validation_commands": 9, **PAIRS, "tgt_tokenizer": None}
    recipe, _ = without_outdated_data({"data": old}, checkpoint, "old.ckpt", given=None)
    assert (recipe["data"]["src_tokenizer"], recipe["data"]["tgt_tokenizer"]) == (trained, None)


def test_a_data_section_that_is_no_more_valid_in_todays_words_is_refused() -> None:
    old = {"name": "movie_snippets", "unlabelled": ["imdb_passages"], "folder": "d", **LABELLED}
    with pytest.raises(CheckpointError, match=r"Name the data again: add --config RECIPE"):
        without_outdated_data({"data": old}, {"attnkit": {"version": "0.1.0"}}, "old.ckpt", given=None)
