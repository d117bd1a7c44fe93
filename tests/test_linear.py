import copy

import pytest
import torch
import torch.nn.functional as F

from attnkit.linear import MIN_NUMBERS, MIN_PRODUCTS, MIN_USES, Linear, Packed, packing

WIDTH = 512  # wide enough to be packed


@pytest.fixture
def layer(seed: int) -> Linear:
    return Linear(WIDTH, WIDTH)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1,), (5,), (80,), (2, 3), (0,), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_are_those_of_torch(shape: tuple[int, ...], bias: bool, seed: int) -> None:
    layer = Linear(WIDTH, 2 * WIDTH, bias=bias)
    x = torch.randn(*shape, 2, WIDTH)[..., 0, :]  # not contiguous
    expected = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    with packing(packed := {}):
        for _ in range(MIN_USES + 2):
            torch.testing.assert_close(layer(x).double(), expected, rtol=0, atol=1e-4)
    assert len(packed) == (0 not in shape)


@torch.no_grad()
@pytest.mark.skipif(not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="needs a processor on which oneDNN multiplies in bf16")
def test_bf16_is_packed_as_well(seed: int) -> None:
    layer, x, packed = Linear(WIDTH, WIDTH).bfloat16(), torch.randn(3, WIDTH).bfloat16(), Packed()
    with packing(packed):
        for _ in range(MIN_USES + 2):
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=2**-7, atol=2**-7)
    assert packed


@torch.no_grad()
def test_a_small_weight_goes_to_onednn_with_many_rows_alone(seed: int) -> None:
    layer, packed = Linear(64, 64), Packed()
    assert layer.weight.numel() < MIN_NUMBERS[torch.float32]
    rows = MIN_PRODUCTS // layer.weight.numel()
    with packing(packed):
        layer(torch.randn(rows - 1, 64))
        assert not packed
        x = torch.randn(rows, 64)
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
    assert packed


@torch.no_grad()
def test_a_weight_that_changes_is_packed_again(layer: Linear) -> None:
    x, weights = torch.randn(3, WIDTH), {}
    for _ in range(3):
        with packing(weights):
            for _ in range(MIN_USES + 2):
                y = layer(x)
        torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
        layer.weight.mul_(-2)


@torch.no_grad()
def test_weights_that_live_for_one_call_are_not_mistaken_for_each_other(layer: Linear) -> None:
    x = torch.randn(3, WIDTH)
    with packing({}):
        for i in range(3 * MIN_USES):
            other = copy.copy(layer)
            other._parameters = {"weight": layer.weight * i, "bias": None}
            torch.testing.assert_close(other(x), i * F.linear(x, layer.weight), rtol=0, atol=1e-3)


@torch.no_grad()
def test_weights_that_live_for_one_call_are_not_kept(layer: Linear) -> None:
    packed = Packed()
    with packing(packed):
        for _ in range(3):
            other = copy.copy(layer)
            other._parameters = {"weight": layer.weight * 2, "bias": None}
            other(torch.ones(3, WIDTH))
    assert not packed


@torch.no_grad()
@pytest.mark.parametrize("bias", [torch.arange(2.0 * WIDTH)[::2], torch.ones(1).expand(WIDTH)])
def test_a_bias_may_have_any_strides(bias: torch.Tensor, layer: Linear) -> None:
    x, layer.bias = torch.randn(3, WIDTH), torch.nn.Parameter(bias)
    with packing({}):
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=1e-6, atol=1e-4)


def test_gradients_transforms_autocast_and_other_types_go_to_torch(layer: Linear) -> None:
    x, weights = torch.randn(3, WIDTH), Packed()
    with packing(weights):
        layer(x).sum().backward()
        assert layer.weight.grad is not None
        with torch.no_grad():
            torch.func.vmap(layer)(x[:, None])
            layer.double()(x.double())
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16), packing(weights):
        assert layer.float()(x).dtype == torch.bfloat16
    with torch.no_grad():
        layer(x)
    assert not weights
