"""Checkpoints of an earlier version: weights under other names are read; where the data cannot be, a command names them again."""

import shlex
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors import safe_open
from safetensors.torch import save_file

from tests.cli.conftest import TINY

Command = Callable[..., Any]


@pytest.fixture
def old(trained: Path, tmp_path: Path) -> Path:
    """A checkpoint with a data set and a key of its own time."""
    checkpoint = torch.load(trained, weights_only=True)
    checkpoint["callbacks"]["attnkit_recipe"]["data"] = {"name": "dictionary", "max_validation_words": 10}
    torch.save(checkpoint, tmp_path / "old.ckpt")
    return tmp_path / "old.ckpt"


def test_an_outdated_data_section_is_rejected_with_a_replacement(attnkit: Command, old: Path, tiny: str) -> None:
    for command in (["test"], ["fit", "--trainer.max_epochs", 2], ["test", "--data.batch_tokens", 64]):
        outcome = attnkit(*command, "--ckpt_path", old)
        assert outcome.status == 2
        assert f"the data section of {old}, written by attnkit" in outcome.err
        assert "dictionary" in outcome.err
        assert "add --config RECIPE with a data section" in outcome.err
    assert attnkit("generate", old, "abc").status == 0


def test_a_given_data_section_replaces_an_outdated_one(attnkit: Command, old: Path, tiny: str, tmp_path: Path) -> None:
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


def test_a_masked_language_model_of_the_first_edition_is_read(attnkit: Command, tmp_path: Path) -> None:
    """Its head was a module `transform` and an argument `head_transform` (commit 6f8190e made it the head `bert`)."""
    Path("run.txt").write_text("one fish two fish red fish blue fish " * 20)
    corpus = {"name": "files", "train": "run.txt", "validation": "run.txt", "test": "run.txt"}
    tokenizer = {"name": "word", "extra_tokens": ["<mask>"]}
    model = {"name": "masked_lm", "stack": {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}}
    recipe = TINY | {"model": model, "data": {"name": "text", "corpus": corpus, "tokenizer": tokenizer, "context": 8}}
    Path("masked.yaml").write_text(yaml.safe_dump(recipe))
    assert attnkit("fit", "--config", "masked.yaml").status == 0
    path = Path("runs/masked/version_0/checkpoints/last.ckpt")
    checkpoint = torch.load(path, weights_only=True)
    weights = checkpoint["state_dict"]
    for name in [name for name in weights if name.startswith(("model.head.dense.", "model.head.norm."))]:
        weights[name.replace("head", "transform")] = weights.pop(name)
    biases = checkpoint["optimizer_states"][0]["param_groups"][-1]["params"]
    biases.append(biases.pop(-4))  # the output's bias, which is before those of the transformation and of its norm today
    weights["model.head.bias"] = weights.pop("model.head.bias")
    del checkpoint["hyper_parameters"]["head"]
    checkpoint["hyper_parameters"] |= {"head_transform": True, "activation_checkpointing": "attention"}
    torch.save(checkpoint, "first.ckpt")
    assert "model.transform.dense.weight" in weights
    outcome = attnkit("test", "--ckpt_path", "first.ckpt")
    assert outcome.status == 0, outcome.err
    assert outcome.out == attnkit("test", "--ckpt_path", path).out
    assert attnkit("generate", "first.ckpt", "one <mask>").out == attnkit("generate", path, "one <mask>").out
    continued = []
    for start in ("first.ckpt", path):
        longer = attnkit(
            "fit", "--config", "masked.yaml", "--ckpt_path", start, "--trainer.max_epochs", 3, "--trainer.default_root_dir", "on"
        )
        assert longer.status == 0, longer.err
        continued.append(torch.load(sorted(Path("on").rglob("last.ckpt"))[-1], weights_only=True)["state_dict"])
    torch.testing.assert_close(*continued, rtol=0, atol=0)


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


def pasted(outcome: Any) -> list[str]:
    """Return the command in a refusal, without its first word, as a shell would split it."""
    [line] = [line for line in outcome.err.splitlines() if line.startswith("  attnkit ")]
    return shlex.split(line)[1:]


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (["test"], ["TEST.tsv"]),
        (["validate", "--trainer.limit_val_batches", 1], ["VALIDATION.tsv"]),
        (["fit", "--trainer.max_epochs", 2], ["TRAIN.tsv", "VALIDATION.tsv"]),
        (["predict"], ["INPUTS.txt"]),
        (["test", "--data.batch_tokens", 64, "--data.corpus.test", "words.tsv"], []),
        (["probe", "layers"], ["VALIDATION.tsv"]),
    ],
)
def test_the_suggested_command_works_when_pasted(
    attnkit: Command, old: Path, tiny: str, tmp_path: Path, command: list[Any], files: list[str]
) -> None:
    place = Path("my runs/it's old.ckpt")  # to be quoted
    place.parent.mkdir()
    old.rename(place)
    outcome = attnkit(*command, *([] if command[0] == "probe" else ["--ckpt_path"]), place)
    assert outcome.status == 2
    again = pasted(outcome)
    assert [word for word in again if word.partition(".")[0].isupper()] == files
    assert all(file in outcome.err.partition(", where ")[2].partition(":")[0] for file in files)
    assert [word for word in again if word in map(str, command)] == [str(word) for word in command], "the user's own words are lost"
    for file in files:
        Path(file).write_text("abc\nba\n" if file.endswith(".txt") else Path("words.tsv").read_text())
    done = attnkit(*again)
    assert done.status == 0, done.err
    assert "is not valid in attnkit" in done.err


def test_the_suggested_command_keeps_still_valid_arguments(attnkit: Command, trained: Path, tiny: str) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    section = checkpoint["callbacks"]["attnkit_recipe"]["data"]
    section |= {"batch_tokens": 99, "removed": 1}
    section["corpus"] |= {"gone": "\x1b[31m", "separator": "\n\n", "on_bad_rows": "skip"}
    torch.save(checkpoint, "old.ckpt")
    refused = attnkit("test", "--ckpt_path", "old.ckpt")
    assert refused.status == 2
    assert "run, without what attnkit no longer has (corpus.gone, removed):" in refused.err
    command = pasted(refused)
    assert command == [
        *("test", "--ckpt_path", "old.ckpt", "--data", "text_pairs", "--data.corpus", "files", "--data.corpus.train", "words.tsv"),
        *("--data.corpus.validation", "words.tsv", "--data.corpus.test", "words.tsv", "--data.corpus.separator", r'"\n\n"'),
        *("--data.corpus.on_bad_rows", "skip", "--data.predict", "words.tsv", "--data.batch_tokens", "99"),
    ]
    at = command.index("--data.corpus.separator")  # which `files` refuses for tables
    done = attnkit(*command[:at], *command[at + 2 :])
    assert (done.status, done.out) == (0, attnkit("test", "--ckpt_path", trained).out)


def test_probe_reads_an_outdated_data_section(attnkit: Command, trained: Path, old: Path, tiny: str) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    section = checkpoint["callbacks"]["attnkit_recipe"]["data"]
    section |= {part: "words.tsv" for part in section.pop("corpus") if part in ("train", "validation", "test")}
    torch.save(checkpoint, "first.ckpt")
    outcome = attnkit("probe", "layers", "first.ckpt")
    assert outcome.status == 0, outcome.err
    assert "is read as that of text_pairs with the corpus files" in outcome.err
    assert attnkit("probe", "layers", old, "--config", tiny).status == 0
