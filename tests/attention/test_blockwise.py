"""Blocks of any size give what the reference gives, for every score that is computed so."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import attnkit
from attnkit import draws
from attnkit.attention import Attention, LazyBias
from attnkit.attention.backend import blocks, online
from attnkit.attention.backend.blocks import Call
from attnkit.masks import Mask

B, H, D = 3, 4, 5
BACKENDS = ("blockwise", "additive_eager")
MASKS = ("none", "causal", "window", "both", "random", "dead", "padded", "documents", "stretches", "near_stretches")


@pytest.fixture(autouse=True, params=[(5, 7, 70), (4, 3, 100)])
def sizes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Blocks of two heads, and of all heads of two examples."""
    for name, number in zip(("ROWS", "COLUMNS", "PAIRS"), request.param, strict=True):
        monkeypatch.setattr(blocks, name, number)


def build(backend: str, kv_heads: int = H) -> Attention:
    name = "scaled_dot_product" if backend == "blockwise" else "additive"
    built: Attention = attnkit.attentions.build(name, head_dim=D, num_heads=H, num_kv_heads=kv_heads).double()
    return built


def draw(queries: int, keys: int, kv_heads: int = H) -> list[Tensor]:
    shapes = ((H, queries), (kv_heads, keys), (kv_heads, keys))
    return [torch.randn(B, heads, length, D).double().requires_grad_() for heads, length in shapes]


def mask_of(kind: str, queries: int, keys: int) -> Mask | Tensor | None:
    row = torch.arange(queries)[:, None] // 4 == torch.arange(keys) // 4
    return {
        "none": None,
        "causal": Mask(causal=True),
        "window": Mask(window=4),
        "both": Mask(causal=True, window=3),
        "random": torch.rand(B, H, queries, keys) < 0.4,
        "dead": (torch.rand(B, 1, queries, keys) < 0.4) & (torch.arange(queries) % 3 > 0)[:, None],
        "padded": torch.arange(keys) >= torch.tensor([0, 2, keys])[:, None, None, None],
        "documents": row,
        "stretches": Mask(causal=True, stretches=torch.arange(queries) // torch.tensor([[4], [5], [20]])),
        "near_stretches": Mask(window=3, stretches=torch.arange(queries) // torch.tensor([[4], [5], [20]])),
    }[kind]


def compare(attention: Attention, backend: str, given: list[Tensor], leaves: list[Tensor], **how: object) -> None:
    with draws.using(torch.tensor([1, 2, 3])):
        expected, output = (attention(*given, **how, backend=name) for name in ("reference", backend))
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-10)
    leaves = [*leaves, *attention.parameters()]
    for found, want in zip(*(torch.autograd.grad(y.square().sum(), leaves) for y in (output, expected)), strict=True):
        torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_every_mask_matches_the_reference(backend: str, kind: str, dropout: float) -> None:
    attention, given = build(backend, 2), draw(13, 13, 2)
    compare(attention, backend, given, given, mask=mask_of(kind, 13, 13), dropout=dropout, first_query=3)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 9), (9, 1), (6, 17), (17, 6)])
def test_key_and_query_lengths_may_differ(backend: str, queries: int, keys: int) -> None:
    attention, given = build(backend), draw(queries, keys)
    compare(attention, backend, given, given, mask=mask_of("dead", queries, keys))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("shape", [(13,), (13, 13), (13, 1), (1, 13), (H, 1, 1), (H, 13, 1), (B, 1, 1, 13), (B, H, 13, 13), (1, 1, 13, 13)])
def test_every_bias_has_its_gradient(backend: str, shape: tuple[int, ...]) -> None:
    attention, given, bias = build(backend, 2), draw(13, 13, 2), torch.randn(shape).double().requires_grad_()
    compare(attention, backend, given, [*given, bias], attn_bias=bias, mask=mask_of("causal", 13, 13), dropout=0.2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("lowest", [torch.finfo(torch.float64).min, -1e12])
def test_a_row_at_the_lowest_finite_bias_keeps_its_weights_and_gradients(backend: str, lowest: float) -> None:
    attention, given, bias = build(backend), draw(13, 13), torch.zeros(13, 13).double()
    bias[3], bias[4, 2:] = lowest, lowest
    given[0].data[:, :, 3] = 0  # equal scores in the row, whose digits the bias swallows
    if backend == "additive_eager":
        given[1].data[:] = 0
    compare(attention, backend, given, given[2:], attn_bias=bias)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["alibi", "relative", "kerple", "fire"])
@pytest.mark.parametrize("kind", ["none", "causal", "both"])
def test_the_biases_of_positions_have_the_gradients_of_their_parameters(backend: str, name: str, kind: str) -> None:
    attention, given, t = build(backend), draw(13, 13), torch.arange(13)[None]
    position = attnkit.positions.build(name, num_heads=H, bidirectional=kind == "none").double()
    bias = LazyBias(position.bias, t, t, position.by_offset)
    compare(attention, backend, given, [*given, *position.parameters()], attn_bias=bias, mask=mask_of(kind, 13, 13), dropout=0.2)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["none", "causal"])
