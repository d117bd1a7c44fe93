# https://arxiv.org/abs/2312.06635
"""The recurrence whose state is a decaying sum of outer products of keys and values: in chunks, and step by step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.mixer.recurrence.chunks import in_chunks, joined
from attnkit.mixer.recurrence.scan import scan
from attnkit.mixer.recurrence.tokens import in_full_precision


def outer_product(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Write each key's value into a decaying matrix, and read it with each query.

    Equation:
        $$S_t = \mathrm{diag}(e^{g_t}) S_{t-1} + k_t v_t^\top, \qquad o_t = S_t^\top q_t$$

    Time is cut into chunks of C tokens (Yang et al. 2023, https://arxiv.org/abs/2312.06635; Dao and Gu 2024,
    https://arxiv.org/abs/2405.21060). Logarithms of decays are only added, never subtracted, and no exponent is above zero: decays near
    zero and near one are exact, and $g = -\infty$ forgets everything before it.

    Args:
        query: [B, H, T, N].
        key: [B, H, T, N].
        value: [B, H, T, P].
        log_decay: $g_t \le 0$, [B or 1, H, T, 1], or [B or 1, H, T, N] with a decay for each channel of the keys.
        state: $S_0$, [B, H, N, P] (default: zeros).

    Returns:
        $o$ [B, H, T, P] and $S_T$ [B, H, N, P], in fp32 or float64. A single token takes a step: the equation as it stands.

    FLOPs: $T (C (N + P) + 4 N P)$ multiply-adds per head. Memory: the states of $T / C$ chunks and $C$ weights per token.

    Example:
        >>> ones = torch.ones(1, 1, 3, 1)
        >>> outer_product(ones, ones, ones, torch.full((1, 1, 3, 1), 0.5).log())[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    with torch.autocast(value.device.type, enabled=False):
        query, key, value, log_decay = in_full_precision(query, key, value, log_decay)
        state = empty(key, value) if state is None else state
        return (_step if value.shape[2] == 1 else _chunked)(query, key, value, log_decay, state)


def _step(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    state = log_decay.exp().mT * state + key.mT @ value
    return query @ state, state


def _chunked(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    length = value.shape[2]
    query, key, value, log_decay = in_chunks(query, key, value, log_decay)  # [B, H, chunks, C, ...]
    inside = decayed_products(query, key, log_decay) @ value
    before, after, whole = decays(log_decay)
    writes = (key * after).mT @ value  # [B, H, chunks, N, P]
    states = scan(whole.mT.expand(*writes.shape[:-2], -1, 1), writes, state, dim=2)
    output = inside + (query * before) @ earlier(states, state)
    return joined(output, length), states[:, :, -1]


def empty(key: Tensor, value: Tensor) -> Tensor:
    """Return the state before the first token: zeros [B, H, N, P]."""
    return value.new_zeros(*value.shape[:2], key.shape[-1], value.shape[-1])


def decays(log_decay: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the decays from a chunk's start to each token (and over it), from each token to the end, and over the chunk.

    [..., C, N] each, but the last [..., 1, N].
    """
    to_token = log_decay.cumsum(-2)
    return to_token.exp(), _following(log_decay).exp(), to_token[..., -1:, :].exp()


def decayed_products(query: Tensor, key: Tensor, log_decay: Tensor) -> Tensor:
    r"""Return $\sum_n q_{in} k_{jn} \exp(\sum_{l = j + 1}^{i} g_{ln})$ for $j \le i$, else zero: [..., C, C]."""
    if log_decay.shape[-1] == 1:
        return query @ key.mT * pairwise_decay(log_decay.squeeze(-1))
    chunks, size = query.shape[:-2], query.shape[-2]
    query, key, log_decay = (x.flatten(0, -3) for x in (query, key, log_decay))
    products = (query * key).sum(-1)[..., None, None]  # [X, C, 1, 1]: blocks of one token
    for half in (2**i for i in range(size.bit_length() - 1)):
        # halves of blocks: a query in the second one sees keys in the first one past the border between them
        q, k, g = (x.view(x.shape[0], size // (2 * half), 2, half, x.shape[-1]) for x in (query, key, log_decay))
        across = (q[:, :, 1] * g[:, :, 1].cumsum(-2).exp()) @ (k[:, :, 0] * _following(g[:, :, 0]).exp()).mT  # [X, blocks, half, half]
        first, second = products[:, ::2], products[:, 1::2]
        products = torch.cat([F.pad(first, (0, half)), torch.cat([across, second], -1)], -2)
    return products.view(*chunks, size, size)


def pairwise_decay(log_decay: Tensor) -> Tensor:
    r"""Return $\exp(\sum_{l = j + 1}^{i} g_l)$ for $j \le i$, else zero: [..., C] -> [..., C, C]. No sum is a difference."""
    size = log_decay.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool, device=log_decay.device).tril()
    sums = log_decay[..., None].expand(*log_decay.shape, size).masked_fill(~below.tril(-1), 0.0).cumsum(-2)
    return sums.exp().masked_fill(~below, 0.0)


def earlier(states: Tensor, state: Tensor) -> Tensor:
    """Return the state before each chunk, [B, H, chunks, N, P], from those after each."""
    return torch.cat([state[:, :, None], states], 2)[:, :, :-1]


def _following(log_decay: Tensor) -> Tensor:
    """Return the sum over the tokens after each one, [..., C, N]."""
    return F.pad(log_decay[..., 1:, :].flip(-2).cumsum(-2).flip(-2), (0, 0, 0, 1))
