"""Each normalizer against its paper's equation, in float64, for every score on every backend."""

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit.attention.backend import Refused
from attnkit.masks import Mask
from attnkit.normalizer import Exponential, Normalizer
from attnkit.normalizer.softmax import Softmax
from attnkit.registry import ConfigurationError
from attnkit.testing import attention as rules
from attnkit.testing.attention_inputs import inputs, masks
from attnkit.testing.comparison import assert_close

H, K = 2, 6
MASKED = float("-inf")


def softmax(normalizer: Normalizer, h: int, z: list[float], sink: float | None = None) -> list[float]:
    total = sum(map(math.exp, z)) + (0.0 if sink is None else math.exp(sink))
    return [math.exp(x) / total for x in z]


def entmax(alpha: float, z: list[float]) -> list[float]:
    """Bisect the threshold at which the weights sum to one."""

    def weights(tau: float) -> list[float]:
        return [max(0.0, (alpha - 1) * x - tau) ** (1 / (alpha - 1)) for x in z]

    low, high = (alpha - 1) * max(z) - 1, (alpha - 1) * max(z)
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(weights(middle)) > 1 else (low, middle)
    return weights(low)


EQUATIONS: dict[str, Callable[[Normalizer, int, list[float]], list[float]]] = {
    "softmax": softmax,
    "softmax_off_by_one": lambda n, h, z: softmax(n, h, z, 0.0),
    "softmax_with_sink": lambda n, h, z: softmax(n, h, z, float(n.sink[h])),
    "sigmoid": lambda n, h, z: [1 / (1 + len(z) * math.exp(-x)) for x in z],
    "entmax": lambda n, h, z: entmax(1.5, z),
}


def draw(*shape: int) -> Tensor:
    """Draw logits, a few of which are masked, with ties."""
    logits = 2 * torch.randn(3, H, *shape, K).double()
    logits[:, :, 0] = logits[:, :, 0].round()
    return logits.masked_fill(torch.rand_like(logits) < 0.3, MASKED).index_fill(-1, torch.tensor([2]), 0.5)


def assert_equation(normalizer: Normalizer, equation: Callable[[Normalizer, int, list[float]], list[float]]) -> None:
    logits = draw(5)
    weights = normalizer.double()(logits)
    for b, h, i in itertools.product(range(3), range(H), range(5)):
        kept = [j for j in range(K) if logits[b, h, i, j] > MASKED]
        expected = torch.zeros(K).double()
        expected[kept] = torch.tensor(equation(normalizer, h, logits[b, h, i, kept].tolist()), dtype=torch.float64)
        torch.testing.assert_close(weights[b, h, i], expected, rtol=1e-10, atol=1e-10)


def test_every_normalizer_has_its_equation_here() -> None:
    assert set(EQUATIONS) == attnkit.normalizers.built_in()


@pytest.mark.parametrize("name", EQUATIONS)
def test_equation(name: str, seed: int) -> None:
    normalizer = attnkit.normalizers.build(name, num_heads=H)
    for parameter in normalizer.requires_grad_(False).parameters():
        torch.nn.init.normal_(parameter)
    assert_equation(normalizer, EQUATIONS[name])


def test_sparsemax(seed: int) -> None:
    assert_equation(attnkit.normalizers.build({"name": "entmax", "alpha": 2}, num_heads=H), lambda n, h, z: entmax(2.0, z))


def test_a_sigmoid_with_its_own_bias(seed: int) -> None:
    normalizer = attnkit.normalizers.build({"name": "sigmoid", "bias": -3.0}, num_heads=H)
    assert_equation(normalizer, lambda n, h, z: [1 / (1 + math.exp(3 - x)) for x in z])


@pytest.mark.parametrize("name", EQUATIONS)
def test_a_logit_that_is_nan_makes_its_own_row_nan(name: str) -> None:
    logits = torch.zeros(1, H, 2, K)
    logits[0, :, 0, 1] = float("nan")
    weights = attnkit.normalizers.build(name, num_heads=H)(logits)
    assert weights[:, :, 0].isnan().any(-1).all()
    assert weights[:, :, 1].isfinite().all()


def test_other_alphas_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"alpha must be 1.5 or 2, but is 1.2"):
        attnkit.normalizers.build({"name": "entmax", "alpha": 1.2}, num_heads=1)


def test_a_normalizer_must_declare_whether_rows_sum_to_one() -> None:
    with pytest.raises(TypeError, match="must set `rows_sum_to_one`: whether the weights of a query sum to one"):

        class Own(Normalizer):
            def forward(self, logits: Tensor) -> Tensor:
                return logits


