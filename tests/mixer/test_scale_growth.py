"""Queries that grow with their position, against queries that are multiplied by hand."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.position.rotary import Rotary
from attnkit.registry import ConfigurationError

B, T, D, H = 2, 9, 12, 2
GROWTH = {"scale_growth": 0.7, "scale_growth_length": 3}
SIZES: dict[str, Any] = {"d_model": D, "num_layers": 2, "num_heads": H}
GROWN = {"mixer": {"name": "multi_head", **GROWTH}}
FACTORS = torch.tensor([[1 + 0.7 * math.log(1 + t // 3)] for t in range(T)], dtype=torch.float64)


@pytest.mark.parametrize("backend", ["reference", "chunked", "sdpa", "tiled", "blockwise"])
@pytest.mark.parametrize("options", [{}, {"query_key_norm": "rms_norm"}, {"attention": "cosine"}])
def test_each_query_is_scaled_by_its_positions_factor(options: dict[str, Any], backend: str, seed: int) -> None:
    grown, plain = (MultiHeadAttention(d_model=D, num_heads=H, backend=backend, **options, **own).double() for own in (GROWTH, {}))
    plain.load_state_dict(grown.state_dict())
    project = plain.attention.project_query
    plain.attention.project_query = lambda query: project(query) * FACTORS
    t = torch.arange(T)[None]
    tokens = Tokens(mask=Mask(causal=True), rotation=Rotary(head_dim=D // H).double().rotation(t), positions=t)
    x, other = torch.randn(2, B, T, D).double()
    x.requires_grad_()
    y, expected = grown(x, tokens)[0], plain(x, tokens)[0]
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    found, wanted = (torch.autograd.grad((value * other).sum(), x) for value in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def model(**options: Any) -> Any:
    return attnkit.compose(stack="decoder", **SIZES, vocab_size=20, **{**GROWN, **options}).double().eval()


def runs(tokens: Tensor, **options: Any) -> Tensor:
    """Return the logits of tokens that are read in parts."""
    decoder, state, logits = model(**options), None, []
    for start, stop in ((0, 4), (4, 5), (5, 6), (6, T)):
        last, state = decoder.step(tokens[:, start:stop], state)
        logits.append(last)
    whole = decoder(tokens)
    torch.testing.assert_close(torch.stack(logits, 1), whole[:, [3, 4, 5, T - 1]], rtol=1e-10, atol=1e-10)
    return whole


@pytest.mark.parametrize(
    "options", [{}, {"position": "rotary"}, {"position": "cope"}, {"window": 4}, {"layers": [{}, {"mixer": "retention"}]}]
)
@torch.no_grad()
def test_cached_decoding_equals_the_full_pass(options: dict[str, Any], seed: int) -> None:
    tokens = torch.randint(3, 20, (B, T))
    torch.manual_seed(0)
    found = runs(tokens, **options)
    torch.manual_seed(0)
    assert not torch.allclose(found, runs(tokens, **options, mixer="multi_head"), atol=1e-4)


@torch.no_grad()
def test_beam_scores_match_the_full_pass(seed: int) -> None:
    decoder, prompt = model(position="rotary", eos_id=None), torch.randint(3, 20, (B, 4))
    found, scores = decoder.n_best(prompt, beam_size=3, max_length=5, length_penalty=0.0)
    for row in range(B):
        whole = decoder(torch.cat([prompt[row].expand(3, -1), found[row]], 1)).log_softmax(-1)[:, 3:-1]
        expected = whole.gather(2, found[row][..., None]).sum((1, 2))
        torch.testing.assert_close(scores[row].double(), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("position", ["none", "rotary"])
@torch.no_grad()
def test_positions_count_the_real_tokens_of_a_document(position: str, seed: int) -> None:
    decoder, tokens = model(position=position), torch.randint(3, 20, (B, T))
    documents = torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 1], [4, 4, 4, 4, 4, 4, 4, 2, 2]])
    found = decoder(tokens, documents=documents)
    for row, cuts in enumerate(((0, 4, 9), (0, 7, 9))):
        for start, stop in pairwise(cuts):
            alone = decoder(tokens[row : row + 1, start:stop])
            torch.testing.assert_close(found[row : row + 1, start:stop], alone, rtol=1e-10, atol=1e-10)
    real = torch.ones(B, T, dtype=torch.bool)
    real[0, :4], real[1, -2:] = False, False
    padded = decoder(tokens, real)
    torch.testing.assert_close(padded[:1, 4:], decoder(tokens[:1, 4:]), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(padded[1:, :-2], decoder(tokens[1:, :-2]), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_preserved(dtype: torch.dtype, seed: int) -> None:
    mixer = MultiHeadAttention(d_model=D, num_heads=H, scale_growth=0.7).to(dtype)
    x, t = torch.randn(B, T, D, dtype=dtype), torch.arange(T)[None]
    y, _ = mixer(x, Tokens(mask=Mask(causal=True), positions=t))
    exact, _ = mixer.double()(x.double(), Tokens(mask=Mask(causal=True), positions=t))
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), exact, rtol=0.05, atol=0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mixer": {"name": "multi_head", "scale_growth_length": 4}}, "scale_growth_length has no effect without scale_growth"),
        ({"mixer": {"name": "multi_head", "scale_growth": 0.0}}, "scale_growth must be positive, but is 0"),
        (
            {"mixer": {"name": "multi_head", "scale_growth": 0.1, "scale_growth_length": 0}},
            "scale_growth_length must be positive, but is 0",
        ),
        ({**GROWN, "stack": "encoder"}, "works only in causal self-attention"),
        ({**GROWN, "attention": "additive"}, "the score is not an inner product"),
    ],
)
def test_unsupported_options_are_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        attnkit.compose(**{"stack": "decoder", **SIZES, "vocab_size": 20, **options})
    with pytest.raises(ValueError, match="needs the positions"):
        MultiHeadAttention(d_model=D, num_heads=H, scale_growth=0.1)(torch.ones(1, 2, D), Tokens())
