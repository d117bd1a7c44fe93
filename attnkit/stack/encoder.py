# https://arxiv.org/abs/1810.04805
"""The encoder-only stack."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from attnkit.layers import Transformer, TransformerConfig
from attnkit.layers.effects import Layers
from attnkit.registry import stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import EncoderStack


@stacks.register("encoder")
class Encoder(EncoderStack):
    r"""A Transformer encoder: every token attends to every other (BERT, ViT).

    Equation:
        $$x^{(l)} = \mathrm{layer}_l(x^{(l-1)}), \quad x^{(0)} = \mathrm{dropout}(x + p)$$

    Paper: Devlin et al. 2019, https://arxiv.org/abs/1810.04805

    Raises:
        ConfigurationError: A spec is wrong, or the position encoding does not work with the score.

    Example:
        >>> import torch
        >>> stack = Encoder(d_model=16, num_layers=2, num_heads=4, attention="additive")
        >>> stack(torch.randn(2, 5, 16), key_mask=torch.ones(2, 5, dtype=torch.bool)).shape
        torch.Size([2, 5, 16])
    """

    @staticmethod
    def unread(arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the arguments that are set but have no effect, and why; see `ResolvedSpec.unread`."""
        return Layers.of(TransformerConfig(**arguments)).unread

    @keywords_of(TransformerConfig)
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.encoder = Transformer(config, causal=False)

    def forward(self, x: Tensor, *, key_mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """Encode `x` [B, T, D]; see `EncoderStack.forward`."""
        y: Tensor = self.encoder(x, key_mask=key_mask, attn_mask=attn_mask)[0]
        return y
