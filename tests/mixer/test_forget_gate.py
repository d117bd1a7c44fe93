"""Forget gates, against a loop over the paper's equation; tests/published compares them with x-transformers."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

import attnkit
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.registry import ConfigurationError

B, T, D, H = 2, 9, 12, 2
GATED = {"mixer": {"name": "multi_head", "forget_gate": True}}
SIZES: dict[str, Any] = {"d_model": D, "num_layers": 2, "num_heads": H}


def mixer(**options: Any) -> MultiHeadAttention:
    attention = MultiHeadAttention(d_model=D, num_heads=H, forget_gate=True, **options).double()
    torch.nn.init.normal_(attention.forget_gate.bias)
    return attention


def by_loop(mixer: MultiHeadAttention, x: Tensor, window: int = T) -> Tensor:
    """Attend one query and one key at a time, with the product of the gates of the tokens after the key."""
    width, groups = D // H, mixer.attention.num_heads // mixer.attention.num_kv_heads
    query, key, value, logits = mixer.query(x), mixer.key(x), mixer.value(x), mixer.forget_gate(x)
    gates, heads = logits.sigmoid(), torch.zeros(B, T, D, dtype=x.dtype)
    for b, h, i in torch.cartesian_prod(torch.arange(B), torch.arange(H), torch.arange(T)).tolist():
        own, shared = slice(h * width, (h + 1) * width), slice(h // groups * width, (h // groups + 1) * width)
        keys = range(max(0, i - window + 1), i + 1)
        weights = torch.stack([
            (query[b, i, own] @ key[b, j, shared] / math.sqrt(width)).exp() * math.prod(gates[b, j + 1 : i + 1, h])
            for j in keys
        ])  # fmt: skip
        heads[b, i, own] = torch.stack([value[b, j, shared] for j in keys], 1) @ weights / weights.sum()
    return mixer.output(heads)


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa", "tiled", "blockwise"])
@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 1}])
def test_attention_forgets_by_the_gates_of_later_tokens(options: dict[str, Any], backend: str, seed: int) -> None:
    attention, x = mixer(backend=backend, **options), torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    y, expected = attention(x, Tokens(mask=Mask(causal=True)))[0], by_loop(attention, x)
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    other, wanted_for = torch.randn_like(y), (x, attention.forget_gate.weight, attention.forget_gate.bias)
    found, wanted = (torch.autograd.grad((value * other).sum(), wanted_for) for value in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


def test_open_gates_forget_nothing_and_closed_ones_everything(seed: int) -> None:
    attention, x, tokens = mixer(), torch.randn(B, T, D, dtype=torch.float64), Tokens(mask=Mask(causal=True))
    plain = MultiHeadAttention(d_model=D, num_heads=H).double()
    plain.load_state_dict({name: value for name, value in attention.state_dict().items() if "forget_gate" not in name})
    torch.nn.init.zeros_(attention.forget_gate.weight)
    torch.nn.init.constant_(attention.forget_gate.bias, 60.0)
    torch.testing.assert_close(attention(x, tokens)[0], plain(x, tokens)[0], rtol=1e-10, atol=1e-10)
    torch.nn.init.constant_(attention.forget_gate.bias, -1e6)
    torch.testing.assert_close(attention(x, tokens)[0], plain.output(plain.value(x)), rtol=1e-10, atol=1e-10)


def model(**options: Any) -> Any:
    decoder = attnkit.compose(stack="decoder", **SIZES, vocab_size=20, **{**GATED, **options}).double().eval()
    for module in decoder.modules():
        if isinstance(module, MultiHeadAttention):
            torch.nn.init.normal_(module.forget_gate.bias)
    return decoder


@pytest.mark.parametrize(
    "options",
    [
        {}, {"position": "rotary"}, {"position": "alibi"}, {"position": "cope"}, {"window": 4}, {"layers": [{}, {"mixer": "retention"}]},
        {"mixer": {"name": "multi_head", "forget_gate": True, "memory_keys": 2, "gate": "channel", "value_residual": 0.5}},
    ],
)  # fmt: skip
@torch.no_grad()
def test_a_text_read_in_parts_equals_the_whole(options: dict[str, Any], seed: int) -> None:
    decoder, tokens, state = model(**options), torch.randint(4, 20, (B, T)), None
    whole = decoder(tokens)
    for start, stop in pairwise((0, 4, 5, 6, T)):
        last, state = decoder.step(tokens[:, start:stop], state)
        torch.testing.assert_close(last, whole[:, stop - 1], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"window": 4}])
@torch.no_grad()
def test_padding_forgets_nothing(options: dict[str, Any], seed: int) -> None:
    decoder, tokens = model(**options), torch.randint(4, 20, (1, T))
    mask = torch.ones(1, T + 3, dtype=torch.bool)
    mask[:, [0, 4, 5]] = False
    padded = torch.randint(4, 20, (1, T + 3)).masked_scatter(mask, tokens)
    found = decoder(padded, key_mask=mask)[mask]
    torch.testing.assert_close(found, decoder(tokens)[0], rtol=1e-10, atol=1e-10)


@torch.no_grad()
def test_packed_documents_equal_each_alone(seed: int) -> None:
    decoder, tokens = model(position="none"), torch.randint(4, 20, (1, T))
    documents = torch.tensor([[0] * 4 + [1] * 5])
    packed = decoder(tokens, documents=documents)
    torch.testing.assert_close(packed[:, 4:], decoder(tokens[:, 4:]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"window": 4}])
@torch.no_grad()
def test_a_recorded_step_writes_what_whole_passes_predict(options: dict[str, Any], seed: int) -> None:
    decoder, prompt = model(**options), torch.randint(4, 20, (2, 3))
    written = decoder.generate(prompt, max_length=40, min_length=40)
    assert written.shape == (2, 40)
    text = torch.cat([prompt, written], 1)
    best = decoder(text)[:, 2:-1].index_fill(-1, torch.tensor([2]), -torch.inf).argmax(-1)  # no end before 40 tokens
    assert torch.equal(best, written)


@torch.no_grad()
def test_beams_of_padded_prompts_equal_those_of_each_prompt_alone(seed: int) -> None:
    decoder, prompts = model(), torch.randint(4, 20, (2, 5))
    mask = torch.tensor([[True] * 5, [False, False, True, True, True]])
    together = decoder.n_best(prompts, mask, max_length=12, beam_size=3)
    for row in range(2):
        alone = decoder.n_best(prompts[row : row + 1, mask[row]], max_length=12, beam_size=3)
        torch.testing.assert_close(together.scores[row], alone.scores[0], rtol=1e-10, atol=1e-10)


def test_recorded_weights_are_those_of_the_equation(seed: int) -> None:
    attention, x = mixer(), torch.randn(1, 3, D, dtype=torch.float64)
    torch.nn.init.zeros_(attention.query.weight)  # all scores are equal, so only the gates differ
    torch.nn.init.zeros_(attention.forget_gate.weight)
    torch.nn.init.constant_(attention.forget_gate.bias, 0.0)
    with attnkit.record_attention(attention) as recorded:
        attention(x, Tokens(mask=Mask(causal=True)))
    (weights,) = recorded.values()
    expected = torch.tensor([[1.0, 0.0, 0.0], [1 / 3, 2 / 3, 0.0], [1 / 7, 2 / 7, 4 / 7]], dtype=torch.float64)
    torch.testing.assert_close(weights.double(), expected.expand(1, H, 3, 3), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_half_precision_stays_finite_over_long_distances(dtype: torch.dtype, seed: int) -> None:
    attention, x = mixer(), torch.randn(1, 300, D, dtype=torch.float64)
    torch.nn.init.constant_(attention.forget_gate.bias, -1000.0)  # beyond the range of fp16 after 65 tokens
    expected = attention(x, Tokens(mask=Mask(causal=True)))[0]
    found = attention.to(dtype)(x.to(dtype), Tokens(mask=Mask(causal=True)))[0]
    torch.testing.assert_close(found.double(), expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("direction", ["bidirectional", "cross"])
def test_only_causal_attention_forgets(direction: str) -> None:
    with pytest.raises(ConfigurationError, match="causal self-attention only"):
        MultiHeadAttention(d_model=D, num_heads=H, forget_gate=True, direction=direction)
    with pytest.raises(ConfigurationError, match="causal self-attention only"):
        attnkit.compose(stack="encoder", **SIZES, vocab_size=20, **GATED)


def test_the_gates_parameters_are_those_of_the_paper() -> None:
    gate = MultiHeadAttention(d_model=D, num_heads=H, forget_gate=True, bias=False).forget_gate
    assert gate.weight.shape == (H, D)
    assert torch.equal(gate.bias, torch.zeros(H))
    torch.testing.assert_close(logsigmoid(gate.bias).exp(), torch.full((H,), 0.5))
