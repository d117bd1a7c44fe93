"""The equations of recurrent mixers that transformers does not have, token by token and head by head; and what holds for all of them."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.mixer import Mixer, Tokens
from attnkit.mixer.recurrence import chunks
from attnkit.position.rotary import Rotary
from attnkit.registry import ConfigurationError, mixers
from attnkit.testing import Check, checks_for

WIDTH, HEADS, LENGTH = 8, 2, 70
RECURRENT = [
    *("delta_rule", "gated_delta", "gated_linear_attention", "linear_attention", "mlstm", "retention", "rg_lru", "rwkv", "rwkv7"),
    *("selective_state_space", "slstm", "state_space"),
    {"name": "gated_delta", "decay": "channel"},
]


def drawn(spec: object, **given: object) -> tuple[Mixer, Tensor]:
    torch.manual_seed(0)
    mixer = mixers.build(spec, d_model=WIDTH, num_heads=HEADS, **given).double()
    for parameter in mixer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return mixer, torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)


def heads(x: Tensor) -> Tensor:
    """Split [T, H N] into [H, T, N]."""
    return x.view(len(x), HEADS, -1).transpose(0, 1)


def normed(x: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


@pytest.mark.parametrize("feature_map", ["elu1", "exp", "relu", "softmax"])
@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
def test_linear_attention_weighs_values_by_features(direction: str, feature_map: str) -> None:
    mixer, x = drawn({"name": "linear_attention", "feature_map": feature_map}, direction=direction)
    phi = {"elu1": lambda z: F.elu(z) + 1, "exp": torch.exp, "relu": F.relu, "softmax": lambda z: F.softmax(z, -1)}[feature_map]
    query, key, value = (heads(part(x[0])) for part in (mixer.query, mixer.key, mixer.value))
    mean = torch.zeros_like(value)
    for h in range(HEADS):
        for i in range(LENGTH):
            reach = range(i + 1 if direction == "causal" else LENGTH)
            weights = torch.stack([phi(query[h, i]) @ phi(key[h, j]) for j in reach])
            mean[h, i] = weights @ value[h, : len(reach)] / (weights.sum() + 1e-6)
    expected = mixer.output(mean.transpose(0, 1).flatten(1))
    torch.testing.assert_close(mixer(x, Tokens())[0][0], expected, rtol=1e-10, atol=1e-10)


def test_linear_attention_over_a_memory_equals_bidirectional_attention() -> None:
    mixer, x = drawn("linear_attention", direction="cross")
    whole = mixers.build("linear_attention", d_model=WIDTH, num_heads=HEADS, direction="bidirectional").double()
    whole.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(mixer(x, Tokens(), mixer.remember(x, Tokens()))[0], whole(x, Tokens())[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rotated", [False, True])
def test_retention_weighs_values_by_products_that_decay_with_the_distance(rotated: bool) -> None:
    mixer, x = drawn("retention")
    rotation = Rotary(head_dim=WIDTH // HEADS).double().rotation(torch.arange(LENGTH)[None]) if rotated else None
    query, key, value = (heads(part(x[0])) for part in (mixer.query, mixer.key, mixer.value))
    if rotation is not None:
        query, key = rotation.query(query[None])[0], rotation.key(key[None])[0]
    read = torch.zeros_like(value)
    for h in range(HEADS):
        for i in range(LENGTH):
            for j in range(i + 1):
                read[h, i] += (1 - 2 ** (-5 - h)) ** (i - j) * query[h, i] @ key[h, j] / 2 * value[h, j]
    expected = mixer.output(normed(read, 1e-6).transpose(0, 1).flatten(1) * F.silu(mixer.gate(x[0])))
    torch.testing.assert_close(mixer(x, Tokens(rotation=rotation))[0][0], expected, rtol=1e-10, atol=1e-10)


def test_retention_rejects_a_position_bias() -> None:
    mixer, x = drawn("retention")
    with pytest.raises(ConfigurationError, match="choose position rotary or none"):
        mixer(x, Tokens(bias=torch.zeros(1, HEADS, LENGTH, LENGTH)))


def test_gated_linear_attention_forgets_channel_by_channel() -> None:
    mixer, x = drawn({"name": "gated_linear_attention", "key_dim": 12, "temperature": 2.0})
    query, key, value, gate = (heads(part(x[0])) for part in (mixer.query, mixer.key, mixer.value, mixer.decay))
    read = torch.zeros_like(value)
    for h in range(HEADS):
        state = torch.zeros(6, 4, dtype=torch.float64)
        for t in range(LENGTH):
            state = torch.diag(gate[h, t].sigmoid() ** (1 / 2)) @ state + torch.outer(key[h, t], value[h, t])
            read[h, t] = state.T @ query[h, t] / 6**0.5
    expected = mixer.output((normed(read, 1e-5) * mixer.norm.weight).transpose(0, 1).flatten(1) * F.silu(mixer.gate(x[0])))
    torch.testing.assert_close(mixer(x, Tokens())[0][0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("largest", "writes"), [(1, 1), (2, 1), (2, 3)])
def test_the_delta_rule_replaces_what_the_state_holds_for_a_key(largest: int, writes: int) -> None:
    mixer, x = drawn({"name": "delta_rule", "negative_eigenvalues": largest == 2, "num_householders": writes})
    padded = F.pad(mixer.input(x[0]), (0, 0, 3, 0))
    convolved = F.silu(sum(mixer.convolution.weight[:, k] * padded[k : k + LENGTH] for k in range(4)))
    query, key, value = convolved.split([WIDTH, WIDTH * writes, WIDTH * writes], -1)
    query, key, value = heads(query), key.view(LENGTH, HEADS, writes, 4), value.view(LENGTH, HEADS, writes, 4)
    query, key = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query, key))
    beta, read = largest * mixer.beta(x[0]).sigmoid().view(LENGTH, HEADS, writes), torch.zeros_like(query)
    for h in range(HEADS):
        state = torch.zeros(4, 4, dtype=torch.float64)
        for t in range(LENGTH):
            for k, v, b in zip(key[t, h], value[t, h], beta[t, h], strict=True):
                state = (torch.eye(4) - b * torch.outer(k, k)) @ state + b * torch.outer(k, v)
            read[h, t] = state.T @ query[h, t] / 2
    expected = mixer.output((normed(read, 1e-5) * mixer.norm.weight).transpose(0, 1).flatten(1))
    torch.testing.assert_close(mixer(x, Tokens())[0][0], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("largest", "writes", "bound"), [(1, 1, None), (2, 1, None), (2, 2, 5.0)])
def test_a_delta_rule_with_decays_by_channel_decays_before_it_writes(largest: int, writes: int, bound: float | None) -> None:
    spec = {"name": "gated_delta", "decay": "channel", "gate_rank": 3, "gate_activation": "sigmoid", "num_key_heads": 1, "key_dim": 6}
    mixer, x = drawn({**spec, "negative_eigenvalues": largest == 2, "num_householders": writes, "decay_bound": bound})
    padded = F.pad(mixer.input(x[0]), (0, 0, 3, 0))
    convolved = F.silu(sum(mixer.convolution.weight[:, k] * padded[k : k + LENGTH] for k in range(4)))
    query, key, value = convolved.split([6, 6 * writes, WIDTH * writes], -1)
    key, value = key.view(LENGTH, writes, 6), value.view(LENGTH, HEADS, writes, 4)
    query, key = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (query, key))
    beta = largest * mixer.beta(x[0]).sigmoid().view(LENGTH, HEADS, writes)
    rate, logits = mixer.log_rate.exp()[:, None, None], heads(mixer.decay(x[0]) + mixer.decay_bias)
    kept = (-rate * F.softplus(logits) if bound is None else -bound * torch.sigmoid(rate * logits)).exp()
    read = torch.zeros(HEADS, LENGTH, 4, dtype=torch.float64)
    for h in range(HEADS):
        state = torch.zeros(6, 4, dtype=torch.float64)
        for t in range(LENGTH):
            state = kept[h, t][:, None] * state
            for k, v, b in zip(key[t], value[t, h], beta[t, h], strict=True):
                state = state + b * torch.outer(k, v - k @ state)
            read[h, t] = state.T @ query[t] / 6**0.5
    normal = (normed(read, 1e-6) * mixer.norm.weight).transpose(0, 1).flatten(1)
    torch.testing.assert_close(mixer(x, Tokens())[0][0], mixer.output(normal * mixer.gate(x[0]).sigmoid()), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=check.name)
        for check in checks_for("mixers", {"name": "gated_delta", "decay": "channel", "num_key_heads": 1})
        if check.name != "no_argument_is_silent"  # `test_testing.py` tries each pair of options
    ],
)
def test_a_delta_rule_with_decays_by_channel_passes_the_conformance_kit(check: Check) -> None:
    check()


@pytest.mark.parametrize("decay", ["head", "channel"])
def test_the_gated_delta_rule_starts_with_slow_decays(decay: str) -> None:
    torch.manual_seed(0)
    mixer = mixers.build({"name": "gated_delta", "decay": decay}, d_model=256, num_heads=64)
    kept = (-mixer.log_rate.exp()[:, None] * F.softplus(mixer.decay_bias.view(64, -1))).exp()
    assert kept.min() > 0.2 - 1e-3  # exp(-16 * 0.1): rates are at most 16, and steps at most 0.1
    assert kept.median() > 0.8


@pytest.mark.parametrize("softcap", [None, 2.0])
def test_the_mlstm_normalises_by_its_accumulated_gates(softcap: float | None) -> None:
    mixer, x = drawn({"name": "mlstm", "softcap": softcap})
    query, key, value = (heads(part(x[0])) for part in (mixer.query, mixer.key, mixer.value))
    capped = (lambda z: z) if softcap is None else lambda z: softcap * torch.tanh(z / softcap)
    opened, kept = capped(mixer.input_gate(x[0])).exp(), capped(mixer.forget_gate(x[0])).sigmoid()
    out = torch.zeros_like(value)
    for h in range(HEADS):
        state, sums = torch.zeros(2, 4, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
        for t in range(LENGTH):
            state = kept[t, h] * state + opened[t, h] * torch.outer(key[h, t], value[h, t])
            sums = kept[t, h] * sums + opened[t, h] * key[h, t]
            q = query[h, t] / 2**0.5
            out[h, t] = state.T @ q / max(abs(sums @ q), 1)
    normal = F.layer_norm(out, (4,), eps=1e-6).transpose(0, 1).flatten(1) * mixer.norm.weight
    torch.testing.assert_close(mixer(x, Tokens())[0][0], mixer.output(normal * mixer.gate(x[0]).sigmoid()), rtol=1e-10, atol=1e-10)


def test_the_slstm_outputs_a_weighted_mean_of_its_writes() -> None:
    mixer, x = drawn("slstm")
    padded = F.pad(x[0], (0, 0, 3, 0))
    convolved = F.silu(sum(mixer.convolution.weight[:, k] * padded[k : k + LENGTH] for k in range(4)) + mixer.convolution.bias)
    maps = mixer.input_gate, mixer.forget_gate, mixer.cell_input, mixer.output_gate
    logits = [
        torch.einsum("thi,hij->htj", given.view(LENGTH, HEADS, -1), one.weight) + one.bias[:, None]
        for one, given in zip(maps, (convolved, convolved, x[0], x[0]), strict=True)
    ]
    output = torch.zeros(HEADS, LENGTH, WIDTH // HEADS, dtype=torch.float64)
    for h in range(HEADS):
        hidden, cell, weight = torch.zeros(3, WIDTH // HEADS, dtype=torch.float64)
        for t in range(LENGTH):
            i, f, z, o = (logits[gate][h, t] + hidden @ mixer.recurrent[h, :, gate] for gate in range(4))
            cell, weight = f.sigmoid() * cell + i.exp() * z.tanh(), f.sigmoid() * weight + i.exp()
            hidden = output[h, t] = o.sigmoid() * cell / weight
    expected = F.layer_norm(output, output.shape[-1:], eps=1e-5).transpose(0, 1).flatten(1) * mixer.norm.weight
    torch.testing.assert_close(mixer(x, Tokens())[0][0], expected, rtol=1e-10, atol=1e-10)


def test_gates_of_the_slstm_do_not_overflow_in_fp32() -> None:
    mixer, x = drawn("slstm")
    nn.init.constant_(mixer.input_gate.bias, 200.0)  # exp(200) is beyond fp32
    torch.testing.assert_close(mixer.float()(x.float(), Tokens())[0].double(), mixer.double()(x, Tokens())[0], rtol=1e-3, atol=1e-3)


def test_gates_of_the_mlstm_do_not_overflow_in_fp32() -> None:
    mixer, x = drawn({"name": "mlstm", "softcap": None, "eps": 0.0})
    nn.init.constant_(mixer.input_gate.bias, 300.0)  # exp(300) is infinite in fp32
    expected = mixer(x, Tokens())[0]
    single = mixer.float()(x.float(), Tokens())[0]
    # each of 70 differences of logits near 300 is off by up to 2^-24 * 600, and so are their exponentials, relatively
    torch.testing.assert_close(single.double(), expected, rtol=70 * 2**-24 * 600, atol=70 * 2**-24 * 600)


@pytest.mark.parametrize("spec", RECURRENT)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_state_of_a_recurrence_is_in_fp32_and_of_constant_size(spec: object, dtype: torch.dtype, autocast: bool) -> None:
    mixer, x = drawn(spec)
    mixer = mixer.float() if autocast else mixer.to(dtype)
    x, sizes = x.float() if autocast else x.to(dtype), set()
    with torch.autocast("cpu", dtype, enabled=autocast), torch.no_grad():
        y, state = mixer(x[:, :65], Tokens())
        for t in range(65, LENGTH):
            assert y.isfinite().all()
            assert state.memory.dtype == torch.float32
            sizes.add((state.memory.shape, None if state.recent is None else (state.recent.shape, state.recent.dtype)))
            y, state = mixer(x[:, t : t + 1], Tokens(), state)
    assert len(sizes) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "lengths", "graphs"),
    [*((spec, (200, 300), 1) for spec in RECURRENT if spec != "retention"), ("retention", (70, 100, 200, 300), 2)],
)  # rows of one chunk have a graph of their own
@torch._dynamo.config.patch(fake_tensor_cache_enabled=False)  # with a symbol, its entries take longer than operations
def test_one_compiled_graph_serves_all_longer_rows(
    spec: object, lengths: tuple[int, ...], graphs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._dynamo.testing import CompileCounterWithBackend

    monkeypatch.setattr(chunks, "CHUNK", 2)  # each doubling takes time
    torch._dynamo.reset()
    mixer, _ = drawn(spec)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(mixer, backend=counter, fullgraph=True)
    for length in lengths:
        x, real, starts = torch.randn(2, length, WIDTH, dtype=torch.float64), torch.rand(2, length) < 0.8, torch.rand(2, length) < 0.1
        for given in (x, real, starts):
            torch._dynamo.mark_dynamic(given, 1)  # the length alone: each further symbol takes seconds
        tokens = Tokens(real=real, starts=starts)
        torch.testing.assert_close(compiled(x, tokens)[0], mixer(x, tokens)[0], rtol=1e-12, atol=1e-12)
    assert counter.frame_count == graphs


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "linear_attention", "feature_map": "elu"}, "unknown feature map 'elu'"),
        ({"name": "linear_attention", "feature_map": "silu"}, "set normalized to false"),
        ({"name": "retention", "decays": [0.5]}, "a number in .0, 1. for each of the 2 heads"),
        ({"name": "retention", "value_dim": 7}, "must divide the width 7"),
        ({"name": "gated_delta", "num_key_heads": 3}, "num_key_heads .3. must be positive and divide num_heads"),
        ({"name": "state_space", "num_groups": 3}, "num_groups .3. must be positive and divide num_heads"),
    ],
)
def test_invalid_arguments_are_rejected(spec: object, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        mixers.build(spec, d_model=WIDTH, num_heads=HEADS)


@pytest.mark.parametrize(
    "name", ["delta_rule", "gated_delta", "gated_linear_attention", "linear_attention", "mlstm", "retention", "rg_lru", "rwkv7", "slstm"]
)
def test_num_heads_is_required(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"the mixer '{name}' needs num_heads"):
        mixers.build(name, d_model=WIDTH)
