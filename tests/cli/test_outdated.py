"""Checkpoints whose data section an earlier version wrote: refused with the way to use them, and used in that way."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

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
