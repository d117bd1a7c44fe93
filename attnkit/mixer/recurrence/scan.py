# https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf
"""The scan: all states of a linear recurrence, computed step by step if they are large, otherwise by combining pairs of steps."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnkit.transforms import transformed

Operation = Callable[[Tensor, Tensor], Tensor]

BLOCK = 2**18  # elements that a CPU scans in pairs at a time, few enough for its cache (1 MiB in fp32)
EMPTY = -1e38  # the running maximum of no numbers: finite, so that the difference of two is not NaN
STEP = 1024
"""A CPU computes states of at least this many elements (with matrices, a sixteenth as many) one step after another.

The calls then cost less than the extra work of combining pairs.
"""


def scan(decay: Tensor, write: Tensor, state: Tensor, *, dim: int, matrix: bool = False) -> Tensor:
    r"""Return all states of a linear recurrence.

    Equation:
        $$h_t = a_t h_{t-1} + b_t$$

    On a CPU, large states are computed one step after another, which touches every number once. Otherwise each pair of steps
    is combined into one, which leaves a sequence of half the length (Blelloch 1990, https://www.cs.cmu.edu/~guyb/papers/Ble93.pdf): about
    five times the work, in a number of calls that grows with the logarithm of T. Decays are multiplied and never divided, so a decay of
    zero forgets exactly.

    Args:
        decay: $a_t$, [..., T, ...]; its axes after `dim` may have length 1. With `matrix`, square matrices [..., T, ..., N, N].
        write: $b_t$, [..., T, ...]; with `matrix`, [..., T, ..., N, P].
        state: $h_0$, with the shape of `write` without the axis `dim`.
        dim: The axis of time, counted from the left.
        matrix: Whether decays are matrices, multiplied from the left, rather than numbers.

    Returns:
        $h_1$ to $h_T$, with the shape of `write`.

    Example:
        >>> scan(torch.full((4,), 0.5), torch.ones(4), torch.tensor(0.0), dim=0)
        tensor([1.0000, 1.5000, 1.7500, 1.8750])
    """
    if transformed():
        return _in_pairs(decay, write, state, dim, torch.matmul if matrix else torch.mul, torch.add)
    states: Tensor = _scan(decay, write, state, dim, matrix)
    return states


def running_maximum(decay: Tensor, x: Tensor, state: Tensor, *, dim: int) -> Tensor:
    r"""Return the decaying maximum $m_t = \max(m_{t-1} + d_t, x_t)$, with the axes of `scan`. It has no gradient.

    Example:
        >>> running_maximum(torch.full((3,), -1.0), torch.tensor([5.0, 0.0, 7.0]), torch.tensor(0.0), dim=0)
        tensor([5., 4., 7.])
    """
    inputs = decay.detach(), x.detach(), state.detach(), dim
    maxima: Tensor = _in_pairs(*inputs, torch.add, torch.maximum) if transformed() else _running_maximum(*inputs)
    return maxima


def _in_pairs(decay: Tensor, write: Tensor, state: Tensor, dim: int, times: Operation, plus: Operation) -> Tensor:
    """Solve $h_t = a_t h_{t-1} + b_t$ for any associative sum and any product that distributes over it."""
    length = write.shape[dim]
    pairs = length // 2
    a_even, b_even = _every_second(decay, dim, 0), _every_second(write, dim, 0)
    if not pairs:
        return plus(times(a_even, state.unsqueeze(dim)), b_even)
    a_odd, b_odd = _every_second(decay, dim, 1), _every_second(write, dim, 1)
    a_pair = times(a_odd, a_even.narrow(dim, 0, pairs))
    b_pair = plus(times(a_odd, b_even.narrow(dim, 0, pairs)), b_odd)
    odd = _in_pairs(a_pair, b_pair, state, dim, times, plus)
    before = torch.cat([state.unsqueeze(dim), odd.narrow(dim, 0, length - pairs - 1)], dim)
    even = plus(times(a_even, before), b_even)
    both = torch.stack([even.narrow(dim, 0, pairs), odd], dim + 1).flatten(dim, dim + 1)
    return torch.cat([both, even.narrow(dim, pairs, 1)], dim) if length % 2 else both


def _every_second(x: Tensor, dim: int, start: int) -> Tensor:
    return x[(slice(None),) * dim + (slice(start, None, 2),)]


def _blocks(x: Tensor, dim: int) -> list[tuple[int, int]]:
    """Return the start and the length of each block along the time axis."""
    length = x.shape[dim]
    step = max(16, BLOCK * length // max(x.numel(), 1)) if x.is_cpu else max(length, 1)
    return [(start, min(step, length - start)) for start in range(0, length, step)]


def takes_steps(states: Tensor, dim: int, matrix: bool) -> bool:
    """Return whether states are computed one step after another."""
    return states.is_cpu and states.numel() >= STEP // (16 if matrix else 1) * states.shape[dim]


def scan_forward(decay: Tensor, write: Tensor, state: Tensor, dim: int, matrix: bool) -> Tensor:
    """Return all states (see `scan`) without recording gradients."""
    states, times = torch.empty_like(write), torch.matmul if matrix else torch.mul
    if takes_steps(write, dim, matrix):
        for a, b, out in zip(decay.unbind(dim), write.unbind(dim), states.unbind(dim), strict=True):
            state = torch.add(b, a @ state, out=out) if matrix else torch.addcmul(b, a, state, out=out)
        return states
    for block in _blocks(write, dim):
        a, b, out = (x.narrow(dim, *block) for x in (decay, write, states))
        out.copy_(_in_pairs(a, b, state, dim, times, torch.add))
        state = out.select(dim, -1)
    return states


def scan_backward(grad: Tensor, decay: Tensor, state: Tensor, states: Tensor, dim: int, matrix: bool) -> list[Tensor]:
    """Return the gradients of the decays, the writes and the first state: $g_t = dh_t + a_{t+1}^T g_{t+1}$, a scan in reverse."""
    times = torch.matmul if matrix else torch.mul
    to_decay, to_write, carried = torch.empty_like(decay), torch.empty_like(states), torch.zeros_like(state)
    if takes_steps(states, dim, matrix):
        parts = [decay.unbind(dim), grad.unbind(dim), [state, *states.unbind(dim)[:-1]], to_decay.unbind(dim), to_write.unbind(dim)]
        following: tuple[Tensor, Tensor] | None = None  # the decay and the gradient of the next step
        for a, dh, before, da, db in reversed([*zip(*parts, strict=True)]):
            if following is None:
                db.copy_(dh)
            elif matrix:
                torch.add(dh, following[0].mT @ following[1], out=db)
            else:
                torch.addcmul(dh, *following, out=db)
            if matrix or a.shape == before.shape:
                times(db, before.mT if matrix else before, out=da)
            else:
                da.copy_((db * before).sum_to_size(da.shape))
            following = a, db
        return [to_decay, to_write, times(a.mT if matrix else a, db)]
    for start, length in reversed(_blocks(states, dim)):
        a, dh, h, da, db = (x.narrow(dim, start, length) for x in (decay, grad, states, to_decay, to_write))
        back = (a.mT if matrix else a).flip(dim)
        last = dh.select(dim, -1) + carried  # plus the gradient that comes back from the next block
        later = _in_pairs(back.narrow(dim, 0, length - 1), dh.flip(dim).narrow(dim, 1, length - 1), last, dim, times, torch.add)
        db.copy_(torch.cat([last.unsqueeze(dim), later], dim).flip(dim))
        before = torch.cat([(states.select(dim, start - 1) if start else state).unsqueeze(dim), h.narrow(dim, 0, length - 1)], dim)
        da.copy_(db @ before.mT if matrix else (db * before).sum_to_size(da.shape))
        carried = times(back.select(dim, -1), db.select(dim, 0))
    return [to_decay, to_write, carried]


# Custom operators: torch.compile does not look into them, so one graph serves all lengths.
_scan = torch.library.custom_op("attnkit::scan", scan_forward, mutates_args=())
_scan_backward = torch.library.custom_op("attnkit::scan_backward", scan_backward, mutates_args=())


@torch.library.custom_op("attnkit::running_maximum", mutates_args=())
def _running_maximum(decay: Tensor, x: Tensor, state: Tensor, dim: int) -> Tensor:
    return _in_pairs(decay, x, state, dim, torch.add, torch.maximum).clone()


@_scan.register_fake
def _(decay: Tensor, write: Tensor, state: Tensor, dim: int, matrix: bool) -> Tensor:
    return torch.empty_like(write)


@_scan_backward.register_fake
def _(grad: Tensor, decay: Tensor, state: Tensor, states: Tensor, dim: int, matrix: bool) -> list[Tensor]:
    return [torch.empty_like(x) for x in (decay, states, state)]


@_running_maximum.register_fake
def _(decay: Tensor, x: Tensor, state: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    decay, _, state, ctx.dim, ctx.matrix = inputs
    ctx.save_for_backward(decay, state, output)


def _backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return *_scan_backward(grad, *ctx.saved_tensors, ctx.dim, ctx.matrix), None, None


_scan.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.attnkit.scan)
def _flops(decay: torch.Size, write: torch.Size, state: torch.Size, dim: int, matrix: bool, **_: object) -> int:
    """Count a multiply-add for each number in the states; with matrices, one for each product."""
    return 2 * write.numel() * (decay[-1] if matrix else 1)


@register_flop_formula(torch.ops.attnkit.scan_backward)
def _backward_flops(grad: torch.Size, decay: torch.Size, state: object, states: object, dim: int, matrix: bool, **_: object) -> int:
    return 4 * grad.numel() * (decay[-1] if matrix else 1)


@register_flop_formula(torch.ops.attnkit.running_maximum)
def _maximum_flops(decay: object, x: torch.Size, *_: object, **__: object) -> int:
    return 2 * x.numel()
