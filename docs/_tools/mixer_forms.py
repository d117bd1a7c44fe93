"""Other implementations of the mixers' recurrences in plain torch, which `mixer_speed.py` compares with attnkit's.

Queries, keys and values are [B, T, H, N]; logarithms of decays are at most zero.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def segment_sums(x: Tensor, log_decay: Tensor, write: Tensor, read: Tensor, size: int = 64) -> Tensor:
    r"""Return $y_t = \sum_{s \le t} \exp(\sum_{l = s + 1}^{t} g_l) (c_t \cdot b_s) x_s$ in blocks, as listing 1 of Mamba-2 does."""
    x, write, read = (torch.unflatten(part, 1, (-1, size)) for part in (x, write, read))  # [B, chunks, C, H, ...]
    log_decay = torch.unflatten(log_decay, 1, (-1, size)).permute(0, 3, 1, 2)  # [B, H, chunks, C]
    sums = log_decay.cumsum(-1)
    inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", read, write, _segments(log_decay).exp(), x)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", write, (sums[..., -1:] - sums).exp(), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    states = torch.einsum("bhzc,bchpn->bzhpn", _segments(F.pad(sums[..., -1], (1, 0))).exp(), states)[:, :-1]
    return (inside + torch.einsum("bclhn,bchpn,bhcl->bclhp", read, states, sums.exp())).flatten(1, 2)


def cumulative_sums(query: Tensor, key: Tensor, value: Tensor, size: int = 64) -> Tensor:
    r"""Return $y_t = \sum_{s \le t} (q_t \cdot k_s) v_s$: linear attention in blocks, whose states are one cumulative sum."""
    query, key, value = (torch.unflatten(x.transpose(1, 2), 2, (-1, size)) for x in (query, key, value))
    writes = key.mT @ value
    y = query @ (writes.cumsum(2) - writes) + (query @ key.mT).tril() @ value
    return y.flatten(2, 3).transpose(1, 2)


def lightning(query: Tensor, key: Tensor, value: Tensor, slopes: Tensor, size: int = 256) -> Tensor:
    r"""Return $y_t = \sum_{s \le t} e^{-\lambda (t - s)} (q_t \cdot k_s) v_s$, one block after another (https://arxiv.org/abs/2401.04658)."""
    at, slopes = torch.arange(1, size + 1), slopes[:, None, None]
    to_query, to_key = (-slopes * at[:, None]).exp(), (-slopes * (size - at[:, None])).exp()
    inside = (-slopes * (at[:, None] - at)).exp().tril()
    state, parts = torch.zeros(()), []
    for q, k, v in zip(*(torch.split(x.transpose(1, 2), size, 2) for x in (query, key, value)), strict=True):
        parts.append((q * to_query) @ state.expand(*q.shape[:2], k.shape[-1], v.shape[-1]) + ((q @ k.mT) * inside) @ v)
        state = state * (-slopes * size).exp() + (k * to_key).mT @ v
    return torch.cat(parts, 2).transpose(1, 2)


def by_exponentials(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, size: int = 32) -> Tensor:
    r"""Return the recurrence with a decay for each channel of the keys in blocks, with $q_t e^{c_t}$ and $k_s e^{-c_s}$.

    It overflows in fp32 where logarithms of decays sum to less than -88 over a block.
    """
    query, key, value, log_decay = (torch.unflatten(x.transpose(1, 2), 2, (-1, size)) for x in (query, key, value, log_decay))
    sums = log_decay.cumsum(-2)
    query, whole = query * sums.exp(), sums[..., -1:, :]
    writes = (key * (whole - sums).exp()).mT @ value
    state, states = torch.zeros_like(writes[:, :, 0]), []
    for decay, write in zip(whole.exp().mT.unbind(2), writes.unbind(2), strict=True):
        states.append(state)
        state = decay * state + write
    y = query @ torch.stack(states, 2) + (query @ (key * (-sums).exp()).mT).tril() @ value
    return y.flatten(2, 3).transpose(1, 2)


def logarithmic_scan(log_decay: Tensor, x: Tensor) -> Tensor:
    r"""Return $h_t = e^{g_t} h_{t-1} + x_t$ over the axis 1 as Heinsen 2023 does, with separate positive and negative parts."""
    decayed = log_decay.cumsum(1)
    parts = torch.stack([x, -x]).clamp(min=1e-30).log() - decayed
    sums = (decayed + parts.logcumsumexp(2)).exp()
    return sums[0] - sums[1]


def stepping_sum(log_decay: Tensor, x: Tensor) -> Tensor:
    r"""Return $h_t = e^{g_t} h_{t-1} + x_t$ over the axis 1, token by token."""
    state, states = torch.zeros_like(x[:, 0]), []
    for decay, write in zip(log_decay.exp().unbind(1), x.unbind(1), strict=True):
        state = decay * state + write
        states.append(state)
    return torch.stack(states, 1)


def stepping_selective_scan(step: Tensor, rate: Tensor, value: Tensor, write: Tensor, read: Tensor) -> Tensor:
    """Return the outputs of `attnkit.mixer.recurrence.selective_scan`, token by token, as in transformers' plain form of Mamba."""
    decays, writes = (-step[..., None] * rate).exp(), (step * value)[..., None] * write[:, :, None]
    state, outputs = torch.zeros_like(writes[:, 0]), []
    for decay, add, c in zip(decays.unbind(1), writes.unbind(1), read.unbind(1), strict=True):
        state = decay * state + add
        outputs.append((state @ c[..., None])[..., 0])
    return torch.stack(outputs, 1)


def stepping_means(rate: Tensor, bonus: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Return the weighted means of RWKV-4 token by token, with the largest exponent kept apart, as in transformers' plain form."""
    total = weight = torch.zeros_like(key[:, 0])
    largest, outputs = torch.full_like(total, -1e38), []
    for k, v in zip(key.unbind(1), value.unbind(1), strict=True):
        top = torch.maximum(largest, k + bonus)
        past, own = (largest - top).exp(), (k + bonus - top).exp()
        outputs.append((past * total + own * v) / (past * weight + own))
        top = torch.maximum(largest - rate, k)
        past, own = (largest - rate - top).exp(), (k - top).exp()
        total, weight, largest = past * total + own * v, past * weight + own, top
    return torch.stack(outputs, 1)


def _segments(x: Tensor) -> Tensor:
    size = x.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool).tril()
    return x[..., None].expand(*x.shape, size).masked_fill(~below.tril(-1), 0).cumsum(-2).masked_fill(~below, float("-inf"))
