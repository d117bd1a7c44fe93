import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit.state import Growing, State


@dataclass(frozen=True)
class Inner(State):
    value: Tensor


@dataclass(frozen=True)
class Outer(State):
    inner: tuple[Inner, ...]
    one: Inner
    mask: Tensor | None = None
    note: str = "kept"


def test_select_reaches_every_nested_tensor(seed: int) -> None:
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


def tokens(*shape: int) -> Tensor:
    return torch.randn(2, 3, *shape)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_every_branch_keeps_its_own_tokens(mode: Any, seed: int) -> None:
    with mode():
        chains = [(Growing(first := tokens(2, 4)), first)]
        for _ in range(60):
            growing, expected = chains[int(torch.randint(len(chains), ()))]
            new = tokens(int(torch.randint(1, 4, ())), 4)
            chains.append((growing.append(new), torch.cat([expected, new], -2)))
            if len(chains) % 7 == 0:
                index = torch.randint(2, (2,))
                chains.append((growing.select(index), expected[index]))
            if len(chains) % 5 == 0:
                chains.append((growing.last(3), expected[..., -3:, :]))
        for growing, expected in chains:
            assert torch.equal(growing.tensor, expected)


@torch.no_grad()
def test_a_chain_is_copied_only_when_its_storage_is_full() -> None:
    growing, places = Growing(tokens(1, 4)), set()
    for _ in range(200):
        growing = growing.append(tokens(1, 4))
        places.add(growing.storage.data_ptr())
    assert len(places) <= 8  # 201 < 2^8


@torch.no_grad()
def test_a_sliding_window_uses_bounded_storage() -> None:
    growing = Growing(tokens(1, 4))
    for _ in range(200):
        growing = growing.append(tokens(1, 4)).last(8)
        assert growing.storage.shape[-2] <= 2 * 9


def test_gradients_reach_appended_tensors() -> None:
    first, second = tokens(2, 4).requires_grad_(), tokens(1, 4).requires_grad_()
    with torch.no_grad():
        warm = Growing(tokens(2, 4)).append(tokens(1, 4))  # has room behind its tokens
    joined = warm.append(first).append(second)
    with torch.no_grad():
        joined.append(tokens(1, 4)).append(tokens(1, 4))
        warm.append(tokens(1, 4))
    joined.tensor.sum().backward()
    assert torch.equal(first.grad, torch.ones_like(first))
    assert torch.equal(second.grad, torch.ones_like(second))


def test_a_state_from_inference_mode_is_usable_outside_it() -> None:
    with torch.inference_mode():
        growing = Growing(tokens(2, 4)).append(tokens(1, 4))
    with torch.no_grad():
        new = tokens(1, 4)
        assert torch.equal(growing.append(new).tensor, torch.cat([growing.tensor, new], -2))


@torch.no_grad()
def test_appending_works_under_vmap_without_writing_in_place() -> None:
    growing, new = Growing(tokens(2, 4)).append(tokens(1, 4)), torch.randn(5, 2, 3, 1, 4)
    many = torch.func.vmap(lambda x: growing.append(x).tensor)(new)
    assert torch.equal(many[3], torch.cat([growing.tensor, new[3]], -2))


@torch.no_grad()
def test_a_copy_has_independent_storage() -> None:
    growing = Growing(tokens(2, 4)).append(tokens(1, 4))
    twin, new, other = copy.deepcopy(growing), tokens(1, 4), tokens(1, 4)
    one, two = growing.append(new), twin.append(other)
    assert torch.equal(one.tensor[..., -1:, :], new)
    assert torch.equal(two.tensor[..., -1:, :], other)


@torch.no_grad()
@pytest.mark.parametrize("new", [torch.ones(1, 3, 1, 4), torch.ones(2, 3, 1, 1)])
def test_a_mismatched_shape_is_rejected_and_not_broadcast(new: Tensor) -> None:
    growing = Growing(tokens(2, 4)).append(tokens(1, 4))
    with pytest.raises(RuntimeError, match="Sizes of tensors must match"):
        growing.append(new)


@torch.no_grad()
def test_threads_that_extend_one_state_keep_separate_tokens() -> None:
    growing = Growing(tokens(2, 4)).append(tokens(1, 4))

    @torch.no_grad()  # it holds for one thread
    def continued(i: int) -> tuple[int, Growing]:
        return i, growing.append(torch.full((2, 3, 1, 4), float(i)))

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(continued, range(64)))
    assert all((after.tensor[..., -1, :] == i).all() for i, after in found)
