# https://arxiv.org/abs/2312.00752
"""The selective scan: a state of N numbers per channel, materialised for one block of tokens at a time."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnkit.mixer.recurrence.scan import scan, scan_backward, scan_forward, takes_steps
from attnkit.transforms import transformed

BLOCK = 2**18
"""The numbers in the states of a block on a CPU, few enough to stay in its cache; a block has between 8 and 64 tokens."""
LARGE_BLOCK = 2**26  # the same on other devices, where a block has between 256 and 4,096 tokens


def selective_scan(
    step: Tensor, rate: Tensor, value: Tensor, write: Tensor, read: Tensor, kept: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and the last state of a state-space model whose decays, inputs and outputs depend on the token.

    Equation:
        $$h_t = e^{-\Delta_t \lambda} \odot h_{t-1} + \Delta_t u_t \, b_t^\top, \qquad y_t = h_t c_t$$

    States are computed block by block, and recomputed in the backward pass (Gu and Dao 2023, https://arxiv.org/abs/2312.00752), so their
    D N numbers are kept only for the tokens at block boundaries.

    Args:
        step: $\Delta$, [B, T, D]; a step of zero neither decays nor writes.
        rate: $\lambda$, [D, N].
        value: $u$, [B, T, D].
        write: $b$, [B, T, N].
        read: $c$, [B, T, N].
        kept: [B, T], 0 where the state is reset and 1 elsewhere; or None.
        state: $h_0$, [B, D, N].

    Returns:
        $y$ [B, T, D] and $h_T$ [B, D, N].

    Example:
        >>> ones = torch.ones(1, 3, 1)
        >>> selective_scan(ones, torch.ones(1, 1), ones, ones, ones, None, torch.zeros(1, 1, 1))[0].flatten()
        tensor([1.0000, 1.3679, 1.5032])
    """
    rate, state = rate.mT.contiguous(), state.mT.contiguous()
    if transformed():
        states = scan(*_decays_and_writes(slice(None), step, rate, value, write, kept), state, dim=1)
        return (read[:, :, None] @ states).squeeze(2), states[:, -1].mT
    y, last, _ = _selective_scan(step, rate, value, write, read, kept, state)
    return y, last.mT


