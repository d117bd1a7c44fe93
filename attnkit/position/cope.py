# https://arxiv.org/abs/2405.18719
"""CoPE: contextual positions."""

from collections.abc import Callable

import torch
from torch import Tensor

from attnkit.position.base import Table
from attnkit.registry import positions


@positions.register("cope")
class CoPE(Table):
    r"""CoPE: the position of a key is the sum of gates from it to the query; the bias is the query's product with that position's vector.

    The gates are the sigmoids of the score's logits, so every score works; masked keys do not count. Positions are fractions, so their
    vectors are interpolated. All heads, and by default all layers of a stack, share the vectors. The logits are computed twice, and
    [B, H, Q, K] numbers are kept with any backend.

    Equation:
        $$b_{h,i,j} = q_{h,i}^\top e[p_{h,i,j}], \quad p_{h,i,j} = \min\Big(n - 1, \sum_{l=j}^{i} \sigma(\mathrm{logit}_{h,i,l})\Big), \quad
        e[p] = (\lceil p \rceil - p) \, e_{\lfloor p \rfloor} + (1 - \lceil p \rceil + p) \, e_{\lceil p \rceil}$$

    Paper: Golovneva et al. 2024, https://arxiv.org/abs/2405.18719

    Initialisation: normal with standard deviation 0.02, as for `learned` (the paper's code: zeros). The vectors have no weight decay.

    Args:
        head_dim: Width of a head.
        max_count: n, the number of vectors; all positions from n - 1 on share the last.

    Raises:
        ValueError: `max_count` is less than 2.

    Example:
        >>> cope = CoPE(head_dim=2, max_count=8)
        >>> _ = cope.weight.data.copy_(torch.arange(8.0)[:, None].expand(8, 2))
        >>> query, positions = torch.ones(1, 1, 1, 2), torch.tensor([[0, 1]])
        >>> cope.query_bias(query, lambda: torch.zeros(1, 1, 1, 2), positions[:, 1:], positions).detach()  # each key counts one half
        tensor([[[[2., 1.]]]])
    """

    needs_causal = True
    reads_queries = True
    undecayed = ("weight",)

    def __init__(self, *, head_dim: int, max_count: int = 64) -> None:
        if max_count < 2:
            raise ValueError(f"max_count must be at least 2, but is {max_count}")
        super().__init__(max_count, head_dim)

    def query_bias(self, query: Tensor, logits: Callable[[], Tensor], query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the bias [B, H, Q, K]; keys must be in the order of their positions, as in a cache."""
        counts = logits().sigmoid().flip(-1).cumsum(-1).flip(-1).clamp(max=len(self.weight) - 1)
        products = query @ self.weight.to(query.dtype).T  # [B, H, Q, max_count]
        below, above = (products.gather(-1, whole.long()) for whole in (counts.floor(), counts.ceil()))
        return torch.lerp(below, above, counts - counts.floor())
