import copy
import gc
import warnings
import weakref
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from attnkit import packed as packed_module
from attnkit import panels
from attnkit.linear import Linear
from attnkit.packed import MAX_ROWS, MIN_PANELED, MIN_PRODUCTS, MIN_USES, Packed, packing

WIDTH = 512  # wide enough to be packed


@pytest.fixture(autouse=True, params=["panels", "libraries"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether there are compiled loops; on every processor, oneDNN serves without them."""
    monkeypatch.setattr("attnkit.packed.IS_INTEL", False)
    if request.param == "libraries":
        monkeypatch.setattr("attnkit.panels._loops", lambda: None)
    elif not panels.serve():
        pytest.skip("there is no C++ compiler, or the processor has no AVX2")
    return request.param == "panels"


@pytest.fixture
def layer(seed: int) -> Linear:
    return Linear(WIDTH, WIDTH)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1,), (5,), (80,), (2, 3), (0,), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_packed_products_match_torch(shape: tuple[int, ...], bias: bool, seed: int) -> None:
    layer = Linear(WIDTH, 2 * WIDTH, bias=bias)
    x = torch.randn(*shape, 2, WIDTH)[..., 0, :]  # not contiguous
    expected = F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double())
    with packing(packed := Packed()):
        for _ in range(MIN_USES + 2):
            torch.testing.assert_close(layer(x.clone()).double(), expected, rtol=0, atol=1e-4)
    assert len(packed.uses) == (0 not in shape)


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("outputs", [WIDTH // 2, 2 * WIDTH])
def test_bf16_products_are_fp32_products_rounded_once(rows: int, outputs: int, seed: int) -> None:
    layer, x, packed = Linear(WIDTH, outputs).bfloat16(), torch.randn(rows, WIDTH).bfloat16(), Packed()
    expected = F.linear(x.double(), layer.weight.double(), layer.bias.double())
    with packing(packed):
        for _ in range(MIN_USES + 2):
            torch.testing.assert_close(layer(x.clone()).double(), expected, rtol=2**-8, atol=1e-4)
    assert packed.uses


@torch.no_grad()
@pytest.mark.parametrize("width", [8, WIDTH])
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_sharing_an_input_are_packed_into_one_matrix(width: int, rows: int, dtype: torch.dtype, seed: int) -> None:
    layers = [Linear(width, outputs, bias=bias).to(dtype) for outputs, bias in ((width, True), (3, True), (5, False), (2 * width, True))]
    after, packed = Linear(width, width).to(dtype), Packed()
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    with packing(packed):
        for _ in range(MIN_USES + 3):
            x = torch.randn(1, rows, width, dtype=dtype)
            for layer in layers:
                torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=tolerance)
            y = F.linear(x, after.weight, after.bias)
            torch.testing.assert_close(after(x.clone()), y, rtol=0, atol=tolerance)
    products = [packed.uses[id(layer.weight)].product for layer in (*layers, after)]
    assert [product is products[0] for product in products] == [True, True, False, True, False]


@torch.no_grad()
def test_parts_of_a_joint_matrix_follow_their_input_and_weights(seed: int) -> None:
    first, second = Linear(8, 8), Linear(8, 8)
    with packing(Packed()):
        for step in range(MIN_USES + 6):
            x = torch.randn(2, 8)
            for layer in (first, second, first):  # the second time, in which it is no longer waiting, too
                y = layer(x)
                torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-5)
                y.zero_()  # is the caller's own
            first(x)
            x.mul_(3)
            torch.testing.assert_close(second(x), F.linear(x, second.weight, second.bias), rtol=0, atol=1e-5)
            changed = (first.weight, second.bias)[step % 2]
            if step > MIN_USES:
                changed.mul_(-2)


@torch.no_grad()
@pytest.mark.parametrize(
    ("outputs", "rows", "is_paneled", "is_onednn"),
    [
        (WIDTH, 1, True, True), (WIDTH, MAX_ROWS[torch.float32], True, True), (WIDTH, MAX_ROWS[torch.float32] + 1, False, True),
        (MIN_PANELED // WIDTH, 3, True, False), (8, 3, False, False), (8, MIN_PRODUCTS // (8 * WIDTH), False, True),
    ],
)  # fmt: skip
def test_loops_multiply_few_rows_and_onednn_other_large_products(
    outputs: int, rows: int, is_paneled: bool, is_onednn: bool, loops: bool, seed: int
) -> None:
    layer, x, packed = Linear(WIDTH, outputs), torch.randn(rows, WIDTH), Packed()
    with packing(packed):
        for _ in range(MIN_USES + 1):
            torch.testing.assert_close(layer(x.clone()), F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
        product = packed.uses[id(layer.weight)].product
        assert product is not None
        assert isinstance(product.matrix.weight, panels.Panels) is (is_paneled and loops)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
            layer(x.clone())
    assert any(event.name == "mkldnn::_linear_pointwise" for event in recorded.events()) is (is_onednn and not (is_paneled and loops))


@torch.no_grad()
def test_loops_without_threads_serve_one_thread(monkeypatch: pytest.MonkeyPatch, loops: bool) -> None:
    if not loops:
        pytest.skip("this is about loops")
    monkeypatch.setattr(panels._loops(), "has_threads", lambda: 0)
    for threads in (1, 2):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert panels.serve() is (threads == 1)


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "is_packed"), [(torch.float32, False), (torch.bfloat16, True)])
def test_intel_processors_leave_fp32_products_of_many_rows_to_torch(
    dtype: torch.dtype, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.packed.IS_INTEL", True)
    layer, x = Linear(WIDTH, WIDTH).to(dtype), torch.ones(MAX_ROWS[dtype] + 1, WIDTH, dtype=dtype)
    with packing(Packed()), torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        for _ in range(MIN_USES + 1):
            layer(x.clone())
    assert any(event.name == "mkldnn::_linear_pointwise" for event in recorded.events()) is is_packed


@pytest.mark.parametrize("from_step", [0, MIN_USES + 1])
@pytest.mark.parametrize("rows", [1, 3])
def test_inference_tensors_are_supported(rows: int, from_step: int, layer: Linear) -> None:
    other, packed = Linear(WIDTH, WIDTH), Packed()
    for step in range(MIN_USES + 4):
        with torch.inference_mode(step >= from_step), torch.no_grad(), packing(packed):
            x = torch.randn(rows, WIDTH)
            for _ in range(2):
                torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
                torch.testing.assert_close(other(x), F.linear(x, other.weight, other.bias), rtol=0, atol=1e-4)
                x.mul_(2)
    first, second = (packed.uses[id(one.weight)].product for one in (layer, other))
    assert (first is second) is (from_step > 0)  # nobody knows whether an inference tensor has changed


@torch.no_grad()
def test_a_weight_that_changes_is_packed_again(layer: Linear) -> None:
    x, weights = torch.randn(3, WIDTH), Packed()
    for _ in range(3):
        with packing(weights):
            for _ in range(MIN_USES + 2):
                y = layer(x.clone())
        torch.testing.assert_close(y, F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
        layer.weight.mul_(-2)


@torch.no_grad()
def test_temporary_weights_are_not_confused_with_each_other(layer: Linear) -> None:
    x = torch.randn(3, WIDTH)
    with packing(Packed()):
        for i in range(3 * MIN_USES):
            other = copy.copy(layer)
            other._parameters = {"weight": layer.weight * i, "bias": None}
            torch.testing.assert_close(other(x), i * F.linear(x, layer.weight), rtol=0, atol=1e-3)


@torch.no_grad()
def test_temporary_weights_are_not_packed(layer: Linear) -> None:
    packed = Packed()
    with packing(packed):
        for _ in range(3):
            other = copy.copy(layer)
            other._parameters = {"weight": layer.weight * 2, "bias": None}
            other(torch.ones(3, WIDTH))
    assert not packed.uses


@torch.no_grad()
@pytest.mark.parametrize("bias", [torch.arange(2.0 * WIDTH)[::2], torch.ones(1).expand(WIDTH)])
def test_a_bias_may_have_any_strides(bias: torch.Tensor, layer: Linear) -> None:
    x, layer.bias = torch.randn(3, WIDTH), torch.nn.Parameter(bias)
    with packing(Packed()):
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=1e-6, atol=1e-4)


def test_gradients_transforms_autocast_and_other_dtypes_fall_back_to_torch(layer: Linear) -> None:
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
    assert not weights.uses


def steps(x: torch.Tensor, owner: nn.Sequential) -> list[torch.Tensor]:
    """Return the product of `x` with each layer in a block of its own, once the weights are packed."""
    with packing(packed := Packed(owner)):
        for _ in range(MIN_USES + 2):
            x = x.clone()
            products = [layer(x) for layer in owner]
    assert all(use.product is not None for use in packed.uses.values())
    return products


@torch.no_grad()
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_later_block_reuses_weights_packed_earlier(rows: int, dtype: torch.dtype, seed: int) -> None:
    owner = nn.Sequential(*(Linear(WIDTH, 2 * WIDTH, bias=i > 0) for i in range(3))).to(dtype)  # the last two are joined
    x = torch.randn(rows, WIDTH, dtype=dtype)
    first = steps(x, owner)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorded:
        second = steps(x, owner)
    assert all(map(torch.equal, first, second))
    assert not {event.name for event in recorded.events()} & {"aten::cat", "mkldnn::_reorder_linear_weight"}


@torch.no_grad()
def test_what_was_packed_before_is_packed_from_the_second_use_on(seed: int) -> None:
    owner = nn.Sequential(*(Linear(WIDTH, 2 * WIDTH) for _ in range(2)))
    steps(torch.randn(3, WIDTH), owner)
    for multiplied in range(2):  # in the second round, with other weights
        with packing(packed := Packed(owner)):
            for rows in (40, 50, 3):  # a prompt in two parts, and a step
                x = torch.randn(rows, WIDTH)
                for layer in owner:
                    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
                products = [packed.uses[id(layer.weight)].product for layer in owner]
                assert (products[0] is products[1] is not None) is (rows == 3)
        owner[multiplied].weight.mul_(2)


@torch.no_grad()
def test_counters_and_tracers_see_each_product(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.packed.IS_INTEL", True)  # elsewhere, oneDNN multiplies, which neither FlopCounterMode nor torch.jit knows
    layer, x = Linear(WIDTH, WIDTH).requires_grad_(False), torch.randn(1, WIDTH)

    def multiplied(x: torch.Tensor) -> torch.Tensor:
        with packing(Packed()):
            return torch.stack([layer(x.clone()) for _ in range(MIN_USES + 1)])[-1]

    with FlopCounterMode(display=False) as counted:
        multiplied(x)
    assert counted.get_total_flops() == (MIN_USES + 1) * 2 * WIDTH**2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated, and warns of branches
        graphs = (make_fx(multiplied)(x), torch.jit.trace(multiplied, x))
    for graph in graphs:
        torch.testing.assert_close(graph(-x), F.linear(-x, layer.weight, layer.bias), rtol=0, atol=1e-4)


@torch.no_grad()
def test_an_input_of_another_width_is_an_error(seed: int) -> None:
    layer = Linear(WIDTH, WIDTH)
    with packing(Packed()):
        for _ in range(MIN_USES + 1):
            layer(torch.ones(1, WIDTH))
        for width in (1, WIDTH // 2, 2 * WIDTH):
            with pytest.raises(RuntimeError):
                layer(torch.ones(1, width))


@torch.no_grad()
def test_changed_weights_are_not_packed_for_a_short_block(seed: int) -> None:
    """(As in validation, between steps of training.)"""
    owner = nn.Sequential(*(Linear(WIDTH, 2 * WIDTH) for _ in range(2)))
    steps(torch.randn(3, WIDTH), owner)
    owner[0].weight.mul_(2)
    owner[1].bias.mul_(2)
    with packing(packed := Packed(owner)):
        for _ in range(MIN_USES):
            x = torch.randn(3, WIDTH)
            for layer in owner:
                torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
    assert not any(use.product for use in packed.uses.values())


EDITS: dict[str, Callable[[torch.Tensor, torch.Tensor], None]] = {
    "one number": lambda weight, bias: weight[5, 7:8].fill_(100.0),
    "rows": lambda weight, bias: weight.copy_(weight.roll(8, 0)),
    "columns": lambda weight, bias: weight.copy_(weight.roll(8, 1)),
    "signs": lambda weight, bias: weight[:, 1::2].neg_(),
    "bias": lambda weight, bias: bias.copy_(bias.roll(8)),
}


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("edited", EDITS)
@pytest.mark.parametrize("shows_version", [False, True])
def test_weights_changed_since_the_last_block_are_packed_again(edited: str, dtype: torch.dtype, shows_version: bool, seed: int) -> None:
    owner = nn.Sequential(*(Linear(WIDTH, WIDTH) for _ in range(2))).to(dtype)
    nn.init.normal_(owner[1].bias)
    x = torch.randn(3, WIDTH, dtype=dtype)
    steps(x, owner)
    weight, bias = (owner[1].weight, owner[1].bias) if shows_version else (owner[1].weight.data, owner[1].bias.data)
    versions = owner[1].weight._version, owner[1].bias._version
    EDITS[edited](weight, bias)
    assert ((owner[1].weight._version, owner[1].bias._version) != versions) is shows_version
    tolerance = {torch.float32: 1e-4, torch.bfloat16: 0.05}[dtype]
    for layer, product in zip(owner, steps(x, owner), strict=True):
        torch.testing.assert_close(product, F.linear(x, layer.weight, layer.bias), rtol=0.01, atol=tolerance)


@torch.no_grad()
def test_the_storage_of_a_weight_may_be_freed_after_a_block(seed: int) -> None:
    owner = nn.Sequential(Linear(WIDTH, WIDTH))
    steps(torch.randn(1, WIDTH), owner)
    for parameter in owner.parameters():
        parameter.untyped_storage().resize_(0)  # as FSDP2 does


@torch.no_grad()
def test_the_old_storage_of_a_weight_may_be_reused(seed: int) -> None:
    owner = nn.Sequential(Linear(WIDTH, WIDTH))
    owner[0].weight.data = torch.randn(WIDTH, WIDTH).t()
    x = torch.randn(1, WIDTH)
    [first] = steps(x, owner)
    for parameter in owner.parameters():
        old = parameter.data
        parameter.data = old.clone(memory_format=torch.preserve_format)
        old.fill_(7.0)
    assert torch.equal(steps(x, owner)[0], first)


@torch.no_grad()
def test_packed_copies_are_freed_with_their_owner_without_a_collector(seed: int) -> None:
    owner = nn.Sequential(Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH))
    gc.disable()
    try:
        steps(torch.randn(3, WIDTH), owner)
        alive = [weakref.ref(kept) for kept in packed_module._kept[owner].values()]
        alive += [weakref.ref(parameter) for parameter in owner.parameters()]
        del owner
        assert len(alive) == 5
        assert all(reference() is None for reference in alive)
    finally:
        gc.enable()


@torch.no_grad()
def test_packed_copies_of_replaced_weights_are_dropped(seed: int) -> None:
    owner, x = nn.Sequential(Linear(WIDTH, WIDTH), Linear(WIDTH, WIDTH)), torch.randn(3, WIDTH)
    for _ in range(3):
        steps(x, owner)
        assert len(packed_module._kept[owner]) == 1
        owner[1].weight = nn.Parameter(torch.randn(WIDTH, WIDTH))


@torch.no_grad()
def test_parameters_can_be_swapped_after_a_block(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    owner = nn.Sequential(Linear(WIDTH, WIDTH))
    steps(torch.randn(3, WIDTH), owner)
    monkeypatch.setattr(torch.__future__, "get_swap_module_params_on_conversion", lambda: True)
    assert owner.to(torch.bfloat16)[0].weight.dtype is torch.bfloat16


@torch.no_grad()
@pytest.mark.parametrize("weight", [torch.randn(3, 2**18 + 1)[:1, : 2**18], torch.randn(WIDTH, 2 * WIDTH).t(), torch.randn(2**20 + 1)[1:]])
def test_a_weight_may_have_any_strides(weight: torch.Tensor, seed: int) -> None:
    weight = weight.reshape(2 * WIDTH, -1) if weight.ndim == 1 else weight
    layer = Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight = nn.Parameter(weight)
    x, owner = torch.randn(3, weight.shape[1]), nn.Sequential(layer)
    [first], [second] = steps(x, owner), steps(x, owner)
    torch.testing.assert_close(first, F.linear(x, layer.weight), rtol=1e-4, atol=1e-2)
    assert torch.equal(first, second)


@torch.no_grad()
@pytest.mark.parametrize("first", [1, 3])
@pytest.mark.parametrize("width", [8, WIDTH])
def test_the_number_of_rows_may_change(width: int, first: int, seed: int) -> None:
    """(The experts of a mixture get other numbers of tokens in each step.)"""
    layer = Linear(width, 2 * width)
    with packing(Packed()):
        for step in range(2 * MIN_USES):
            x = torch.randn(first if step <= MIN_USES else (0, 1, 70, 3)[step % 4], width)
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=1e-4)
