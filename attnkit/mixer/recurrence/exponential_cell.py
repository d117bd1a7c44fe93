# https://arxiv.org/abs/2405.04517
"""The cell of an sLSTM, step by step, with a single weight gradient for all steps."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnkit.mixer.base import Tokens
from attnkit.mixer.recurrence.scan import EMPTY
from attnkit.transforms import transformed

SEGMENT = 256
"""The number of tokens whose gates and factors the backward pass recomputes at a time; those of a whole long row take much memory."""


def exponential_cell(logits: Tensor, recurrent: Tensor, tokens: Tokens, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Run an LSTM cell with an exponential input gate, whose output is a weighted mean of the values written.

    Equation:
        $$c_t = f_t \odot c_{t-1} + i_t \odot \tanh \tilde z_t, \qquad n_t = f_t \odot n_{t-1} + i_t, \qquad
        h_t = \sigma(\tilde o_t) \odot c_t / n_t$$

    Here $i_t = \exp \tilde i_t$ and $f_t = \sigma(\tilde f_t)$; the logits $\tilde i, \tilde f, \tilde z, \tilde o$ are the given ones plus
    $h_{t-1} R$ of the same head. c and n are kept relative to the largest input gate m, which decays like them, so no exponent is above
    zero, and n is at least 1.

    Args:
        logits: [B, T, 4, H, W], in fp32 or float64.
        recurrent: $R$, [H, W, 4, W], of the same type.
        tokens: Where padding is, which changes nothing, and where documents start, each from the empty state.
        state: $h$, $c$, $n$ and m, [B, 4, H, W] (default: the empty state).

    Returns:
        $h$ [B, T, H, W], which padding repeats from the previous token, and the state after the last token.

    Example:
        >>> logits = torch.zeros(1, 2, 4, 1, 1)
        >>> logits[:, :, 2] = 100.0  # writes 1; the output gate is half open
        >>> exponential_cell(logits, torch.zeros(1, 1, 4, 1), Tokens())[0].flatten()
        tensor([0.5000, 0.5000])
    """
    if tokens.real is not None:
        shut = torch.tensor([float("-inf"), float("inf")], dtype=logits.dtype, device=logits.device)
        gates = torch.where(tokens.real[..., None, None, None], logits[:, :, :2], shut[:, None, None])
        logits = torch.cat([gates, logits[:, :, 2:]], 2)
    if state is None:
        state = torch.zeros_like(logits[:, 0])
        state[:, 3] = EMPTY
    real, starts = (None if x is None else x.T[:, None, :, None] for x in (tokens.real, tokens.starts))  # [T, 1, B, 1]
    arguments = logits.permute(1, 3, 0, 2, 4).flatten(3), recurrent.flatten(2), real, starts, state.permute(1, 2, 0, 3)
    with torch.autocast(logits.device.type, enabled=False):
        hidden, last, *_ = (_steps if transformed() else _exponential_cell)(*arguments)
    return hidden.permute(2, 0, 1, 3), last.permute(2, 0, 1, 3)


