# https://arxiv.org/abs/1909.05858
"""Transformations of a step's logits before a token is chosen. Each takes logits [N, V] and returns new logits."""

from collections.abc import Sequence

import torch
from torch import Tensor

NEVER = float("-inf")


def penalise_repetition(logits: Tensor, seen: Tensor, penalty: float) -> Tensor:
    r"""Make tokens that have occurred before less probable: divide their positive logits, and multiply their negative logits.

    (The paper divides all logits, which would make a token with a negative logit more probable.)

    Equation:
        $$z_i' = \begin{cases} z_i / \theta & z_i > 0 \\ z_i \theta & z_i \le 0 \end{cases} \quad \text{if } i \text{ occurred}$$

    Paper: Keskar et al. 2019, https://arxiv.org/abs/1909.05858

    Args:
        logits: [N, V].
        seen: [N, V] bool, True = the row has this token.
        penalty: Theta; 1 has no effect, and less than 1 favours repetition.

    Example:
        >>> penalise_repetition(torch.tensor([[3.0, -1.0, 3.0]]), torch.tensor([[True, True, False]]), 1.5)
        tensor([[ 2.0000, -1.5000,  3.0000]])
    """
    return torch.where(seen, torch.where(logits > 0, logits / penalty, logits * penalty), logits)


def forbid(logits: Tensor, tokens: Sequence[int] | Tensor) -> Tensor:
    """Make `tokens` impossible, such as the end tokens before the minimum length; a tensor on the same device is not copied to it again.

    Example:
        >>> forbid(torch.tensor([[3.0, -1.0, 2.0]]), [0, 2])
        tensor([[-inf, -1., -inf]])
    """
    return logits.index_fill(-1, torch.as_tensor(tokens, dtype=torch.long, device=logits.device), NEVER)


def keep_top_k(logits: Tensor, k: int) -> Tensor:
    """Make all but the `k` most probable tokens impossible; of equally probable ones, those with the lower ids come first.

    Paper: Fan et al. 2018, https://arxiv.org/abs/1805.04833

    Example:
        >>> keep_top_k(torch.tensor([[1.0, 3.0, 2.0]]), 2)
        tensor([[-inf, 3., 2.]])
    """
    least = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    above, equal = logits > least, logits == least
    kept = above | (equal & (equal.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
    return logits.masked_fill(~kept, NEVER)


def keep_top_p(logits: Tensor, p: float) -> Tensor:
    r"""Keep the smallest set of most probable tokens whose probabilities sum to at least `p`; make all others impossible.

    Equation:
        $$\text{keep } i \iff \sum_{j \prec i} p_j < p$$
        where j precedes i if it is more probable, or equally probable with a lower id

    Paper: Holtzman et al. 2020, https://arxiv.org/abs/1904.09751

    Example:
        >>> keep_top_p(torch.tensor([[0.5, 0.3, 0.2]]).log(), 0.7).exp()
        tensor([[0.5000, 0.3000, 0.0000]])
    """
    if p == 1:
        return logits
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probabilities = ordered.softmax(-1)
    before = probabilities.cumsum(-1) - probabilities  # sum over the more probable tokens
    return torch.empty_like(logits).scatter(-1, order, ordered.masked_fill(before >= p, NEVER))
