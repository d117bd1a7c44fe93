"""The choice of a backend, which never falls on one that ignores part of the score."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import attnkit
from attnkit.attention import Attention, InnerProduct
from attnkit.attention.backend import Backend, Inputs, Refused
from attnkit.attention.backend.base import ordered
from attnkit.attention.backend.reference import Reference
from attnkit.attention.backend.sdpa import MAX_COPY
from attnkit.attention.scaled_dot_product import ScaledDotProduct
from attnkit.mixer.multi_head import MultiHeadAttention
from attnkit.registry.arguments import parameters

H, T, D = 2, 9, 4


class Softcapped(ScaledDotProduct):
    """Logits in (-2, 2)."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return 2 * torch.tanh(super().score(query, key) / 2)


class MoreSoftcapped(Softcapped):
    """Inherits the override."""


class Learned(InnerProduct):
    """A trained scale, which a fused kernel would read as a constant."""

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.log_scale = nn.Parameter(torch.tensor(-0.5))

    @property
    def scale(self) -> Tensor:  # type: ignore[override]
        return self.log_scale.exp()


class Projected(ScaledDotProduct):
    """Queries and keys are permuted alike: every backend uses projections."""

    scale = 0.25

    def project_query(self, query: Tensor) -> Tensor:
        return query.flip(-1) * 3

    def project_key(self, key: Tensor) -> Tensor:
        return key.flip(-1)


@pytest.mark.parametrize("kind", [Softcapped, MoreSoftcapped, Learned])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_auto_computes_the_score_of_the_class(kind: type[InnerProduct], dtype: torch.dtype, seed: int) -> None:
    attention = kind(head_dim=D, num_heads=H)
    query, key, value = (3 * torch.randn(3, 1, H, T, D)).to(dtype)
    expected = attention(query, key, value, backend="reference")
    assert torch.equal(attention(query, key, value), expected)
    weights = attention.weights(query, key)
    assert torch.equal((weights.to(dtype) @ value), expected)
    attention.chunk_elements = 1
    torch.testing.assert_close(attention(query, key, value), expected, rtol=1e-2, atol=1e-2)


