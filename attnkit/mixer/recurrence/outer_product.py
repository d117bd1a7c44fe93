# https://arxiv.org/abs/2312.06635
"""The recurrence whose state is a decaying sum of outer products of keys and values, in chunks or step by step."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import register_flop_formula

from attnkit.mixer.recurrence.chunks import in_chunks, joined
from attnkit.mixer.recurrence.fla_kernels import fla_outer_product
from attnkit.mixer.recurrence.scan import scan
from attnkit.mixer.recurrence.tokens import Kernel, in_full_precision
from attnkit.transforms import transformed


def outer_product(
    query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None = None, *, kernel: Kernel = "torch"
) -> tuple[Tensor, Tensor]:
    r"""Write each key's value into a decaying matrix, and read the matrix with each query.

    Equation:
        $$S_t = \mathrm{diag}(e^{g_t}) S_{t-1} + k_t v_t^\top, \qquad o_t = S_t^\top q_t$$

    Time is cut into chunks of C tokens (Yang et al. 2023, https://arxiv.org/abs/2312.06635; Dao and Gu 2024,
    https://arxiv.org/abs/2405.21060). Logarithms of decays are added and never subtracted, and no exponent is above zero, so decays near
    zero and near one are exact, and $g = -\infty$ forgets everything before it.

    Args:
        query: [B, G, T, N], where G divides H: H / G value heads share one head of queries and keys.
        key: [B, G, T, N].
        value: [B, H, T, P].
        log_decay: $g_t \le 0$, [B or 1, H or 1, T, 1]; or [B or 1, H, T, N] with a decay for each channel of the keys, and G = H.
        state: $S_0$, [B, H, N, P] (default: zeros).
        kernel: `fla` computes sequences of more than one token with the kernels of fla (`attnkit.mixer.recurrence.fla_kernels`).

    Returns:
        $o$ [B, H, T, P] and $S_T$ [B, H, N, P], in fp32 or float64. A single token takes one step of the equation as written.

    FLOPs: $T (C (N + P) + 2 N P)$ multiply-adds per head, and $N P$ for each chunk. Memory: the states of $T / C$ chunks and $C$ weights
    per token.

    Example:
        >>> ones = torch.ones(1, 1, 3, 1)
        >>> outer_product(ones, ones, ones, torch.full((1, 1, 3, 1), 0.5).log())[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    if kernel == "fla" and value.shape[2] > 1:
        found: tuple[Tensor, Tensor] = fla_outer_product(query, key, value, log_decay, state)
        return found
    with torch.autocast(value.device.type, enabled=False):
        query, key, value, log_decay = in_full_precision(query, key, value, log_decay)
        if value.shape[2] == 1:
            return _step(query, key, value, log_decay, state)
        return (_chunked if log_decay.shape[-1] == 1 else _chunked_by_channel)(query, key, value, log_decay, state)


def _step(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    query, key = (x.repeat_interleave(value.shape[1] // x.shape[1], 1) for x in (query, key))
    state = key.mT @ value if state is None else log_decay.exp().mT * state + key.mT @ value
    return query @ state, state


def _chunked(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    length, groups = value.shape[2], key.shape[1]
    if 1 < groups < value.shape[1]:  # expand a decay that all heads share, because it multiplies each group's weights
        log_decay = log_decay.expand(-1, value.shape[1], -1, -1)
    query, key, value, log_decay = in_chunks(query, key, value, log_decay)  # [B, G or H, chunks, C, ...]
    pairs = pairwise_decay(log_decay.squeeze(-1))
    before, after, whole = decays(log_decay)
    pairs = pairs[:, :, None] if pairs.shape[1] == 1 else torch.unflatten(pairs, 1, (groups, -1))  # [B, G or 1, H / G or 1, ...]
    weights = pairs * (query @ key.mT)[:, :, None]
    output = weights.flatten(1, 2) @ value
    writes = key.mT @ _side_by_side(value * after, groups)  # [B, G, chunks, N, H / G P]
    if state is None and value.shape[2] == 1:
        return joined(output, length), _apart(writes, value)[:, :, 0]
    state = value.new_zeros(*writes.shape[:2], *writes.shape[3:]) if state is None else _side_by_side(state[:, :, None], groups)[:, :, 0]
    states = scan(_side_by_side(whole.expand_as(value[:, :, :, :1]), groups), writes, state, dim=2)
    output = output + _apart(query @ earlier(states, state), value) * before
    return joined(output, length), _apart(states[:, :, -1:], value)[:, :, 0]


def _chunked_by_channel(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    length = value.shape[2]
    state = empty(key, value) if state is None else state
    query, key, value, log_decay = in_chunks(query, key, value, log_decay.expand_as(key), powers=True)  # [B, H, chunks, C, ...]
    before, after, whole = decays(log_decay)
    writes = (key * after).mT @ value  # [B, H, chunks, N, P]
    states = scan(whole.mT.expand(*writes.shape[:-2], -1, 1), writes, state, dim=2)
    output = decayed_products((query,), (key,), log_decay)[0, 0] @ value + (query * before) @ earlier(states, state)
    return joined(output, length), states[:, :, -1]


def _side_by_side(x: Tensor, groups: int) -> Tensor:
    """Concatenate the values of heads that share keys: [B, H, chunks, C, P] -> [B, G, chunks, C, H / G P]."""
    return torch.unflatten(x, 1, (groups, -1)).movedim(2, -2).flatten(-2)


def _apart(x: Tensor, value: Tensor) -> Tensor:
    """Undo `_side_by_side`: [B, G, chunks, C, H / G P] -> [B, H, chunks, C, P], with the P of `value`."""
    return torch.unflatten(x, -1, (-1, value.shape[-1])).movedim(-2, 2).flatten(1, 2)


def empty(key: Tensor, value: Tensor) -> Tensor:
    """Return the state before the first token: zeros [B, H, N, P]."""
    return value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the decays from a chunk's start through each token, from each token to the end, and over the whole chunk.

    The first two are [..., C, N], the last is [..., 1, N].
    """
    to_token = log_decay.cumsum(-2)
    return to_token.exp(), _following(log_decay).exp(), to_token[..., -1:, :].exp()


def decayed_products(queries: tuple[Tensor, ...], keys: tuple[Tensor, ...], log_decay: Tensor) -> Tensor:
    r"""Return $\sum_n q_{in} k_{jn} \exp(\sum_{l = j + 1}^{i} g_{ln})$ for $j \le i$, else zero, for each of `queries` with each of `keys`.

    Each is [..., C, N], and the result is [queries, keys, ..., C, C]. All pairs share the exponentials.
    """
    *chunks, size, _ = log_decay.shape
    query, key = (_beside([x.flatten(0, -3) for x in given]) for given in (queries, keys))  # [X, queries or keys, C, N]
    log_decay = log_decay.flatten(0, -3)
    products = (query[:, :, None] * key[:, None]).sum(-1)[..., None, None]  # [X, queries, keys, C, 1, 1]: blocks of one token
    for half in (2**i for i in range(size.bit_length() - 1)):
        # halves of blocks: queries in the second half see keys in the first half across the border between them
        q, k, g = (x.view(*x.shape[:-2], size // (2 * half), 2, half, x.shape[-1]) for x in (query, key, log_decay))
        q = q[:, :, :, 1] * g[:, None, :, 1].cumsum(-2).exp()
        k = k[:, :, :, 0] * _following(g[:, :, 0]).exp()[:, None]
        across = q.transpose(1, 2).flatten(2, 3) @ k.transpose(1, 2).flatten(2, 3).mT  # [X, blocks, queries half, keys half]
        across = across.view(*across.shape[:2], len(queries), half, len(keys), half).permute(0, 2, 4, 1, 3, 5)
        first, second = products[:, :, :, ::2], products[:, :, :, 1::2]
        products = torch.cat([F.pad(first, (0, half)), torch.cat([across, second], -1)], -2)
    return products.view(*chunks, len(queries), len(keys), size, size).movedim((-4, -3), (0, 1))


def _beside(tensors: list[Tensor]) -> Tensor:
    """Stack tensors along axis 1; a single one is not copied."""
    return torch.stack(tensors, 1) if len(tensors) > 1 else tensors[0][:, None]


def pairwise_decay(log_decay: Tensor) -> Tensor:
    r"""Return $\exp(\sum_{l = j + 1}^{i} g_l)$ for $j \le i$, else zero: [..., C] -> [..., C, C]. No sum is computed as a difference."""
    if transformed():
        return _rows(log_decay).tril(-1).cumsum(-2).exp().tril()
    pairs: Tensor = _pairwise_decay(log_decay)
    return pairs


def _rows(x: Tensor) -> Tensor:
    return x[..., None].expand(*x.shape, x.shape[-1])


# A custom operator, so that it works in place on [..., C, C], which is large because C exceeds the width of a head.
@torch.library.custom_op("attnkit::pairwise_decay", mutates_args=())
def _pairwise_decay(log_decay: Tensor) -> Tensor:
    return _rows(log_decay).tril(-1).cumsum_(-2).exp_().tril_()


@torch.library.custom_op("attnkit::pairwise_decay_backward", mutates_args=())
def _pairwise_decay_backward(grad: Tensor, pairs: Tensor) -> Tensor:
    """Return the gradient of each $g_l$: the sum over all $i \\ge l > j$."""
    over = (grad * pairs).cumsum_(-1).tril_(-1).sum(-2)
    return F.pad(over[..., :-1], (1, 0))


@_pairwise_decay.register_fake
def _(log_decay: Tensor) -> Tensor:
    return log_decay.new_empty(*log_decay.shape, log_decay.shape[-1])


@_pairwise_decay_backward.register_fake
def _(grad: Tensor, pairs: Tensor) -> Tensor:
    return torch.empty_like(pairs[..., 0])


_pairwise_decay.register_autograd(
    lambda ctx, grad: _pairwise_decay_backward(grad, *ctx.saved_tensors),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(output),
)


def earlier(states: Tensor, state: Tensor) -> Tensor:
    """Return the state before each chunk, [B, H, chunks, N, P], given `state` and the states after each chunk."""
    return torch.cat([state[:, :, None], states], 2)[:, :, :-1]


def _following(log_decay: Tensor) -> Tensor:
    """Return the sum over the tokens after each one, [..., C, N]."""
    return F.pad(log_decay[..., 1:, :].flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 1))


@register_flop_formula(torch.ops.attnkit.pairwise_decay)
def _flops(log_decay: torch.Size, **_: object) -> int:
    """Count a sum and an exponential for each pair."""
    return 2 * log_decay.numel() * log_decay[-1]


@register_flop_formula(torch.ops.attnkit.pairwise_decay_backward)
def _backward_flops(grad: torch.Size, pairs: object, **_: object) -> int:
    return 3 * grad.numel()
