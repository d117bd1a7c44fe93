"""Commands that start from a checkpoint need nothing else, and refuse one that does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attnkit.data.text_pairs import TextPairs
from attnkit.task import Task
from attnkit.train.saved_recipe import RecipeCallback
from tests.train.conftest import printed_recipe

Command = Callable[..., Any]


def test_test_and_validate_need_nothing_but_the_checkpoint(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[4])
    for command, metric in (("test", "test/loss"), ("validate", "val/loss")):
        outcome = attnkit(command, "--ckpt_path", trained)
        assert outcome.status == 0
        assert metric in outcome.out
        assert "WARN" not in outcome.err.upper()


def test_predict_prints_the_predictions_and_nothing_else(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[4])
    outcome = attnkit("predict", "--ckpt_path", trained)
    assert outcome.status == 0
    assert [line.partition("\t")[0] for line in outcome.out.splitlines()] == ["abc", "ba", "cab"]


def test_flags_beat_what_the_checkpoint_says(attnkit: Command, trained: Path, tiny: str) -> None:
    own = printed_recipe(attnkit, "fit", "--ckpt_path", trained)
    assert own["model"]["stack"]["attention"] == {"name": "additive", "hidden_dim": 4}
    assert own["trainer"]["max_epochs"] == 1
    changed = printed_recipe(attnkit, "fit", "--ckpt_path", trained, "--model.optimizer.lr", "0.5", "--data.corpus", "other.tsv")
    assert changed["model"]["optimizer"]["lr"] == 0.5
    assert changed["data"]["corpus"]["train"] == "other.tsv"
    Path("more.yaml").write_text("model: {beam_size: 3}\ntrainer: {max_epochs: 4}")
    layered = printed_recipe(attnkit, "fit", "--ckpt_path", trained, "--config", "more.yaml")
    assert (layered["model"]["beam_size"], layered["trainer"]["max_epochs"]) == (3, 4)


def test_a_resumed_run_continues_and_its_checkpoint_is_as_good_as_the_first(attnkit: Command, trained: Path, tiny: str) -> None:
    outcome = attnkit("fit", "--ckpt_path", trained, "--trainer.max_epochs", 2, "--model.optimizer.lr", 0.25)
    assert outcome.status == 0, outcome.err
    second = Path("runs/tiny/version_0/checkpoints/last.ckpt")
    checkpoint = torch.load(second, weights_only=True)
    assert checkpoint["global_step"] == 2
    assert checkpoint["hyper_parameters"]["optimizer"]["lr"] == 0.25
    assert attnkit("test", "--ckpt_path", second).status == 0


def test_data_of_a_checkpoint_are_encoded_with_its_tokenizers(
    attnkit: Command, trained: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("words.tsv").write_text("source\ttarget\nxyz\tXYZ\n")  # other letters: training a tokenizer on them would give another vocabulary
    seen: list[Any] = []
    build = TextPairs.__init__

    def spy(self: TextPairs, **arguments: Any) -> None:
        seen.append(arguments["src_tokenizer"])
        build(self, **arguments)

    monkeypatch.setattr(TextPairs, "__init__", spy)
    monkeypatch.setattr("attnkit.registry.datasets._classes", {"text_pairs": TextPairs})
    spy.__wrapped__ = build  # type: ignore[attr-defined]  # the signature that the registry reads
    assert attnkit("test", "--ckpt_path", trained).status == 0
    assert seen[0] == Task.load(trained).hparams["src_tokenizer"]


def test_a_checkpoint_of_python_needs_its_data(attnkit: Command, trained: Path, tiny: str) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    del checkpoint["callbacks"][RecipeCallback.state_key]
    torch.save(checkpoint, "python.ckpt")
    outcome = attnkit("test", "--ckpt_path", "python.ckpt")
    assert outcome.status == 2
    assert "no data is given" in outcome.err
    assert attnkit("test", "--ckpt_path", "python.ckpt", "--config", tiny).status == 0


def test_weights_that_do_not_fit_are_refused(attnkit: Command, trained: Path, tiny: str) -> None:
    outcome = attnkit("test", "--ckpt_path", trained, "--model.stack.attention", "cosine")
    assert outcome.status == 2
    assert "the weights in the checkpoint do not fit this model" in outcome.err
    message = attnkit("test", "--ckpt_path", trained, "--model.stack.d_model", 32).err.partition("error: ")[2]  # after Lightning's lines
    assert 1 <= message.count("\n") < 6
    wider = attnkit("fit", "--ckpt_path", trained, "--model.stack.d_model", 32).err
    assert "in the checkpoint, but [" in wider
    assert "more weights of other sizes" in wider
    assert len([line for line in wider.partition("attnkit: error: ")[2].splitlines() if line.strip()]) <= 5
    assert "Traceback" not in outcome.err


def test_half_a_checkpoint_is_refused(attnkit: Command, trained: Path) -> None:
    Path("half.ckpt").write_bytes(trained.read_bytes()[: trained.stat().st_size // 2])
    for arguments in (["test", "--ckpt_path", "half.ckpt"], ["generate", "half.ckpt", "abc"], ["export", "half.ckpt", "--out", "x"]):
        outcome = attnkit(*arguments)
        assert outcome.status == 2
        assert "half.ckpt is truncated or damaged" in outcome.err