def test_a_score_overridden_on_an_instance_is_used(seed: int) -> None:
    attention = ScaledDotProduct(head_dim=D, num_heads=H)
    attention.score = lambda query, key: -(query @ key.mT)  # type: ignore[method-assign]
    query, key, value = torch.randn(3, 1, H, T, D)
    assert torch.equal(attention(query, key, value), attention(query, key, value, backend="reference"))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (
            Softcapped,
            "Softcapped has no backend 'sdpa': it overrides `score`, which fused kernels do not read; choose 'auto' or one of reference",
        ),
        (Learned, "Learned has no backend 'sdpa': its scale is not a plain number, as fused kernels require; choose 'auto'"),
    ],
)
def test_a_backend_that_ignores_the_score_is_rejected(kind: type[InnerProduct], reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(attnkit.attentions._classes, "own", kind)
    x = torch.zeros(1, 1, T, D)
    with pytest.raises(ValueError, match=reason):
        kind(head_dim=D)(x, x, x, backend="sdpa")
    with pytest.raises(ValueError, match=reason):
        MultiHeadAttention(d_model=D, num_heads=1, attention="own", backend="sdpa")
    assert "sdpa" not in kind(head_dim=D).backends


@pytest.mark.parametrize("shape", [(0, 3, 3), (1, 0, 3), (1, 3, 0)])
@pytest.mark.parametrize("backend", ["chunked", "auto"])
def test_empty_inputs_give_what_the_reference_gives(backend: str, shape: tuple[int, int, int]) -> None:
    batch, queries, keys = shape
    attention = attnkit.attentions.build("additive", head_dim=D)
    inputs = torch.ones(batch, H, queries, D), torch.ones(batch, H, keys, D), torch.ones(batch, H, keys, D)
    assert attention(*inputs, backend=backend).equal(attention(*inputs, backend="reference"))
    assert attention.weights(*inputs[:2]).shape == (batch, H, queries, keys)


def test_overridden_projections_and_scales_keep_every_backend(seed: int) -> None:
    attention = Projected(head_dim=D, num_heads=H).double()
    query, key, value = torch.randn(3, 1, H, T, D).double()
    assert attention.backends == ("reference", "chunked", "sdpa", "tiled", "blockwise")
    expected = attention(query, key, value, backend="reference")
    for backend in ("chunked", "sdpa", "tiled", "blockwise"):
        torch.testing.assert_close(attention(query, key, value, backend=backend), expected, rtol=1e-10, atol=1e-10)


def test_a_score_class_may_not_declare_backends() -> None:
    with pytest.raises(TypeError, match=r"Own declares `backends`, which nothing reads"):

        class Own(ScaledDotProduct):
            backends = ("reference",)


def test_a_compiled_model_uses_the_same_backend(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)
    query, key, value = torch.randn(3, 1, H, T, D)
    for name in ("auto", "sdpa"):
        targets: list[str] = []

        def look(graph: torch.fx.GraphModule, example: object, targets: list[str] = targets) -> torch.fx.GraphModule:
            targets.extend(str(node.target) for node in graph.graph.nodes)
            return graph

        torch._dynamo.reset()
        torch.compile(attention, fullgraph=True, backend=look)(query, key, value, backend=name)
        assert [target for target in targets if "scaled_dot_product_attention" in target], targets


@pytest.fixture
def doubled() -> Iterator[type[Backend]]:
    """A third party's backend, unregistered afterwards."""

    class Doubled(Backend):
        """Returns twice the attention, to be recognisable; suits up to five keys, and takes no bias."""

        def refuses_score(self, attention: Attention) -> str | None:
            return None if isinstance(attention, ScaledDotProduct) else "its score is not scaled_dot_product"

        def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
            return None if inputs.bias is None else "it takes no bias"

        def suits(self, attention: Attention, inputs: Inputs) -> bool:
            return inputs.key.shape[-2] <= 5

        def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
            return 2 * Reference().compute(attention, inputs)

    attnkit.backends.register("doubled")(Doubled)
    yield Doubled
    del attnkit.backends._classes["doubled"]
    attnkit.backends.version += 1
    parameters.cache_clear()


def test_a_registered_backend_is_chosen_where_it_applies(doubled: type[Backend], seed: int) -> None:
    attention, other = (attnkit.attentions.build(name, head_dim=D, num_heads=H) for name in ("scaled_dot_product", "general"))
    long, short = torch.randn(3, 1, H, 6, D), torch.randn(3, 1, H, 5, D)
    assert attention.backends == ("reference", "chunked", "sdpa", "tiled", "blockwise", "doubled")
    assert torch.equal(attention(*short), 2 * attention(*short, backend="reference"))
    assert torch.equal(attention(*long), attention(*long, backend="sdpa"))  # it does not suit
    assert torch.equal(attention(*long, backend="doubled"), 2 * attention(*long, backend="reference"))  # but it can
    bias = torch.randn(5)
    assert torch.equal(attention(*short, attn_bias=bias), attention(*short, attn_bias=bias, backend="sdpa"))
    with pytest.raises(Refused, match=r"backend 'doubled' cannot compute this call: it takes no bias; choose 'auto'"):
        attention(*short, attn_bias=bias, backend="doubled")
    assert torch.equal(other(*short), other(*short, backend="sdpa"))
    with pytest.raises(Refused, match=r"General has no backend 'doubled': its score is not scaled_dot_product; choose 'auto' or on"):
        other.check_backend("doubled")


def test_a_spec_may_name_a_registered_backend(doubled: type[Backend]) -> None:
    sizes = {"d_model": 8, "num_layers": 1, "num_heads": 2}
    assert attnkit.stacks.resolve({"name": "encoder", **sizes, "backend": "doubled"})["backend"] == "doubled"
    assert attnkit.stacks.build({"name": "encoder", **sizes, "backend": "doubled"})(torch.zeros(1, 3, 8)).shape == (1, 3, 8)
    with pytest.raises(
        attnkit.ConfigurationError, match=r"backend must be .*'auto', .*'doubled', 'flex', 'reference', 'sdpa', 'tiled'.*'dubled'"
    ):
        attnkit.stacks.resolve({"name": "encoder", **sizes, "backend": "dubled"})


def test_an_unregistered_backend_is_refused(seed: int) -> None:
    with pytest.raises(
        Refused, match="ScaledDotProduct has no backend 'doubled'; choose 'auto' or one of reference, chunked, sdpa, tiled, bl"
    ):
        attnkit.attentions.build("scaled_dot_product", head_dim=D).check_backend("doubled")


def test_the_choice_depends_on_dropout_and_length(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)
    attention.chunk_elements = H * 200
    chosen: list[str] = []
    for name, backend in ordered().items():
        monkeypatch.setattr(type(backend), "compute", lambda self, a, inputs, name=name: chosen.append(name) or inputs.value)
    half, single = torch.bfloat16, torch.float32
    for length, dtype, dropout in ((9, single, 0.0), (9, half, 0.0), (130, half, 0.0), (9, single, 0.5), (130, single, 0.5)):
        x = torch.zeros(1, H, length, D, dtype=dtype)
        attention(x, x, x, dropout=dropout)
    assert chosen == ["sdpa", "reference", "sdpa", "reference", "chunked"]


@pytest.mark.parametrize(
    ("is_intel", "expected"), [(True, ["sdpa", "sdpa", "sdpa"]), (False, ["reference", "sdpa", "reference"])], ids=["intel", "others"]
)
def test_short_half_precision_decoding_uses_the_fused_kernel_without_gradients(
    is_intel: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.attention.backend.sdpa.IS_INTEL", is_intel)
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H)
    x, chosen = torch.zeros(1, H, 9, D, dtype=torch.bfloat16), []
    many = torch.zeros(1, 1, MAX_COPY // (H * D) + 1, D, dtype=torch.bfloat16).expand(1, H, -1, D)
    for name, backend in ordered().items():
        monkeypatch.setattr(type(backend), "compute", lambda self, a, inputs, name=name: chosen.append(name) or inputs.value)
    with torch.no_grad():
        attention(x, x, x)
        attention(x[:, :, :1], x, x)
        attention(x[:, :, :1], many, many)
    attention(x, x, x)
    assert chosen == [*expected, "reference"]


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kv_heads", [H, 1])
def test_a_single_query_in_half_precision_is_rounded_once(
    dtype: torch.dtype, kv_heads: int, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("attnkit.attention.backend.sdpa.IS_INTEL", False)
    attention = attnkit.attentions.build("scaled_dot_product", head_dim=D, num_heads=H, num_kv_heads=kv_heads)
    query, key, value = (torch.randn(2, h, t, D).to(dtype) for h, t in ((H, 1), (kv_heads, 40), (kv_heads, 40)))
    bias = torch.randn(1, H, 1, 40).to(dtype)
    exact = attention(query.double(), key.double(), value.double(), attn_bias=bias.double(), backend="reference")
    found = attention(query, key, value, attn_bias=bias)
    assert found.dtype is dtype
    # half a unit in the last place of the rounded result, and the error of float32 sums
    torch.testing.assert_close(found.double(), exact, rtol=torch.finfo(dtype).eps / 2, atol=1e-5)
    assert attention(query[:0], key[:0], value[:0]).shape == (0, H, 1, D)
