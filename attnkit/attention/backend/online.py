"""Softmax attention in blocks of queries and keys, which the backward pass recomputes: the algorithm of FlashAttention, for any score.

The softmax is computed online: a row keeps its largest logit, the sum of its weights and the weighted sum of values, and rescales both sums
when a larger logit arrives. The backward pass needs only the largest logit and the logarithm of the sum of weights.
"""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnkit.attention.backend.base import Inputs
from attnkit.attention.backend.blocks import Call
from attnkit.attention.base import Attention
from attnkit.attention.bias import LazyBias
from attnkit.dropout import keys_for
from attnkit.masks import Mask, combine
from attnkit.transforms import transformed


def attend(attention: Attention, inputs: Inputs, score: str, *, scale: float, weight: Tensor | None = None) -> Tensor:
    """Return the attention [B, H, Q, Dv] with the score `blocks.scores[score]`, times `scale`; the score may have weights [H, A]."""
    query, key, value, mask, bias, dropout, first_query = inputs
    mask, by_offset = Mask() if mask is None else mask, isinstance(bias, LazyBias) and bias.by_offset
    if isinstance(bias, LazyBias):
        offsets = torch.arange(1 - query.shape[2], key.shape[2], device=query.device)
        bias = bias.line(offsets) if by_offset else bias.values
    examples = keys_for(query.shape[0], query.device) if dropout > 0 else None
    numbers = [attention.first_head, attention.site, first_query]
    allowed = mask.stretches if mask.allowed is None else combine(mask.allowed, mask.same_stretch(slice(None), slice(None)))
    tensors = (query, key, value, weight, bias, allowed, examples)
    settings = (by_offset, mask.causal, mask.window or 0, float(scale), dropout, numbers, score)
    output: Tensor = _attend(*tensors, *settings)[0]
    return output


def refuses_inputs(inputs: Inputs) -> str | None:
    """Return a reason if every weight is dropped, or if derivatives need more than a backward pass."""
    if transformed():
        return "it supports neither torch.func nor forward-mode differentiation"
    return "it does not support a dropout of 1" if inputs.dropout == 1 else None


