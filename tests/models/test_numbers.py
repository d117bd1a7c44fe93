"""Numbers out of range are refused when a model is built; all others give finite outputs and gradients."""

from typing import Any

import pytest
import torch

import attnkit
from attnkit.registry import Argument, ConfigurationError

SLOTS = {
    "mixers": "mixer",
    "positions": "position",
    "norms": "norm",
    "feed_forwards": "feed_forward",
    "residuals": "residual",
    "attentions": "attention",
    "heads": "head",
    "inits": "init",
    "embeddings": "embedding",
    "multi_tokens": "multi_token",
}
NEEDED = {"mup": {"base_width": 16}}
# `max_length` is not among the arguments: a longer sequence is refused when it comes
SIZES: dict[str, Any] = {"stack": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "vocab_size": 11}
NAMES = [(family, name) for family in SLOTS for name in getattr(attnkit, family) if name not in ("patch", "frames", "pretrained")]


def accepts_numbers(argument: Argument) -> bool:
    for value in (1, 0.5):
        try:
            argument.resolve(value)
        except ConfigurationError:
            continue
        return True
    return False


@pytest.mark.parametrize(("family", "name"), NAMES, ids=[f"{family}-{name}" for family, name in NAMES])
def test_every_number_is_rejected_or_works(family: str, name: str, seed: int) -> None:
    others = {"position": "none"} if family == "mixers" else {}
    for argument in (a.name for a in getattr(attnkit, family).arguments(name) if a.name != "max_length" and accepts_numbers(a)):
        for value in (-1, 0, 1, -1.0, 0.0):
            spec = {"name": name, **NEEDED.get(name, {}), argument: value}
            try:
                model = attnkit.compose(**SIZES, **others, **{SLOTS[family]: spec})
            except ConfigurationError:
                continue
            logits = model(torch.randint(3, 11, (2, 6)))
            logits.logsumexp(-1).mean().backward()
            grads = [p.grad for p in model.parameters() if p.grad is not None]
            assert all(x.isfinite().all() for x in [logits, *grads]), f"{argument}: {value}"
