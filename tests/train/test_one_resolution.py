"""A fit resolves each spec once, and builds its model once."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from attnkit.registry import Registry, ResolvedSpec
from attnkit.task import Task

Command = Callable[..., Any]


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Family and place of each spec that is read by `Registry.resolve`, in order."""
    places: list[tuple[str, str]] = []
    resolve = Registry.resolve

    def counted(self: Registry, spec: Any, *, path: str = "") -> ResolvedSpec:
        if not isinstance(spec, ResolvedSpec):
            places.append((self.attribute, path))
        return resolve(self, spec, path=path)

    monkeypatch.setattr(Registry, "resolve", counted)
    return places


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each class of modules is constructed."""
    counts: Counter[str] = Counter()
    init: Any = nn.Module.__init__

    def counted(self: nn.Module, *args: Any, **kwargs: Any) -> None:
        counts[type(self).__name__] += 1
        init(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "__init__", counted)
    return counts


def test_every_spec_is_resolved_once_and_the_model_is_built_once(
    attnkit: Command, tiny: str, read: list[tuple[str, str]], made: Counter[str]
) -> None:
    flags = ["--model.stack.attention", "additive", "--model.stack.num_layers", 3, "--model.stack.cross_attention", "cosine"]
    assert (outcome := attnkit("fit", "--config", tiny, *flags, "--trainer.fast_dev_run", 1)).status == 0, outcome.err
    # without a place, so not of the recipe: backends that an attention's class names, and trained tokenizers from the cache of the data
    named = [(family, place) for family, place in read if place]
    assert [place for place, times in Counter(named).items() if times > 1] == []
    assert named.count(("attentions", "model.stack.attention")) == 1
    assert {p for p in named if not p[1].startswith(("model", "data"))} == {
        ("tokenizers", "src_tokenizer"),
        ("tokenizers", "tgt_tokenizer"),
    }
    assert made["Seq2Seq"] == made["EncoderDecoderModel"] == made["EncoderDecoder"] == made["LinearHead"] == 1
    assert made["Transformer"] == 2
    assert made["TransformerLayer"] == 6
    assert made["MLP"] == 6
    assert made["Additive"] == 6
    assert made["Cosine"] == 3


def test_a_wrong_composition_gives_one_message_and_leaves_nothing(attnkit: Command, tiny: str) -> None:
    outcome = attnkit("fit", "--config", tiny, "--model.stack.num_heads", 3)
    assert outcome.status == 2
    errors = [line for line in outcome.err.splitlines() if line.startswith("attnkit: error")]
    assert len(errors) == 1
    assert "num_heads" in errors[0]
    assert "Traceback" not in outcome.err
    assert not list(Path("runs").rglob("*.*"))


def test_a_checkpoint_contains_plain_data(attnkit: Command, tiny: str) -> None:
    assert attnkit("fit", "--config", tiny, "--trainer.max_steps", 1, "--trainer.limit_val_batches", 0).status == 0
    assert type(dict(Task.load("runs/tiny/version_0/checkpoints/last.ckpt").hparams)["stack"]) is dict


def test_an_exported_model_is_built_once_with_the_commands_flags(attnkit: Command, trained: Path, tiny: str, made: Counter[str]) -> None:
    attnkit("export", trained, "--out", "model.safetensors")
    made.clear()
    outcome = attnkit("test", "--config", tiny, "--ckpt_path", "model.safetensors", "--model.beam_size", 2)
    assert outcome.status == 0, outcome.err
    assert made["Seq2Seq"] == made["EncoderDecoderModel"] == 1
    larger = attnkit("test", "--config", tiny, "--ckpt_path", "model.safetensors", "--model.stack.num_layers", 500)
    assert larger.status == 2
    assert "model.safetensors cannot be used: it describes a far larger model" in larger.err
