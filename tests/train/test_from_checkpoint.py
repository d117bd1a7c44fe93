"""Commands that start from a checkpoint need nothing else, and refuse one that does not fit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from attnkit.data.text_pairs import TextPairs
from attnkit.registry import datasets
from attnkit.task import Task
from attnkit.train.saved_recipe import RecipeCallback
from tests.test_documentation import blocks
from tests.train.conftest import printed_recipe

Command = Callable[..., Any]


def test_test_and_validate_need_only_the_checkpoint(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[4])
    for command, metric in (("test", "test/loss"), ("validate", "val/loss")):
        outcome = attnkit(command, "--ckpt_path", trained)
        assert outcome.status == 0
        assert metric in outcome.out
        assert "WARN" not in outcome.err.upper()


def test_predict_prints_only_predictions(attnkit: Command, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained.parents[4])
    outcome = attnkit("predict", "--ckpt_path", trained)
    assert outcome.status == 0
    assert [line.partition("\t")[0] for line in outcome.out.splitlines()] == ["abc", "ba", "cab"]


def test_flags_override_the_checkpoint(attnkit: Command, trained: Path, tiny: str) -> None:
    own = printed_recipe(attnkit, "fit", "--ckpt_path", trained)
    assert own["model"]["stack"]["attention"] == {"name": "additive", "hidden_dim": 4}
    assert own["trainer"]["max_epochs"] == 1
    changed = printed_recipe(attnkit, "fit", "--ckpt_path", trained, "--model.optimizer.lr", "0.5", "--data.corpus", "other.tsv")
    assert changed["model"]["optimizer"]["lr"] == 0.5
    assert changed["data"]["corpus"]["train"] == "other.tsv"
    Path("more.yaml").write_text("model: {beam_size: 3}\ntrainer: {max_epochs: 4}")
    layered = printed_recipe(attnkit, "fit", "--ckpt_path", trained, "--config", "more.yaml")
    assert (layered["model"]["beam_size"], layered["trainer"]["max_epochs"]) == (3, 4)


def test_the_checkpoint_of_a_resumed_run_is_usable(attnkit: Command, trained: Path, tiny: str) -> None:
    outcome = attnkit("fit", "--ckpt_path", trained, "--trainer.max_epochs", 2, "--model.optimizer.lr", 0.25)
    assert outcome.status == 0, outcome.err
    second = Path("runs/tiny/version_0/checkpoints/last.ckpt")
    checkpoint = torch.load(second, weights_only=True)
    assert checkpoint["global_step"] == 2
    assert checkpoint["hyper_parameters"]["optimizer"]["lr"] == 0.25
    assert attnkit("test", "--ckpt_path", second).status == 0


def test_a_checkpoints_data_are_encoded_with_its_tokenizers(
    attnkit: Command, trained: Path, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("words.tsv").write_text("source\ttarget\nxyz\tXYZ\n")  # other letters: training a tokenizer on them would give another vocabulary
    seen: list[Any] = []
    build = TextPairs.__init__

    def spy(self: TextPairs, **arguments: Any) -> None:
        seen.append(arguments["src_tokenizer"])
        build(self, **arguments)

    monkeypatch.setattr(TextPairs, "__init__", spy)
    monkeypatch.setitem(datasets._classes, "text_pairs", TextPairs)
    spy.__wrapped__ = build  # type: ignore[attr-defined]  # the signature that the registry reads
    assert attnkit("test", "--ckpt_path", trained).status == 0
    assert seen[0] == Task.load(trained).hparams["src_tokenizer"]


def test_a_checkpoint_written_from_python_needs_explicit_data(attnkit: Command, trained: Path, tiny: str) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    del checkpoint["callbacks"][RecipeCallback.state_key]
    torch.save(checkpoint, "python.ckpt")
    outcome = attnkit("test", "--ckpt_path", "python.ckpt")
    assert outcome.status == 2
    assert "missing data" in outcome.err
    assert attnkit("test", "--ckpt_path", "python.ckpt", "--config", tiny).status == 0


def test_mismatched_weights_are_rejected(attnkit: Command, trained: Path, tiny: str) -> None:
    outcome = attnkit("test", "--ckpt_path", trained, "--model.stack.attention", "cosine")
    assert outcome.status == 2
    assert "the weights in the checkpoint do not fit this model" in outcome.err
    message = attnkit("test", "--ckpt_path", trained, "--model.stack.d_model", 32).err.partition("error: ")[2]  # after Lightning's lines
    assert 1 <= message.count("\n") < 6
    wider = attnkit("fit", "--ckpt_path", trained, "--model.stack.d_model", 32).err
    assert "in the checkpoint, but [" in wider
    assert "more weights of different sizes" in wider
    assert len([line for line in wider.partition("attnkit: error: ")[2].splitlines() if line.strip()]) <= 5
    assert "Traceback" not in outcome.err


def test_a_truncated_checkpoint_is_rejected(attnkit: Command, trained: Path) -> None:
    Path("half.ckpt").write_bytes(trained.read_bytes()[: trained.stat().st_size // 2])
    for arguments in (["test", "--ckpt_path", "half.ckpt"], ["generate", "half.ckpt", "abc"], ["export", "half.ckpt", "--out", "x"]):
        outcome = attnkit(*arguments)
        assert outcome.status == 2
        assert "half.ckpt is truncated or damaged" in outcome.err


@pytest.fixture
def photos(attnkit: Command) -> Path:
    """The checkpoint of a classifier of images, in a folder with its recipe, whose training images another photographer has replaced."""
    rng = np.random.default_rng(0)

    def take(name: str, brightness: int) -> None:
        np.savez(name, images=rng.integers(brightness, size=(8, 4, 4), dtype=np.uint8), labels=np.arange(8) % 2)

    take("train.npz", 200)
    take("new.npz", 100)
    corpus = {"name": "files", "train": "train.npz", "validation": "new.npz", "test": "new.npz"}
    stack = {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    model = {"name": "classification", "stack": stack, "embedding": {"name": "patch", "patch_size": 2}}
    trainer = {"max_epochs": 1, "accelerator": "cpu", "enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 1}
    recipe = {"model": model, "data": {"name": "labelled_images", "corpus": corpus}, "trainer": trainer}
    Path("photos.yaml").write_text(yaml.safe_dump(recipe))
    assert attnkit("fit", "--config", "photos.yaml").status == 0
    take("train.npz", 50)
    return Path("runs/photos/version_0/checkpoints/last.ckpt")


def test_an_exported_image_model_normalises_as_in_training(attnkit: Command, photos: Path) -> None:
    assert attnkit("export", photos, "--out", "vit.safetensors").status == 0
    expected = attnkit("predict", "--ckpt_path", photos).out
    assert len(expected.splitlines()) == 8
    assert attnkit("predict", "--config", "photos.yaml", "--ckpt_path", "vit.safetensors").out == expected


def test_the_how_tos_code_reads_an_exported_image_model(attnkit: Command, photos: Path) -> None:
    attnkit("export", photos, "--out", "vit.safetensors")
    [code] = [block for block in blocks("docs/how-to/images.md", "python") if "load_exported" in block]
    given, images = 'torch.zeros(1, *kept["image_shape"], dtype=torch.uint8)', np.load("new.npz")["images"]
    assert given in code
    found = {"new": torch.from_numpy(images)[:, None]}
    exec(code.replace(given, "new"), found)
    best = found["logits"].softmax(-1).max(-1)
    lines = [f"{i}\t{label}\t{probability:.4f}" for i, (probability, label) in enumerate(zip(*best, strict=True))]
    assert lines == attnkit("predict", "--ckpt_path", photos).out.splitlines()
