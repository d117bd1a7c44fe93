"""A window bounds the cache, and decoding equals the full pass."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.layers import Transformer, TransformerConfig
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.key_values import KeyValues

B, T, D, WINDOW = 3, 12, 16, 4


def build(window: int, **options: Any) -> Transformer:
    config = TransformerConfig(**{"d_model": D, "num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "window": window, **options})
    return Transformer(config, causal=True).double().eval()


def paddings() -> dict[str, Tensor | None]:
    right = torch.arange(T) < torch.tensor([[5], [T], [2]])
    return {"none": None, "right": right, "left": right.flip(1), "inside": right[:, torch.randperm(T)], "empty": right & False}


@pytest.mark.parametrize("padding", paddings())
@pytest.mark.parametrize(
    "options",
    [
        {"position": "rotary"},
        {"position": "alibi", "mixer": {"name": "multi_head", "memory_keys": 2}},
        {"position": "relative", "attention": "additive"},
        {"position": "rotary", "num_kv_heads": None, "mixer": {"name": "latent_attention", "latent_dim": 6}},
    ],
)
@pytest.mark.parametrize("window", [2, WINDOW])
def test_decoding_equals_the_full_pass(window: int, options: dict[str, Any], padding: str, seed: int) -> None:
    model, x, real = build(window, **options), torch.randn(B, T, D).double(), paddings()[padding]
    whole, _ = model(x, key_mask=real)
    for sizes in ([1] * T, [5, 1, 1, 3, 2], [T - 1, 1], [2, 10]):
        rows, state, start = torch.arange(B), None, 0
        for size in sizes:
            stop = start + size
            y, state = model(x[rows, start:stop], key_mask=None if real is None else real[rows, start:stop], state=state)
            kept = slice(None) if real is None else real[rows, start:stop]
            torch.testing.assert_close(y[kept], whole[rows, start:stop][kept], rtol=1e-10, atol=1e-10)
            assert torch.isfinite(y).all()
            assert all(layer.key.shape[-2] == layer.value.shape[-2] == min(stop, window - 1) for layer in state.layers)
            beams = torch.randint(B, (B,))
            rows, state, start = rows[beams], state.select(beams), stop


def test_padding_may_come_after_the_first_call(seed: int) -> None:
    model, x = build(WINDOW, position="rotary"), torch.randn(B, T, D).double()
    real = torch.ones(B, T, dtype=torch.bool)
    real[0, 7:10] = False
    whole, _ = model(x, key_mask=real)
    first, state = model(x[:, :6])
    middle, state = model(x[:, 6:10], key_mask=real[:, 6:10], state=state)
    last, _ = model(x[:, 10:], state=state)
    torch.testing.assert_close(torch.cat([first, middle, last], 1)[real], whole[real], rtol=1e-10, atol=1e-10)


def test_without_a_window_all_tokens_are_kept() -> None:
    config = TransformerConfig(d_model=D, num_layers=1, num_heads=2)
    _, state = Transformer(config, causal=True)(torch.randn(1, 9, D))
    assert state.layers[0].key.shape[-2] == 9


def test_a_row_without_keys_stays_without_keys() -> None:
    x = torch.randn(2, 1, 3, 4)
    kept = KeyValues.of(x, x).numbered(None).last(2)
    allowed = torch.tensor([[True, True, False], [False, False, False]])[:, None, None]  # of the second row nothing, of the first token 1
    mask = kept.restrict(Tokens(mask=Mask.of(allowed))).mask
    assert mask is not None
    assert mask.alive is not None
    assert mask.alive.flatten().tolist() == [True, False]
    assert mask.allowed is not None
    assert mask.allowed[0].flatten().tolist() == [True, False]
