# https://arxiv.org/abs/1810.04805
"""BERT's head for masked language modelling."""

from torch import Tensor
from typing_extensions import override

from attnkit.embedding import Embedding
from attnkit.feed_forward.base import make_activation
from attnkit.head.base import Head
from attnkit.linear import Linear
from attnkit.registry import NormSpec, heads, norms


@heads.register("bert")
class BERTHead(Head):
    r"""A dense layer, an activation and a norm (of the stack's kind) before the output map, which has a bias for each output.

    Equation:
        $$z = W \, \mathrm{norm}(\phi(W_1 h + b_1)) + b$$

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805 (in their code)

    Args:
        outputs: Number of tokens V.
        tied: The embedding whose table is W, or None.
        norm: The stack's norm.
        activation: Name of phi, as for the feed-forward network `mlp`.
        dense_bias: Whether the dense layer has a bias (ModernBERT's has none).

    Raises:
        ConfigurationError: The activation is unknown, or the tied embedding has no table.

    Example:
        >>> import torch
        >>> BERTHead(d_model=4, outputs=9)(torch.randn(2, 3, 4)).shape
        torch.Size([2, 3, 9])
    """

    def __init__(
        self,
        *,
        d_model: int,
        outputs: int,
        tied: Embedding | None = None,
        norm: NormSpec = "layer_norm",
        activation: str = "gelu",
        dense_bias: bool = True,
    ) -> None:
        super().__init__(d_model=d_model, outputs=outputs, tied=tied, bias=True)
        self.dense = Linear(d_model, d_model, bias=dense_bias)
        self.activation = make_activation(activation)
        self.norm = norms.build(norm, d_model=d_model)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return self.project(self.norm(self.activation(self.dense(x))))