# From here on, logits are [T, H, B, 4 W], and states [4, H, B, W]: each step is one product per head.
def _steps(
    logits: Tensor, recurrent: Tensor, real: Tensor | None, starts: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return h [T, H, B, W] and the last state; and for the backward pass, c, n and m [3, T, H, B, W] and the complete logits."""
    hidden, cell, weight, largest = (*state[:3], state[3].detach())
    states: list[tuple[Tensor, ...]] = []
    complete = []
    for t, given in enumerate(logits.unbind()):
        if starts is not None:
            hidden, largest = hidden.masked_fill(starts[t], 0.0), largest.masked_fill(starts[t], EMPTY)
        complete.append(torch.baddbmm(given, hidden, recurrent))
        written, kept, new, shown = complete[-1].chunk(4, -1)
        kept = F.logsigmoid(kept) + largest
        largest = torch.maximum(written, kept).detach()
        written, kept = torch.exp(written - largest), torch.exp(kept - largest)
        cell, weight = kept * cell + written * new.tanh(), kept * weight + written
        # the weight is smaller than 1 only in the empty state, and exactly 1 after it, where `clamp` has no gradient from torch 2.14 on
        output = shown.sigmoid() * cell / weight.masked_fill(weight < 1.0, 1.0)
        hidden = output if real is None else torch.where(real[t], output, hidden)
        states.append((hidden, cell, weight, largest))
    hiddens, *others = (torch.stack(part) for part in zip(*states, strict=True))
    return hiddens, torch.stack(states[-1]), torch.stack(others), torch.stack(complete)


_exponential_cell = torch.library.custom_op("attnkit::exponential_cell", _steps, mutates_args=())


@torch.library.custom_op("attnkit::exponential_cell_backward", mutates_args=())
def _exponential_cell_backward(
    to_hidden: Tensor, to_last: Tensor, complete: Tensor, recurrent: Tensor, real: Tensor | None, starts: Tensor | None, state: Tensor,
    hidden: Tensor, others: Tensor,
) -> list[Tensor]:  # fmt: skip
    """Return the gradients of the logits, of the recurrent weights and of the first state."""
    to_logits, to_recurrent = torch.empty_like(complete), torch.zeros_like(recurrent)
    for first in reversed(range(0, len(complete), SEGMENT)):
        now = slice(first, first + SEGMENT)
        is_real, is_start = (None if x is None else x[now] for x in (real, starts))
        before = torch.cat([hidden[None, first - 1], others[:, first - 1]]) if first else state
        to_recurrent_now, to_last = _segment_backward(
            to_hidden[now], to_last, complete[now], recurrent, is_real, is_start, before, hidden[now], others[:, now],
            to_logits=to_logits[now],
        )  # fmt: skip
        to_recurrent += to_recurrent_now
    return [to_logits, to_recurrent, to_last.clone()]


def _segment_backward(
    to_hidden: Tensor, to_last: Tensor, complete: Tensor, recurrent: Tensor, real: Tensor | None, starts: Tensor | None, state: Tensor,
    hidden: Tensor, others: Tensor, *, to_logits: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Write the gradients of the logits, and return those of the recurrent weights and of the state before the segment."""
    hidden = torch.cat([state[:1], hidden[:-1]])  # the values before each token, like the next two
    cell, weight, largest = torch.cat([state[1:, None], others[:, :-1]], 1)
    if starts is not None:
        hidden, largest = hidden.masked_fill(starts, 0.0), largest.masked_fill(starts, EMPTY)
    written, kept, new, shown = complete.chunk(4, -1)
    forgotten = torch.sigmoid(-kept)
    written, kept = torch.exp(written - others[2]), torch.exp(F.logsigmoid(kept) + largest - others[2])
    new, shown, divisor = new.tanh(), shown.sigmoid(), others[1].clamp(min=1.0)
    mean = others[0] / divisor
    of_output = torch.stack([shown / divisor, -shown * mean / divisor, mean * shown * (1 - shown)], 1)  # [T, 3, H, B, W]
    if real is not None:
        of_output = of_output.masked_fill(~real[:, None], 0.0)
    of_cell = torch.stack([written * new, kept * forgotten * cell, written * (1 - new * new)], 3)  # [T, H, B, 3, W]
    of_weight = torch.stack([written, kept * forgotten * weight], 3)
    transposed = recurrent.mT.contiguous()
    back, carried = to_last[0], to_last[1:3]
    for t in reversed(range(len(complete))):
        to_output = to_hidden[t] + back
        carried = torch.addcmul(carried, to_output, of_output[t, :2])  # of the cell and the weight
        parts = torch.unflatten(to_logits[t], -1, (4, -1))
        torch.mul(carried[0, :, :, None], of_cell[t], out=parts[:, :, :3])
        parts[:, :, :2].addcmul_(carried[1, :, :, None], of_weight[t])
        torch.mul(to_output, of_output[t, 2], out=parts[:, :, 3])
        back = torch.bmm(to_logits[t], transposed)
        back = back if real is None else back + to_output.masked_fill(real[t], 0.0)
        back = back if starts is None else back.masked_fill(starts[t], 0.0)
        carried = carried * kept[t]
    inputs, outputs = (x.transpose(0, 1).flatten(1, 2) for x in (hidden, to_logits))  # [H, T B, ...]
    return inputs.mT @ outputs, torch.cat([back[None], carried, torch.zeros_like(carried[:1])])


@_exponential_cell.register_fake
def _(logits: Tensor, recurrent: Tensor, real: Tensor | None, starts: Tensor | None, state: Tensor) -> tuple[Tensor, ...]:
    hidden = logits.new_empty(logits.shape[0], *state.shape[1:])
    return hidden, torch.empty_like(state), hidden.new_empty(3, *hidden.shape), torch.empty_like(logits)


@_exponential_cell_backward.register_fake
def _(to_hidden: Tensor, to_last: Tensor, complete: Tensor, recurrent: Tensor, *_: Tensor | None) -> list[Tensor]:
    return [torch.empty_like(x) for x in (complete, recurrent, to_last)]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, _, others, complete = output
    ctx.save_for_backward(complete, *inputs[1:], hidden, others)


def _backward(ctx: Any, to_hidden: Tensor, to_last: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    to_logits, to_recurrent, to_state = _exponential_cell_backward(to_hidden, to_last, *ctx.saved_tensors)
    return to_logits, to_recurrent, None, None, to_state


_exponential_cell.register_autograd(_backward, setup_context=_keep)


@register_flop_formula(torch.ops.attnkit.exponential_cell)
def _flops(logits: torch.Size, *_: object, **__: object) -> int:
    """Count the products with the recurrent weights, and 20 operations per channel."""
    return math.prod(logits) * (logits[-1] // 2 + 5)


@register_flop_formula(torch.ops.attnkit.exponential_cell_backward)
def _backward_flops(to_hidden: object, to_last: object, complete: torch.Size, *_: object, **__: object) -> int:
    return 2 * _flops(complete)
