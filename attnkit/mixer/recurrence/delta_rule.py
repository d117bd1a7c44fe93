# https://arxiv.org/abs/2412.06464
"""The gated delta rule, in chunks or step by step."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.mixer.recurrence.chunks import in_chunks, joined
from attnkit.mixer.recurrence.fla_kernels import fla_delta_rule
from attnkit.mixer.recurrence.outer_product import decayed_products, decays, earlier, empty, pairwise_decay
from attnkit.mixer.recurrence.scan import scan
from attnkit.mixer.recurrence.tokens import Kernel, in_full_precision


def delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    writes: int = 1,
    kernel: Kernel = "torch",
) -> tuple[Tensor, Tensor]:
    r"""Replace the value that a decaying matrix holds for each key, and read the matrix with each query.

    Equation:
        $$S_t = (I - \beta_t k_t k_t^\top) \, \mathrm{diag}(e^{g_t}) S_{t-1} + \beta_t k_t v_t^\top, \qquad o_t = S_t^\top q_t$$

    Within a chunk of C tokens, each write depends on the writes before it, which gives a triangular system (Yang et al. 2024,
    https://arxiv.org/abs/2406.06484, with decays in https://arxiv.org/abs/2412.06464 and https://arxiv.org/abs/2510.26692). Between chunks,
    the recurrence is linear, with a matrix in place of a decay. Exponents are at most zero, as in `outer_product`.

    Args:
        query: [B, H, T, N].
        key: [B, H, T, N], of length at most $\sqrt{2 / \beta}$: otherwise the state grows without bound.
        value: [B, H, T, P].
        beta: How much of the old value is replaced, [B, H, T, 1]; 0 writes nothing.
        log_decay: $g_t \le 0$, [B or 1, H, T, 1]; or [B or 1, H, T, N] with a decay for each channel of the keys.
        state: $S_0$, [B, H, N, P] (default: zeros).
        writes: Number of writes per token: keys, values and $\beta$ then have T `writes` rows. A token decays before its first write, and
            reads after its last.
        kernel: `fla` computes sequences of more than one token with the kernels of fla (`attnkit.mixer.recurrence.fla_kernels`).

    Returns:
        $o$ [B, H, T, P] and $S_T$ [B, H, N, P], in fp32 or float64. A single token takes one step of the equation as written.

    FLOPs: about $T (2 C (N + P) + 3 N P + N^2 (2 + 2 N / C))$ multiply-adds per head. Memory: a state and a matrix [N, N] for each of
    $T / C$ chunks, and $2 C$ weights per token.

    Example:
        >>> key, value, beta = torch.ones(1, 1, 3, 1), torch.tensor([2.0, 4.0, 8.0]).view(1, 1, 3, 1), torch.full((1, 1, 3, 1), 0.5)
        >>> delta_rule(key, key, value, beta, torch.zeros(1, 1, 3, 1))[0].flatten()
        tensor([1.0000, 2.5000, 5.2500])
    """
    if writes > 1:
        query = F.pad(query[:, :, :, None], (0, 0, writes - 1, 0)).flatten(2, 3)
        log_decay = F.pad(log_decay[:, :, :, None], (0, 0, 0, writes - 1)).flatten(2, 3)
        kernel = "torch" if value.shape[2] == writes else kernel  # a single token
        read, state = delta_rule(query, key, value, beta, log_decay, state, kernel=kernel)
        return read[:, :, writes - 1 :: writes], state
    if kernel == "fla" and value.shape[2] > 1:
        found: tuple[Tensor, Tensor] = fla_delta_rule(query, key, value, beta, log_decay, state)
        return found
    with torch.autocast(value.device.type, enabled=False):
        query, key, value, beta, log_decay = in_full_precision(query, key, value, beta, log_decay)
        return (_step if value.shape[2] == 1 else _chunked)(query, key, value, beta, log_decay, state)


def _step(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    state = empty(key, value) if state is None else log_decay.exp().mT * state
    state = state + key.mT @ (beta * (value - key @ state))
    return query @ state, state


def _chunked(query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    length, channels = value.shape[2], log_decay.shape[-1]
    query, key, value, beta, log_decay = in_chunks(query, key, value, beta, log_decay, powers=channels > 1)  # [B, H, chunks, C, ...]
    before, after, whole = decays(log_decay)
    written = beta * key
    # (1 + L) U = beta V, (1 + L) W = beta K decayed: U - W S is what the chunk writes when it starts from S
    if channels == 1:
        pairs = pairwise_decay(log_decay.squeeze(-1))
        system, weights = written @ key.mT * pairs, query @ key.mT * pairs  # [B, H, chunks, C, C]; the diagonal of `system` is not read
    else:
        system, weights = decayed_products((written, query), (key,), log_decay.expand_as(key))[:, 0]
    kept = (key * after).mT  # [B, H, chunks, N, C]
    if state is None and value.shape[2] == 1:
        new = solved(system, beta * value)
        return joined(weights @ new, length), (kept @ new)[:, :, 0]
    state = empty(key, value) if state is None else state
    solution = solved(system, torch.cat([beta * value, before * written], -1))
    new, old = torch.split(solution, [value.shape[-1], key.shape[-1]], -1)
    step = whole * torch.eye(key.shape[-1], dtype=key.dtype, device=key.device) - kept @ old  # `whole` scales the columns
    states = scan(step, kept @ new, state, dim=2, matrix=True)
    start = earlier(states, state)
    output = (query * before) @ start + weights @ (new - old @ start)
    return joined(output, length), states[:, :, -1]


def solved(system: Tensor, right: Tensor) -> Tensor:
    """Return X with (1 + L) X = `right`, where L is the part of `system` [..., C, C] below its diagonal."""
    found: Tensor = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    return found


def unit(x: Tensor) -> Tensor:
    """Scale vectors to length one, up to a small constant that keeps the gradient finite at zero."""
    return x * (x.square().sum(-1, keepdim=True) + 1e-6).rsqrt()