def _block(state: Tensor) -> int:
    """Return the number of tokens in a block."""
    numbers, least, most = (BLOCK, 8, 64) if state.is_cpu else (LARGE_BLOCK, 256, 4096)
    # sizes may be symbolic
    tokens: int = torch.sym_max(least, torch.sym_min(most, numbers // torch.sym_max(1, state.numel())))  # type: ignore[no-untyped-call]
    return tokens


def _blocks(length: int, state: Tensor) -> list[slice]:
    block = _block(state)
    return [slice(start, min(start + block, length)) for start in range(0, length, block)]


# From here on, the channels, the longest axis, come last in states [B, N, D] and rates [N, D], so that a CPU vectorises over them.
def _decays_and_writes(at: slice, step: Tensor, rate: Tensor, value: Tensor, write: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the decays and the writes of a block of K tokens, [B, K, N, D] each."""
    decay = (step[:, at, None] * -rate).exp_()
    if kept is not None:
        decay *= kept[:, at, None, None]
    return decay, (step[:, at] * value[:, at])[:, :, None] * write[:, at, :, None]


# The scan of a block allocates nothing per step and makes as few calls as possible: for a single row, calls take half of the time.
def _states(decay: Tensor, writes: Tensor, state: Tensor) -> Tensor:
    """Return the states of a block; if computed step by step, they overwrite the writes."""
    if not takes_steps(writes, 1, False):
        return scan_forward(decay, writes, state, 1, False)
    for a, b in zip(decay.unbind(1), writes.unbind(1), strict=True):
        state = b.addcmul_(a, state)
    return writes


def _gradients(to_states: Tensor, decay: Tensor, state: Tensor, states: Tensor) -> list[Tensor]:
    """Return the gradients of the decays, the writes and the first state; if computed step by step, they overwrite `to_states`."""
    if not takes_steps(states, 1, False):
        return scan_backward(to_states, decay, state, states, 1, False)
    later = to_states[:, -1]
    for a, dh in zip(reversed(decay.unbind(1)[1:]), reversed(to_states.unbind(1)[:-1]), strict=True):
        later = dh.addcmul_(a, later)
    to_decay = torch.cat([state[:, None], states[:, :-1]], 1).mul_(to_states)
    return [to_decay, to_states, decay[:, 0] * later]


@torch.library.custom_op("attnkit::selective_scan", mutates_args=())
def _selective_scan(
    step: Tensor, rate: Tensor, value: Tensor, write: Tensor, read: Tensor, kept: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs, the last state, and the states before each block, [blocks, B, N, D]."""
    y, starts = torch.empty_like(value), [state]
    for at in _blocks(step.shape[1], state):
        states = _states(*_decays_and_writes(at, step, rate, value, write, kept), starts[-1])
        y[:, at] = (read[:, at, None] @ states).squeeze(2)
        starts.append(states[:, -1])
    return y, starts[-1].clone(), torch.stack(starts[:-1])


@torch.library.custom_op("attnkit::selective_scan_backward", mutates_args=())
def _selective_scan_backward(
    to_y: Tensor, to_last: Tensor, step: Tensor, rate: Tensor, value: Tensor, write: Tensor, read: Tensor, kept: Tensor | None,
    starts: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of the step, the rate, the value, the write, the read and the first state."""
    to_step, to_value, to_write, to_read = (torch.empty_like(x) for x in (step, value, write, read))
    to_rate, carried = torch.zeros_like(rate), to_last
    for start, at in reversed([*zip(starts, _blocks(step.shape[1], to_last), strict=True)]):
        decay, writes = _decays_and_writes(at, step, rate, value, write, kept)
        states = _states(decay, writes, start)
        to_read[:, at] = (states @ to_y[:, at, :, None]).squeeze(-1)
        to_states = to_y[:, at, None] * read[:, at, :, None]
        to_states[:, -1] += carried
        to_decay, to_writes, carried = _gradients(to_states, decay, start, states)
        product = step[:, at] * value[:, at]
        to_write[:, at] = (to_writes @ product[..., None]).squeeze(-1)
        to_product = (write[:, at, None] @ to_writes).squeeze(2)
        to_exponent = to_decay.mul_(decay)  # the gradient of -step * rate
        to_rate -= (to_exponent * step[:, at, None]).sum((0, 1))
        to_step[:, at] = to_product * value[:, at] - to_exponent.mul_(rate).sum(2)
        to_value[:, at] = to_product * step[:, at]
    return [to_step, to_rate, to_value, to_write, to_read, carried]


@_selective_scan.register_fake
def _(step: Tensor, rate: Tensor, value: Tensor, write: Tensor, read: Tensor, kept: Tensor | None, state: Tensor) -> tuple[Tensor, ...]:
    block = _block(state)
    blocks = (value.shape[1] + block - 1) // block
    return torch.empty_like(value), torch.empty_like(state), state.new_empty(blocks, *state.shape)


@_selective_scan_backward.register_fake
def _(to_y: Tensor, to_last: Tensor, *inputs: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(x) for x in (*inputs[:5], to_last) if x is not None]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:-1], output[2])


def _backward(ctx: Any, to_y: Tensor, to_last: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    *gradients, to_state = _selective_scan_backward(to_y, to_last, *ctx.saved_tensors)
    return *gradients, None, to_state


_selective_scan.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.attnkit.selective_scan)
def _flops(step: torch.Size, rate: torch.Size, *_: object, **__: object) -> int:
    """Count, for each number in a state, the product and exponential of the decay, the product of the write, the step, and the read."""
    return math.prod(step) * (7 * rate[0] + 1)


@register_flop_formula(torch.ops.attnkit.selective_scan_backward)
def _backward_flops(to_y: object, to_last: object, step: torch.Size, rate: torch.Size, *_: object, **__: object) -> int:
    return 3 * _flops(step, rate)  # the states are recomputed
