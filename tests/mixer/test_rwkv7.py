"""RWKV-7 against the paper's equation, token by token and head by head; its documents, and the values of the first layer."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import attnkit
from attnkit.layers import Transformer, TransformerConfig
from attnkit.mixer import Tokens
from attnkit.registry import ConfigurationError, mixers
from attnkit.state import tensors_in
from attnkit.task.parameters import parameter_groups

WIDTH, HEADS, LENGTH = 8, 2, 70


def drawn(module: nn.Module) -> Any:
    torch.manual_seed(0)
    for parameter in module.double().parameters():
        nn.init.normal_(parameter, std=0.5)
    return module


def low_rank(maps: nn.Sequential, x: Tensor, inside: Any = None) -> Tensor:
    hidden = maps[0].weight @ x
    return maps[-1].weight @ (hidden if inside is None else inside(hidden))


def slow(mixer: Any, x: Tensor, first: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the outputs and the values before they are mixed, [T, D], for one row [T, D] and the values of the first layer."""
    state = torch.zeros(HEADS, WIDTH // HEADS, WIDTH // HEADS, dtype=torch.float64)  # values by keys, as in the paper
    outputs, values = [], []
    for t in range(len(x)):
        before = x[t - 1] if t else torch.zeros(WIDTH, dtype=torch.float64)
        xr, xw, xk, xv, xa, xg = (x[t] + mu * (before - x[t]) for mu in mixer.mixes)
        r, k, v = mixer.receptance.weight @ xr, mixer.key.weight @ xk, mixer.value.weight @ xv
        values.append(v)
        if mixer.value_gate is not None:
            v = v + (v if first is None else first[t]).sub(v) * torch.sigmoid(mixer.value_bias + low_rank(mixer.value_gate, xv))
        w = torch.exp(-math.exp(-0.5) * torch.sigmoid(mixer.decay_bias + low_rank(mixer.decay, xw, torch.tanh)))
        a = torch.sigmoid(mixer.rate_bias + low_rank(mixer.rate, xa))
        kappa, written = k * mixer.removed, k * (1 + (a - 1) * mixer.learned)
        heads = []
        for h, (r_, v_, w_, a_, kappa_, k_, rho) in enumerate(
            zip(*(z.view(HEADS, -1) for z in (r, v, w, a, kappa, written, mixer.bonus)), strict=True)
        ):
            kappa_ = kappa_ / kappa_.norm()
            state[h] = state[h] @ (torch.diag(w_) - torch.outer(kappa_, a_ * kappa_)) + torch.outer(v_, k_)
            part = slice(h * WIDTH // HEADS, (h + 1) * WIDTH // HEADS)
            normal = F.layer_norm(state[h] @ r_, (len(r_),), mixer.norm.weight[part], mixer.norm.bias[part], mixer.norm.eps)
            heads.append(normal + (r_ * rho * k_).sum() * v_)
        outputs.append(mixer.output.weight @ (low_rank(mixer.gate, xg, torch.sigmoid) * torch.cat(heads)))
    return torch.stack(outputs), torch.stack(values)


def test_equation() -> None:
    mixer = drawn(mixers.build({"name": "rwkv7", "decay_rank": 3, "gate_rank": 5}, d_model=WIDTH, num_heads=HEADS))
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    torch.testing.assert_close(mixer(x, Tokens())[0], slow(mixer, x[0])[0][None], rtol=1e-10, atol=1e-10)


def test_a_document_starts_like_a_row() -> None:
    mixer = drawn(mixers.build("rwkv7", d_model=WIDTH, num_heads=HEADS))
    x, starts = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64), torch.arange(LENGTH)[None] % 25 == 0
    apart = torch.cat([slow(mixer, part)[0] for part in x[0].split(25)])
    torch.testing.assert_close(mixer(x, Tokens(starts=starts))[0][0], apart, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("parts", [[LENGTH], [40, 1, 1, 28]])
def test_later_layers_mix_in_the_values_of_the_first(parts: list[int]) -> None:
    spec = {"name": "rwkv7", "value_residual": True}
    options: dict[str, Any] = {"d_model": WIDTH, "num_heads": HEADS, "num_layers": 3, "position": "none", "feed_forward": "none"}
    model = drawn(Transformer(TransformerConfig(**options, mixer=spec), causal=True)).eval()
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    expected, first = x[0], None
    for layer in model.layers:
        y, values = slow(layer.mixer, layer.mixer_residual.norm(expected), first)
        expected, first = expected + y, values if first is None else first
    state, found, sizes = None, [], set()
    for part in x.split(parts, 1):
        y, state = model(part, state=state)
        found.append(y)
        sizes.add(tuple(tensor.numel() for tensor in tensors_in(state.layers)))
    torch.testing.assert_close(torch.cat(found, 1)[0], model.final_norm(expected), rtol=1e-9, atol=1e-9)
    # a matrix for each head and the last token: a graph recorded after a prompt of any length can be replayed
    assert sizes == {(WIDTH**2 // HEADS, WIDTH) * 3}


def test_value_mixing_needs_several_layers_with_equal_heads() -> None:
    mixer = {"name": "rwkv7", "value_residual": True}
    with pytest.raises(ConfigurationError, match="no effect in a single layer"):
        attnkit.compose(stack="decoder", d_model=8, num_layers=1, num_heads=2, vocab_size=9, mixer=mixer, position="none")
    attention = {"mixer": {"name": "multi_head", "value_residual": 0.5}, "num_kv_heads": 1}
    with pytest.raises(ConfigurationError, match="the same number and width"):
        attnkit.compose(stack="decoder", d_model=8, num_layers=2, num_heads=2, vocab_size=9, layers=[{"mixer": mixer}, attention])
    sizes: dict[str, Any] = {"stack": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2, "vocab_size": 9}
    model = attnkit.compose(**sizes, window=3, layers=[{"mixer": mixer}, {"mixer": attention["mixer"]}])  # the window is not that of rwkv7
    assert model(torch.ones(1, 4, dtype=torch.long)).shape == (1, 4, 9)


def test_only_linear_maps_of_full_rank_have_weight_decay() -> None:
    mixer = mixers.build({"name": "rwkv7", "value_residual": True}, d_model=WIDTH, num_heads=HEADS)
    decayed = {id(p) for group in parameter_groups(mixer) if group.get("weight_decay") is None for p in group["params"]}
    assert {name for name, p in mixer.named_parameters() if id(p) in decayed} == {
        f"{name}.weight" for name in ("receptance", "key", "value", "output")
    }


def test_initial_decays_range_from_slow_to_fast_within_the_papers_bounds() -> None:
    mixer: Any = mixers.build("rwkv7", d_model=64, num_heads=4)
    decays = torch.exp(-math.exp(-0.5) * torch.sigmoid(mixer.decay_bias))
    assert decays.min() > math.exp(-math.exp(-0.5))
    assert decays[:16].mean() > decays[-16:].mean() + 0.2
    assert [mixer.decay[0].out_features, mixer.gate[0].out_features] == [32, 32]
    assert mixers.build("rwkv7", d_model=768, num_heads=12).gate[0].out_features == 128
