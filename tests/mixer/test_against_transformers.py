"""Mixers with copied weights equal those of transformers, in values and gradients."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from attnkit.mixer import Mixer, Tokens
from attnkit.registry import mixers

pytest.importorskip("transformers")

WIDTH, LENGTH = 24, 150


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make float64 of what transformers computes in float32."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch, "float32", torch.float64)


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    module = module.double()
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def assert_equal(ours: Mixer, theirs: nn.Module, run: Callable[[Tensor], Tensor], weights: dict[str, Tensor]) -> None:
    """Check the output, its gradients with respect to the input and to their parameters (ours are functions of them), and steps."""
    ours = ours.double()
    assert {name: w.shape for name, w in weights.items()} == {name: w.shape for name, w in ours.named_parameters()}
    torch.manual_seed(1)
    x = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    direction = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64)
    found, expected = torch.func.functional_call(ours, weights, (x, Tokens()))[0], run(x)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    inputs = [x, *theirs.parameters()]
    for y, z in zip(*(torch.autograd.grad((out * direction).sum(), inputs) for out in (found, expected)), strict=True):
        torch.testing.assert_close(y, z, rtol=1e-9, atol=1e-10 * float(z.abs().max()))
    state, outputs = None, []
    with torch.no_grad():
        for t in range(LENGTH):
            y, state = torch.func.functional_call(ours, weights, (x[:, t : t + 1], Tokens(), state))
            outputs.append(y)
    torch.testing.assert_close(torch.cat(outputs, 1), expected.detach(), rtol=1e-10, atol=1e-10)


def test_gated_delta_is_that_of_qwen3_next() -> None:
    from transformers.models.qwen3_next.configuration_qwen3_next import Qwen3NextConfig
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextGatedDeltaNet

    groups, per_group, key_width, value_width = 2, 2, 6, 5
    config = Qwen3NextConfig(
        hidden_size=WIDTH, num_hidden_layers=1, layer_types=["linear_attention"], linear_num_key_heads=groups,
        linear_num_value_heads=groups * per_group, linear_key_head_dim=key_width, linear_value_head_dim=value_width,
    )  # fmt: skip
    theirs = randomised(Qwen3NextGatedDeltaNet(config, 0))
    w = dict(theirs.named_parameters())
    parts = w["in_proj_qkvz.weight"].view(groups, -1, WIDTH).split([key_width, key_width, *[per_group * value_width] * 2], 1)
    query, key, value, gate = (part.reshape(-1, WIDTH) for part in parts)
    beta, decay = (part.reshape(-1, WIDTH) for part in w["in_proj_ba.weight"].view(groups, -1, WIDTH).chunk(2, 1))
    weights = {
        "input.weight": torch.cat([query, key, value]), "gate.weight": gate, "beta.weight": beta, "decay.weight": decay,
        "convolution.weight": w["conv1d.weight"].squeeze(1), "log_rate": w["A_log"], "decay_bias": w["dt_bias"],
        "norm.weight": w["norm.weight"], "output.weight": w["out_proj.weight"],
    }  # fmt: skip
    spec = {"name": "gated_delta", "num_key_heads": groups, "key_dim": groups * key_width, "value_dim": groups * per_group * value_width}
    assert_equal(mixers.build(spec, d_model=WIDTH, num_heads=groups * per_group), theirs, theirs, weights)


@pytest.mark.parametrize("groups", [1, 2])
def test_state_space_is_that_of_mamba2(groups: int) -> None:
    from transformers.models.mamba2.configuration_mamba2 import Mamba2Config
    from transformers.models.mamba2.modeling_mamba2 import Mamba2Mixer

    config = Mamba2Config(
        hidden_size=WIDTH, num_heads=4, head_dim=12, expand=2, state_size=6, n_groups=groups, num_hidden_layers=1, chunk_size=32
    )
    theirs = randomised(Mamba2Mixer(config, 0))
    w = dict(theirs.named_parameters())
    gate, inner, step = w["in_proj.weight"].split([48, 48 + 12 * groups, 4])
    weights = {
        "input.weight": inner, "gate.weight": gate, "step.weight": step, "step_bias": w["dt_bias"], "log_rate": w["A_log"], "skip": w["D"],
        "convolution.weight": w["conv1d.weight"].squeeze(1), "convolution.bias": w["conv1d.bias"], "norm.weight": w["norm.weight"],
        "output.weight": w["out_proj.weight"],
    }  # fmt: skip
    spec = {"name": "state_space", "state_dim": 6, "num_groups": groups}
    assert_equal(mixers.build(spec, d_model=WIDTH, num_heads=4), theirs, theirs, weights)


@pytest.mark.parametrize("family", ["mamba", "jamba"])
def test_selective_state_space_is_that_of_mamba_and_jamba(family: str) -> None:
    if family == "mamba":
        from transformers.models.mamba.configuration_mamba import MambaConfig
        from transformers.models.mamba.modeling_mamba import MambaMixer

        theirs = randomised(MambaMixer(MambaConfig(hidden_size=WIDTH, state_size=6, time_step_rank=3, num_hidden_layers=1), 0))
    else:
        from transformers.models.jamba.configuration_jamba import JambaConfig
        from transformers.models.jamba.modeling_jamba import JambaMambaMixer

        config = JambaConfig(hidden_size=WIDTH, mamba_d_state=6, mamba_dt_rank=3, num_hidden_layers=1, use_mamba_kernels=False)
        theirs = randomised(JambaMambaMixer(config, 0))
    w = dict(theirs.named_parameters())
    inner, gate = w["in_proj.weight"].chunk(2)
    weights = {
        "input.weight": inner, "gate.weight": gate, "convolution.weight": w["conv1d.weight"].squeeze(1),
        "convolution.bias": w["conv1d.bias"], "select.weight": w["x_proj.weight"], "step.weight": w["dt_proj.weight"],
        "step.bias": w["dt_proj.bias"], "log_rate": w["A_log"], "skip": w["D"], "output.weight": w["out_proj.weight"],
    }  # fmt: skip
    if family == "jamba":
        weights |= {f"norms.{i}.weight": w[f"{name}_layernorm.weight"] for i, name in enumerate(("dt", "b", "c"))}
    spec = {"name": "selective_state_space", "state_dim": 6, "step_rank": 3, "parameter_norm": "rms_norm" if family == "jamba" else None}
    assert_equal(mixers.build(spec, d_model=WIDTH), theirs, theirs, weights)


def test_rwkv_is_that_of_rwkv_4() -> None:
    from transformers.models.rwkv.configuration_rwkv import RwkvConfig
    from transformers.models.rwkv.modeling_rwkv import RwkvSelfAttention

    theirs = randomised(RwkvSelfAttention(RwkvConfig(hidden_size=WIDTH, attention_hidden_size=20, num_hidden_layers=1)))
    w = dict(theirs.named_parameters())
    weights = {f"mix_{name}": w[f"time_mix_{name}"].flatten() for name in ("key", "value", "receptance")}
    weights |= {f"{name}.weight": w[f"{name}.weight"] for name in ("key", "value", "receptance", "output")}
    weights |= {"log_rate": w["time_decay"], "bonus": w["time_first"]}
    spec = {"name": "rwkv", "inner_dim": 20}
    assert_equal(mixers.build(spec, d_model=WIDTH), theirs, lambda x: theirs(x)[0], weights)


def test_rg_lru_is_that_of_recurrent_gemma() -> None:
    from transformers.models.recurrent_gemma.configuration_recurrent_gemma import RecurrentGemmaConfig
    from transformers.models.recurrent_gemma.modeling_recurrent_gemma import RecurrentGemmaRecurrentBlock

    config = RecurrentGemmaConfig(hidden_size=WIDTH, lru_width=20, num_attention_heads=4, num_hidden_layers=1)
    theirs = randomised(RecurrentGemmaRecurrentBlock(config, 0))
    w = dict(theirs.named_parameters())
    weights = {
        f"{ours}.{k}": w[f"linear_{name}.{k}"]
        for ours, name in (("input", "x"), ("gate", "y"), ("output", "out"))
        for k in ("weight", "bias")
    }
    weights |= {
        "convolution.weight": w["conv_1d.weight"].squeeze(1),
        "convolution.bias": w["conv_1d.bias"],
        "rate": w["rg_lru.recurrent_param"],
    }
    for ours, name in (("input_gate", "input_gate"), ("recurrence_gate", "recurrent_gate")):
        weights |= {f"{ours}.{k}": w[f"rg_lru.{name}_{k}"] for k in ("weight", "bias")}
    positions = torch.arange(LENGTH)[None]
    spec = {"name": "rg_lru", "inner_dim": 20}
    assert_equal(mixers.build(spec, d_model=WIDTH, num_heads=4), theirs, lambda x: theirs(x, positions, None, use_cache=False)[0], weights)


def test_retention_is_the_lightning_attention_of_minimax() -> None:
    from transformers.models.minimax.configuration_minimax import MiniMaxConfig
    from transformers.models.minimax.modeling_minimax import MiniMaxLightningAttention

    heads, width = 4, 6
    config = MiniMaxConfig(hidden_size=WIDTH, num_attention_heads=heads, head_dim=width, num_hidden_layers=3, block_size=32)
    theirs = randomised(MiniMaxLightningAttention(config, 1))
    slopes = theirs.get_slope_rate().double().flatten()
    for name, buffer in zip(("query_decay", "key_decay", "diagonal_decay"), theirs.decay_factors(slopes.view(-1, 1, 1)), strict=True):
        setattr(theirs, name, buffer)
    theirs.slope_rate = slopes.view(-1, 1, 1)
    w = dict(theirs.named_parameters())
    query, key, value = (p.reshape(-1, WIDTH) for p in w["qkv_proj.weight"].view(heads, 3, width, WIDTH).unbind(1))
    weights = {
        "query.weight": query, "key.weight": key, "value.weight": value, "gate.weight": w["output_gate.weight"],
        "norm.weight": w["norm.weight"], "output.weight": w["out_proj.weight"],
    }  # fmt: skip
    spec = {
        "name": "retention", "value_dim": heads * width, "decays": (-slopes).exp().tolist(), "activation": "silu",
        "gate_activation": "sigmoid", "norm_over": "all", "scale": 1.0,
    }  # fmt: skip
    built = mixers.build(spec, d_model=WIDTH, num_heads=heads, head_dim=width)
    assert_equal(built, theirs, lambda x: theirs(x, None, None)[0], weights)


def test_convolution_is_the_short_convolution_of_lfm2() -> None:
    from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    config = Lfm2Config(hidden_size=WIDTH, num_hidden_layers=1, layer_types=["conv"], conv_L_cache=4, conv_bias=True)
    theirs = randomised(Lfm2ShortConv(config, 0))
    w = dict(theirs.named_parameters())
    weights = {f"{ours}.{k}": w[f"{name}.{k}"] for ours, name in (("input", "in_proj"), ("output", "out_proj")) for k in ("weight", "bias")}
    weights |= {"convolution.weight": w["conv.weight"].squeeze(1), "convolution.bias": w["conv.bias"]}
    assert_equal(mixers.build({"name": "convolution", "kernel_size": 4}, d_model=WIDTH), theirs, theirs, weights)
