"""Options between score and weights, for every score: scale, softcap, talking heads."""

import math

import pytest
import torch

import attnkit
from attnkit.masks import Mask
from attnkit.registry import ConfigurationError

B, H, T, D = 2, 2, 5, 4


@pytest.mark.parametrize("name", attnkit.attentions.names())
def test_logits_follow_from_the_score(name: str, seed: int) -> None:
    plain = attnkit.attentions.build(name, head_dim=D, num_heads=H).double()
    query, key = torch.randn(2, B, H, T, D).double()
    bias = torch.randn(H, T, T).double()
    scores = plain.logits(query, key).detach()
    attention = plain.configure(scale=1.7, softcap=0.6)
    expected = torch.zeros(B, H, T, T).double()
    for at in torch.cartesian_prod(*map(torch.arange, expected.shape)).tolist():
        expected[tuple(at)] = 0.6 * math.tanh(1.7 * float(scores[tuple(at)]) / 0.6) + float(bias[tuple(at[1:])])
    torch.testing.assert_close(attention.logits(query, key, attn_bias=bias), expected, rtol=1e-10, atol=1e-10)
    value = torch.randn(B, H, T, D).double()
    for backend in attention.backends:
        output = attention(query, key, value, attn_bias=bias, backend=backend)
        torch.testing.assert_close(output, expected.softmax(-1) @ value, rtol=1e-10, atol=1e-10)


def test_softcap_equals_that_of_gemma_2(seed: int) -> None:
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    attention = attnkit.attentions.build("dot_product", head_dim=D, num_heads=4, num_kv_heads=2).configure(scale=0.3, softcap=2.0).double()
    query, key, value = (3 * torch.randn(B, heads, T, D).double() for heads in (4, 2, 2))
    theirs = torch.nn.Module().eval()
    theirs.num_key_value_groups, theirs.head_dim = 2, D
    causal = torch.full((T, T), float("-inf")).double().triu(1)
    expected, _ = eager_attention_forward(theirs, query, key, value, causal, scaling=0.3, softcap=2.0)  # its softmax is in fp32
    for backend in attention.backends:
        output = attention(query, key, value, mask=Mask(causal=True), backend=backend)
        torch.testing.assert_close(output, expected.transpose(1, 2), rtol=1e-5, atol=1e-5)


def test_dot_product_with_a_scale_equals_scaled_dot_product(seed: int) -> None:
    query, key, value = torch.randn(3, B, H, T, D)
    scaled = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)
    plain = attnkit.attentions.build("dot_product", head_dim=D, num_heads=H).configure(scale=D**-0.5)
    for backend in ("reference", "chunked", "sdpa"):
        torch.testing.assert_close(plain(query, key, value, backend=backend), scaled(query, key, value))


@pytest.mark.parametrize("name", ["scaled_dot_product", "additive"])
def test_talking_heads(name: str, seed: int) -> None:
    attention = attnkit.attentions.build(name, head_dim=D, num_heads=H).double()
    query, key, value = torch.randn(3, B, H, T, D).double()
    scores = attention.logits(query, key).detach()
    mask = torch.rand(B, 1, T, T) < 0.6
    mask[0, :, 0] = False
    attention.configure(talking_heads=True).double()
    torch.testing.assert_close(attention.logits(query, key), scores)  # both matrices start as the identity
    for parameter in attention.talking_heads.requires_grad_(False).parameters():
        torch.nn.init.normal_(parameter)
    before, after = attention.talking_heads.logits, attention.talking_heads.weights
    expected = torch.zeros_like(scores)
    for b in range(B):
        for i in range(T):
            if not mask[b, 0, i].any():
                continue
            hidden = torch.where(mask[b, 0, i], 0.0, float("-inf"))
            weights = [(sum(before[g, h] * scores[b, g, i] for g in range(H)) + hidden).softmax(-1) for h in range(H)]
            for h in range(H):
                expected[b, h, i] = sum(after[g, h] * weights[g] for g in range(H))
    torch.testing.assert_close(attention.weights(query, key, mask=mask), expected, rtol=1e-10, atol=1e-10)
    for backend in ("reference", "chunked"):
        torch.testing.assert_close(attention(query, key, value, mask=mask, backend=backend), expected @ value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("option", "message"), [({"scale": 0.0}, "scale must be positive"), ({"softcap": -1.0}, "softcap must be pos")])
def test_out_of_range_options_are_rejected(option: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        attnkit.attentions.build("dot_product", head_dim=D).configure(**option)


def test_an_unknown_normalizer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="Did you mean 'softmax'"):
        attnkit.attentions.build("dot_product", head_dim=D).configure(normalizer="soft_max")
