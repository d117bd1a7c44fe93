from dataclasses import FrozenInstanceError, dataclass

import pytest
import torch
from torch import Tensor

from attnkit.state import State


@dataclass(frozen=True)
class Inner(State):
    value: Tensor


@dataclass(frozen=True)
class Outer(State):
    inner: tuple[Inner, ...]
    one: Inner
    mask: Tensor | None = None
    note: str = "kept"


def test_select_reaches_every_tensor_however_deeply_nested(seed: int) -> None:
    values = torch.randn(3, 4, 2, 5)
    outer = Outer((Inner(values[0]), Inner(values[1])), Inner(values[2]))
    index = torch.tensor([3, 0, 0])
    chosen = outer.select(index)
    for state, value in zip((*chosen.inner, chosen.one), values, strict=True):
        assert torch.equal(state.value, value[index])
    assert chosen.mask is None
    assert chosen.note == "kept"
    assert torch.equal(outer.one.value, values[2])


def test_a_state_is_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        Inner(torch.zeros(1)).value = torch.ones(1)  # type: ignore[misc]
