# https://arxiv.org/abs/2503.14456
"""The generalised delta rule, whose transitions are diagonal plus rank one, in chunks or step by step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.mixer.recurrence.chunks import in_chunks, joined
from attnkit.mixer.recurrence.delta_rule import solved
from attnkit.mixer.recurrence.outer_product import decayed_products, decays, earlier, empty
from attnkit.mixer.recurrence.scan import scan
from attnkit.mixer.recurrence.tokens import in_full_precision


def generalized_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, removed: Tensor, replaced: Tensor, log_decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    r"""Remove the value that a decaying matrix holds for one key, write a value for another, and read the matrix with each query.

    Equation:
        $$S_t = (\mathrm{diag}(e^{g_t}) - b_t a_t^\top) S_{t-1} + k_t v_t^\top, \qquad o_t = S_t^\top q_t$$

    Within a chunk of C tokens, the value that each token removes depends on the tokens before it, which gives a triangular system, as in
    `delta_rule`. Exponents are at most zero, as in `outer_product`.

    Args:
        query: [B, H, T, N].
        key: [B, H, T, N].
        value: [B, H, T, P].
        removed: $a_t$, the key whose value is removed, [B, H, T, N]; to forget everything, set it to zero and $g_t$ to $-\infty$.
        replaced: $b_t$, the key from which that value is removed, and how much of it, [B, H, T, N].
        log_decay: $g_t \le 0$, [B, H, T, N].
        state: $S_0$, [B, H, N, P] (default: zeros).

    Returns:
        $o$ [B, H, T, P] and $S_T$ [B, H, N, P], in fp32 or float64. A single token takes one step of the equation as written.

    FLOPs: about $T (4 C N + 2 C P + 4 N P + N^2 (2 + 2 N / C))$ multiply-adds per head. Memory: a state and a matrix [N, N] for each of
    $T / C$ chunks, and $4 C$ weights per token.

    Example:
        >>> ones, halves = torch.ones(1, 1, 3, 1), torch.full((1, 1, 3, 1), 0.5)
        >>> generalized_delta_rule(ones, ones, ones, ones, halves, torch.zeros(1, 1, 3, 1))[0].flatten()
        tensor([1.0000, 1.5000, 1.7500])
    """
    with torch.autocast(value.device.type, enabled=False):
        query, key, value, removed, replaced, log_decay = in_full_precision(query, key, value, removed, replaced, log_decay)
        return (_step if value.shape[2] == 1 else _chunked)(query, key, value, removed, replaced, log_decay, state)


def _step(
    query: Tensor, key: Tensor, value: Tensor, removed: Tensor, replaced: Tensor, log_decay: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    if state is None:
        state = key.mT @ value
    else:
        state = log_decay.exp().mT * state - replaced.mT @ (removed @ state) + key.mT @ value
    return query @ state, state


def _chunked(
    query: Tensor, key: Tensor, value: Tensor, removed: Tensor, replaced: Tensor, log_decay: Tensor, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    length = value.shape[2]
    state = empty(key, value) if state is None else state
    query, key, value, removed, replaced, log_decay = in_chunks(query, key, value, removed, replaced, log_decay, powers=True)
    before, after, whole = decays(log_decay)  # [B, H, chunks, C or 1, N]
    following = _moved(removed, -1)  # the value that a token removes is read from the state before its own decay
    products = decayed_products((following, query), (replaced, key), log_decay)
    system, written = _moved(products[0, 0], 1), _moved(products[0, 1], 1) @ value
    # (1 + L) U = A S + W V: U is what the chunk removes when it starts from S
    right = torch.cat([written, F.pad(before, (0, 0, 1, -1), value=1.0) * removed], -1)
    new, old = torch.split(solved(system, right), [value.shape[-1], key.shape[-1]], -1)
    kept, lost = (key * after).mT, (replaced * after).mT  # [B, H, chunks, N, C]
    step = whole * torch.eye(key.shape[-1], dtype=key.dtype, device=key.device) - lost @ old  # `whole` scales the columns
    states = scan(step, kept @ value - lost @ new, state, dim=2, matrix=True)
    start = earlier(states, state)
    output = (query * before) @ start + products[1, 1] @ value - products[1, 0] @ (new + old @ start)
    return joined(output, length), states[:, :, -1]


def _moved(x: Tensor, tokens: int) -> Tensor:
    """Move rows to later tokens, or to earlier ones if `tokens` is negative, and fill the gap with zeros."""
    return F.pad(x, (0, 0, tokens, -tokens))