@torch.library.custom_op("attnkit::blockwise", mutates_args=())
def _attend(
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None, allowed: Tensor | None,
    examples: Tensor | None, by_offset: bool, causal: bool, window: int, scale: float, dropout: float, numbers: list[int], score: str,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return the attention [B, H, Q, Dv] and, for each row in reverse order, the largest logit and the binary logarithm of the sum of
    exponentials relative to it, [B H, Q, 2].

    Args:
        query: Projected queries [B, H, Q, A].
        key: Projected keys [B, Hkv, K, A].
        value: [B, Hkv, K, Dv].
        weight: The weights of the score [H, A], or None.
        bias: Broadcasts to [B, H, Q, K]; or, `by_offset`, [B or 1, H, 1, Q + K - 1] for key minus query from 1 - Q to K - 1; or None.
        allowed: Bool, broadcasts to [B, H, Q, K]; or int64 [B, T], numbers that a query and a key must have in common; or None.
        examples: With dropout, the random keys of the examples, int64 [B]; or None.
        by_offset: The form of `bias`.
        causal: Whether the key's index must not exceed the query's.
        window: If positive, the key's index must also be less than `window` away from the query's.
        scale: Multiplies the scores.
        dropout: Probability of dropping a weight.
        numbers: The first head, the site of dropout, and the first query.
        score: A name in `blocks.scores`.
    """
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        call = Call(
            query, key, value, weight, bias, allowed, examples, by_offset, causal, window, scale, dropout, numbers, score
        )  # fmt: skip
        output, sums = (call.value.new_zeros(len(call.value), query.shape[2], width) for width in (value.shape[-1], 2))
        for blocks in call.rows():
            (largest, total), summed = torch.split(blocks[0].queries(sums), 1, -1), blocks[0].queries(output)
            largest.fill_(torch.finfo(largest.dtype).min)
            for block in blocks:
                if call.is_zero(block, largest):
                    continue
                z = call.logits(block)
                higher = torch.maximum(largest, z.amax(-1, keepdim=True))
                shrink, weights = (largest - higher).exp2_(), call.powers(z.sub_(higher))
                largest.copy_(higher)
                total.mul_(shrink).add_(weights.sum(-1, keepdim=True))
                summed.mul_(shrink).baddbmm_(call.drop(weights, block), block.keys(call.value))
            summed.div_(total.clamp_(min=torch.finfo(total.dtype).tiny))
            total.log2_()
        return output.flip(1).view(*query.shape[:3], -1).to(value.dtype), sums


@torch.library.custom_op("attnkit::blockwise_backward", mutates_args=())
def _attend_backward(
    gradient: Tensor, output: Tensor, sums: Tensor, needs_bias: bool,
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None, allowed: Tensor | None,
    examples: Tensor | None, by_offset: bool, causal: bool, window: int, scale: float, dropout: float, numbers: list[int], score: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the gradients of queries, keys, values, weights and the bias; those that do not exist or are not needed are empty."""
    with torch.no_grad(), torch.autocast(query.device.type, enabled=False):
        call = Call(
            query, key, value, weight, bias, allowed, examples, by_offset, causal, window, scale, dropout, numbers, score
        )  # fmt: skip
        g = call.reversed(gradient)
        inner = (g * call.reversed(output)).sum(-1, keepdim=True)
        d_value, d_bias, d_line = torch.zeros_like(call.value), None, None
        if needs_bias and call.bias is not None:
            d_bias = torch.zeros_like(call.bias, dtype=call.dtype)
            d_line = d_bias[..., 0, :] if by_offset else None
        for block in itertools.chain.from_iterable(call.rows()):
            largest, total = torch.split(block.queries(sums), 1, -1)
            if call.is_zero(block, largest + total):
                continue
            weights = call.powers(call.logits(block).sub_(largest).sub_(total))  # subtracting their sum would lose digits of large logits
            block.keys(d_value).baddbmm_(call.drop(weights, block).mT, block.queries(g))
            d_logits = call.drop(torch.bmm(block.queries(g), block.keys(call.value).mT), block).sub_(block.queries(inner))
            if d_line is not None:
                d_logits = call.wide_product(d_logits, weights)
                part = call.offsets(d_line, block)
                part += call.diagonals(block).sum_to_size(part.shape)
            else:
                d_logits.mul_(weights)
                if d_bias is not None:
                    part = call.part(d_bias, block)
                    part += d_logits.view(block.shape).flip(-2).sum_to_size(part.shape)
            call.pairs.backward(block, d_logits)
        d_query, d_key, d_weight = call.pairs.gradients()
        d_key, d_value = (x.view(*key.shape[:2], -1, *x.shape[-2:]).sum(2) for x in (d_key, d_value))  # over the query heads of a key head
        return (
            d_query.flip(1).view(query.shape).to(query.dtype),
            d_key.to(key.dtype),
            d_value.to(value.dtype),
            sums.new_empty(0) if weight is None or d_weight is None else d_weight.to(weight.dtype),
            sums.new_empty(0) if bias is None or d_bias is None else d_bias.view(bias.shape).to(bias.dtype),
        )


@_attend.register_fake
def _(query: Tensor, key: Tensor, value: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    sums = query.new_empty(query.shape[0] * query.shape[1], query.shape[2], 2, dtype=torch.promote_types(query.dtype, torch.float32))
    return value.new_empty(*query.shape[:3], value.shape[-1]), sums


@_attend_backward.register_fake
def _(
    gradient: Tensor, output: Tensor, sums: Tensor, needs_bias: bool,
    query: Tensor, key: Tensor, value: Tensor, weight: Tensor | None, bias: Tensor | None, *others: object,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    kept = (query, key, value, weight, bias if needs_bias else None)
    found = [sums.new_empty(0) if x is None else x.new_empty(x.shape) for x in kept]
    return found[0], found[1], found[2], found[3], found[4]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs[:7], *output)
    ctx.others = inputs[7:]


def _pull(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[object, ...]:
    *inputs, output, sums = ctx.saved_tensors
    found = _attend_backward(gradient, output, sums, ctx.needs_input_grad[4], *inputs, *ctx.others)
    gradients = [x if needed else None for x, needed in zip(found, ctx.needs_input_grad, strict=False)]
    return *gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients))


_attend.register_autograd(_pull, setup_context=_keep)


@register_flop_formula(torch.ops.attnkit.blockwise)
def _flops(query: torch.Size, key: torch.Size, value: torch.Size, *_: object, **__: object) -> int:
    """Count the products of the score and those with the values, as for `reference`."""
    return 2 * query[0] * query[1] * query[2] * key[2] * (query[3] + value[3])


@register_flop_formula(torch.ops.attnkit.blockwise_backward)
def _backward_flops(gradient: object, output: object, sums: object, needs_bias: object, *sizes: torch.Size, **_: object) -> int:
    return 2 * _flops(*sizes[:3])