@pytest.mark.parametrize("normalizer", attnkit.normalizers.names())
@pytest.mark.parametrize("score", ["additive", "cosine"])  # of the other scores, backends also see only inner products and a scale
def test_backends_agree_with_every_normalizer_and_a_scale(score: str, normalizer: str, seed: int) -> None:
    attention = rules.make(attnkit.attentions, score).configure(normalizer=normalizer, scale=1.5).double()
    for (name, mask), bias in itertools.product(masks().items(), (False, True)):
        given = inputs(mask, bias=bias)
        expected = given.attend(attention)
        wanted = rules.gradients(expected, given, attention)
        for backend in attention.backends[1:]:
            output = given.attend(attention, backend=backend)
            assert_close(output, expected, 1e-10, f"{backend}, mask {name}")
            for leaf, gradient in rules.gradients(output, given, attention).items():
                assert_close(gradient, wanted[leaf], 1e-10, f"gradient of {leaf}, {backend}, mask {name}")


@pytest.mark.parametrize("width", [3, 7, 8, 12])
def test_fused_kernels_support_sinks_for_values_of_any_width(width: int, seed: int) -> None:
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=5, num_heads=H).configure(normalizer="softmax_with_sink")
    query, key, value = torch.randn(3, H, 4, 5), torch.randn(3, H, 4, 5), torch.randn(3, H, 4, width)
    for mask in (None, Mask(causal=True)):
        expected, output = (attention(query, key, value, mask=mask, backend=backend) for backend in ("reference", "sdpa"))
        torch.testing.assert_close(output, expected)


def test_sinks_match_gpt_oss(seed: int) -> None:
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward

    attention = attnkit.attentions.build("scaled_dot_product", head_dim=4, num_heads=4, num_kv_heads=2)
    attention.configure(normalizer="softmax_with_sink").double()
    torch.nn.init.normal_(attention.normalizer.sink)
    query, key, value = (torch.randn(3, heads, 5, 4).double() for heads in (4, 2, 2))
    theirs = torch.nn.Module().eval()
    theirs.num_key_value_groups, theirs.sinks = 2, attention.normalizer.sink
    causal = torch.full((5, 5), MASKED).double().triu(1)
    expected, _ = eager_attention_forward(theirs, query, key, value, causal, scaling=0.5)
    for backend in attention.backends:
        output = attention(query, key, value, mask=Mask(causal=True), backend=backend)
        torch.testing.assert_close(output, expected.transpose(1, 2), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("backend", ["auto", "reference", "chunked"])
def test_a_bias_beyond_fp16_is_not_shifted_beside_a_sink(backend: str) -> None:
    attention = attnkit.attentions.build("dot_product", head_dim=8).configure(normalizer="softmax_off_by_one")
    x = torch.zeros(1, 1, 2, 8, dtype=torch.float16)
    value = torch.ones_like(x)
    bias = torch.tensor([0.0, -1e6])  # a shift by the largest would be harmless, but not one by -1e6
    torch.testing.assert_close(attention(x, x, value, attn_bias=bias, backend=backend), value / 2)
    torch.testing.assert_close(attention(x, x, value, attn_bias=bias - 1e6, backend=backend), value * 0)
    with pytest.raises(Refused, match=r"would overflow in torch\.float16 together with a sink"):
        attention(x, x, value, attn_bias=bias, backend="sdpa")


def test_a_custom_softmax_runs_without_fused_kernels() -> None:
    class Own(Exponential):
        def forward(self, logits: Tensor) -> Tensor:
            return 2 * logits.softmax(-1)

    attention = attnkit.attentions.build("dot_product", head_dim=4)
    attention.normalizer = Own()
    assert attention.backends == ("reference", "chunked")
    attention.normalizer = Softmax()
    assert attention.backends == ("reference", "chunked", "sdpa", "tiled", "blockwise")


@pytest.mark.parametrize("option", [{"softcap": 2.0}, {"talking_heads": True}])
def test_options_that_fused_kernels_ignore_disable_them(option: dict[str, object]) -> None:
    attention = attnkit.attentions.build("dot_product", head_dim=4, num_heads=2).configure(**option)
    assert attention.backends == ("reference", "chunked")
    with pytest.raises(Refused, match=f"DotProduct has no backend 'sdpa': it uses {next(iter(option))}; choose 'auto'"):
        attention.check_backend("sdpa")
