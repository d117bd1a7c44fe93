# https://arxiv.org/abs/1409.0473
"""Additive attention."""

import torch
from torch import Tensor, nn

from attnkit.attention.base import Attention
from attnkit.registry import attentions, check_positive


@attentions.register("additive")
class Additive(Attention):
    r"""Additive attention (Bahdanau): a network with one hidden layer scores each query-key pair.

    Each query-key pair costs `hidden_dim` tanh evaluations. With the backend `auto`, the tensor [B, H, Q, K, hidden_dim] is not
    materialised for all queries if it is large: backends process a few queries at a time and recompute them in the backward pass.

    Equation:
        $$\mathrm{score}(q, k) = v_h^\top \tanh(W_h^\top q + U_h^\top k)$$

    Paper: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473

    Initialisation: W and U normal with standard deviation head_dim^-1/2, v with hidden_dim^-1/2, so that logits start with about unit
    variance, as in `scaled_dot_product` (our choice; the paper draws W and U with 0.001 and sets v to zero).

    Args:
        num_heads: Query heads, each with its own W and v.
        num_kv_heads: Key and value heads, each with its own U.
        hidden_dim: Width of the hidden layer (default: head_dim).

    Raises:
        ValueError: `hidden_dim` is not positive.

    Example:
        >>> import torch
        >>> attention = Additive(head_dim=8, num_heads=2, hidden_dim=32)
        >>> q, memory = torch.randn(3, 2, 5, 8), torch.randn(3, 2, 7, 8)
        >>> attention(q, memory, memory).shape
        torch.Size([3, 2, 5, 8])
    """

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None, hidden_dim: int | None = None) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.hidden_dim = head_dim if hidden_dim is None else hidden_dim
        check_positive(hidden_dim=self.hidden_dim)
        self.query_weight = nn.Parameter(torch.empty(num_heads, head_dim, self.hidden_dim))
        self.key_weight = nn.Parameter(torch.empty(self.num_kv_heads, head_dim, self.hidden_dim))
        self.score_weight = nn.Parameter(torch.empty(num_heads, self.hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw all weights from normal distributions scaled by their fan-in."""
        nn.init.normal_(self.query_weight, std=self.head_dim**-0.5)
        keys = torch.empty_like(self.query_weight)  # one per query head, so that the draw of v does not depend on the number of key heads
        with torch.no_grad():
            self.key_weight.copy_(nn.init.normal_(keys, std=self.head_dim**-0.5)[: self.num_kv_heads])
        nn.init.normal_(self.score_weight, std=self.hidden_dim**-0.5)

    @property
    def pair_width(self) -> int:
        """Width of the hidden layer, which `score` holds for each query-key pair."""
        return self.hidden_dim

    def project_query(self, query: Tensor) -> Tensor:
        """Return W^T q, [B, H, Q, A]."""
        return _projected(query, self.query_weight)

    def project_key(self, key: Tensor) -> Tensor:
        """Return U^T k, [B, Hkv, K, A]."""
        return _projected(key, self.key_weight)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Return v . tanh(query + key), [B, H, Q, K]."""
        hidden = torch.tanh(query[:, :, :, None, :] + key[:, :, None, :, :])  # [B, H, Q, K, A]
        return torch.einsum("bhqka,ha->bhqk", hidden, self.score_weight.to(hidden.dtype))


def _projected(x: Tensor, weight: Tensor) -> Tensor:
    """Return the product of `x` [B, H, T, D] and the matrix of each head, [H, D, A]."""
    if len(weight) == 1:  # a plain product is faster, especially for one vector
        return x @ weight[0]
    return torch.einsum("bhtd,hda->bhta", x, weight)  # `@` would copy the matrices for each row of the batch
