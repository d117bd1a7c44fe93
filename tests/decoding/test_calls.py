"""What has been recorded is repeated with new numbers; what depends on more than the calls of torch's functions is refused."""

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.decoding.calls import Calls

X = torch.arange(6.0).view(2, 3)


def record(function: Callable[[], Tensor], owner: Any = None) -> Callable[[], Tensor]:
    with Calls() as calls:
        result = function()
    return calls.program(result, function, owner=function if owner is None else owner)


def whole(x: Tensor) -> Tensor:
    """Slices, several results, containers, keywords, properties, operators, constants, in-place calls and unused results."""
    first, (values, places) = x.unbind(0)[0], x.topk(2, dim=-1)
    parts = torch.cat([x[:, 1:], values.mT.reshape(x.shape[0], -1), places + 0.5], dim=-1)
    parts[:, 0] = 2.5
    parts.mul_(torch.tensor(2.0)).sum()
    filled = torch.full((2,), float("inf"), dtype=x.dtype)
    mixed: Tensor = torch.einsum("bi,bj->bij", parts, x).flatten(1).minimum(filled[:, None]) - first.sum() + len(x)
    return mixed


def test_calls_are_replayed_with_new_values(seed: int) -> None:
    x = torch.randn(2, 3)
    repeated = record(lambda: whole(x))
    for _ in range(2):
        torch.testing.assert_close(repeated(), whole(x), rtol=0, atol=0)
        x.normal_()


def test_existing_tensors_are_written_in_place() -> None:
    total, x = torch.zeros(3), torch.ones(3)
    repeated = record(lambda: total.add_(x) * 1)  # runs it twice
    assert repeated().tolist() == [3.0] * 3
    assert total.tolist() == [3.0] * 3


class Counting:
    """A factor that Python changes with each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self) -> Tensor:
        self.calls += 1
        return X * self.calls


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
def test_functions_with_varying_calls_are_rejected() -> None:
    scripted = torch.jit.script(torch.nn.Linear(3, 2))
    calls: list[int] = []

    def alternating() -> Tensor:
        calls.append(0)
        return X.exp() if len(calls) % 2 else X.sin()

    for function in (Counting(), lambda: scripted(X) + 1, lambda: X + torch.from_numpy(X.new_ones(3).numpy()), alternating):
        with pytest.raises(RuntimeError, match=r"not always the same|reads numbers"), torch.no_grad():
            record(function)


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x + x.sum().item(), lambda x: x if x.any() else -x, lambda x: x * int(x[0, 1]), lambda x: x + len(x.tolist()),
        lambda x: x if torch.equal(x, x) else -x, lambda x: x + float(x.numpy().sum()), lambda x: x + x.data_ptr(),
    ],
)  # fmt: skip
def test_value_dependent_control_flow_is_rejected(read: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="reads numbers from a tensor"):
        record(lambda: read(X))


@pytest.mark.parametrize(
    "size",
    [
        lambda x: x + len(x.nonzero()), lambda x: x[x > 2].sum() + x, lambda x: x + len(torch.unique(x)),
        lambda x: x + torch.arange(x.sum().long()).shape[0], lambda x: x + len(x[0].repeat_interleave(x[0].long())),
    ],
)  # fmt: skip
def test_value_dependent_sizes_are_rejected(size: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(RuntimeError, match="not always the same"):
        record(lambda: size(X))
    assert record(lambda: X[X.new_zeros(1, dtype=torch.long)])().tolist() == [[0.0, 1.0, 2.0]]


def test_autocast_is_refused() -> None:
    with pytest.raises(RuntimeError, match="autocast"), torch.autocast("cpu", torch.bfloat16):
        record(lambda: X @ X.mT)


def test_a_model_is_checked_once_for_the_same_calls() -> None:
    class Model:
        def __init__(self) -> None:
            self.calls = 0

        def step(self, width: int, *, flips: bool) -> Tensor:
            self.calls += 1
            y = torch.ones(width)
            return y.neg() if flips else y.abs()

    model = Model()
    for width, flips, calls in ((3, False, 2), (5, False, 1), (5, True, 2), (4, True, 1)):
        model.calls = 0
        repeated = record(lambda width=width, flips=flips: model.step(width, flips=flips), model)
        assert model.calls == calls
        assert repeated().tolist() == [-1.0 if flips else 1.0] * width


def test_a_program_frees_tensors_when_the_function_does() -> None:
    seen: list[weakref.ref[Tensor]] = []

    class Watched(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
            alive.append(sum(tensor() is not None for tensor in seen))
            result = func(*args, **(kwargs or {}))
            seen.append(weakref.ref(result))
            return result

    def chain() -> Tensor:
        y = X
        for _ in range(5):
            y = y.exp()
        return y

    repeated = record(chain)
    alive: list[int] = []
    with Watched():
        repeated()
    assert alive == [0, 1, 1, 1, 1]


def test_a_program_is_freed_immediately() -> None:
    gc.disable()
    try:
        x = torch.ones(3)
        held = weakref.ref(x)
        repeated = record(x.exp)
        repeated()
        del x, repeated
        assert held() is None
    finally:
        gc.enable()