@pytest.mark.parametrize(("dtype", "slope", "digits"), [(torch.float32, 10.0, 1e-4), (torch.float64, 75.0, 1e-12)])
def test_blocks_of_keys_too_distant_to_matter_are_skipped(
    backend: str, kind: str, dtype: torch.dtype, slope: float, digits: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the steepest slope, weights are zero from about 10 tokens away, and denormal just before that."""
    monkeypatch.setattr(blocks, "PAIRS", 1)  # a block has one head
    attention, t = build(backend), torch.arange(32)[None]
    slopes = torch.tensor([slope, slope / 10, slope / 100, 0.0], dtype=dtype).requires_grad_()
    leaves = [*(x.detach().to(dtype).requires_grad_() for x in draw(32, 32)), slopes]
    found: list[bool] = []

    def is_zero(self: Call, block: blocks.Block, sums: Tensor, original: Callable[..., bool] = Call.is_zero) -> bool:
        found.append(original(self, block, sums))
        return found[-1]

    monkeypatch.setattr(Call, "is_zero", is_zero)

    def gradients(backend: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
        *given, steepness = (x.to(dtype) for x in leaves)
        bias = LazyBias(lambda q, k: -steepness[:, None, None] * (q[:, None, :, None] - k[:, None, None]).abs().to(dtype), t, t, True)
        output = attention.to(dtype)(*given, attn_bias=bias, mask=mask_of(kind, 32, 32), backend=backend)
        return output.detach(), *torch.autograd.grad(output.square().sum(), leaves)

    for one, other in zip(gradients(backend, dtype), gradients("reference", torch.float64), strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=digits, atol=10 * digits)
    assert set(found) == {True, False}


@pytest.mark.parametrize(("slope", "is_far"), [(1.0, False), (10.0, True)])
def test_weights_of_far_keys_are_not_denormal(slope: float, is_far: bool) -> None:
    x, line = torch.randn(1, 1, 40, D), -slope * torch.arange(-39, 40).abs().float()
    call = Call(x, x, x, None, line.view(1, 1, 1, -1), None, None, True, True, 0, 1.0, 0.0, [0, 0, 0], "blockwise")
    powers = call.powers(torch.tensor([-torch.inf, -200, -149, -140, -127, -125, -1, 0, torch.nan]))
    denormal = [0.0, 0.0, 0.0] if is_far else [2.0**-149, 2.0**-140, 2.0**-127]
    torch.testing.assert_close(
        powers, torch.tensor([0.0, 0.0, *denormal, 2.0**-125, 0.5, 1.0, torch.nan]), equal_nan=True, rtol=1e-6, atol=0
    )


@pytest.mark.parametrize("backend", ["blockwise", "additive_eager"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_errors_stay_within_those_of_the_inputs(backend: str, dtype: torch.dtype) -> None:
    attention, given = build(backend).to(dtype), [x.detach().to(dtype) for x in draw(13, 13)]
    with torch.autocast("cpu", dtype):
        output = attention(*given, mask=Mask(causal=True), backend=backend)
    query, key = attention.project_query(given[0]).double(), attention.project_key(given[1]).double()
    exact = attention.double()(query, key, given[2].double(), projected=True, mask=Mask(causal=True), backend="reference")
    assert output.dtype == dtype
    torch.testing.assert_close(output.double(), exact, rtol=0, atol=4 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("backend", ["blockwise", "additive_eager"])
def test_a_compiled_graph_contains_blocks_as_one_operator(backend: str) -> None:
    attention, given, t = build(backend), draw(13, 13), torch.arange(13)[None]
    position = attnkit.positions.build("relative", num_heads=H).double()

    def run(*given: Tensor) -> Tensor:
        output: Tensor = attention(*given, attn_bias=LazyBias(position.bias, t, t, True), backend=backend)
        return output

    torch._dynamo.reset()
    found = torch.compile(run, fullgraph=True, backend="aot_eager")(*given)
    leaves = [*given, *position.parameters()]
    for one, other in zip(*(torch.autograd.grad(y.sum(), leaves) for y in (found, run(*given))), strict=True):
        torch.testing.assert_close(one, other)


def test_blocks_cover_exactly_the_causal_window() -> None:
    x = torch.randn(1, 1, 40, D).double()
    call = Call(x, x, x, None, None, None, None, False, True, 3, 1.0, 0.0, [0, 0, 0], "blockwise")
    seen = torch.zeros(40, 40, dtype=torch.int64)
    for block in (block for row in call.rows() for block in row):
        call.part(seen[None, None], block).add_(1)
    assert (seen[Mask(causal=True, window=3).dense(40, 40, torch.device("cpu"))[0, 0]] == 1).all()
    assert seen.max() == 1
    assert seen.sum() <= 40 * (blocks.ROWS + 3)


@pytest.mark.parametrize("by_offset", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_operator_passes_opcheck(backend: str, by_offset: bool) -> None:
    attnkit.backends.get(backend)  # registers its score
    tensors = draw(6, 7, 2)
    weight = None if backend == "blockwise" else torch.randn(H, D).double().requires_grad_()
    bias = torch.randn(1, H, 1, 12).double().requires_grad_() if by_offset else None
    settings = (by_offset, True, 0, 0.5, 0.0, [0, 0, 0], backend)
    torch.library.opcheck(online._attend, (*tensors, weight, bias, None, None, *settings))
