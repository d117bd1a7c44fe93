# https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"""The decoder-only stack."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from typing_extensions import override

from attnkit.layers import Transformer, TransformerConfig, TransformerState
from attnkit.layers.effects import Layers
from attnkit.layers.last import last_layer
from attnkit.registry import stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import DecoderStack
from attnkit.state import State


@stacks.register("decoder")
class Decoder(DecoderStack):
    r"""A Transformer decoder without memory: every token attends to itself and to earlier ones (GPT, Llama).

    Equation:
        $$x_t^{(l)} = \mathrm{layer}_l(x_{\le t}^{(l-1)}), \quad x^{(0)} = \mathrm{dropout}(x + p)$$

    Paper: Radford et al. 2019, https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf

    Raises:
        ConfigurationError: A spec is wrong, or the position encoding does not work with the score.

    Example:
        >>> import torch
        >>> stack = Decoder(d_model=16, num_layers=2, num_heads=4, num_kv_heads=1, position="rotary")
        >>> x = torch.randn(2, 5, 16)
        >>> start, state = stack(x[:, :4])
        >>> end, state = stack(x[:, 4:], state=state)
        >>> torch.allclose(torch.cat([start, end], 1), stack(x)[0], atol=1e-5)
        True
    """

    @staticmethod
    def unread(arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the arguments that are set but have no effect, and why; see `ResolvedSpec.unread`."""
        return Layers.of(TransformerConfig(**arguments)).unread

    @staticmethod
    @override
    def last_layer(arguments: Mapping[str, Any]) -> dict[str, Any]:
        return last_layer(TransformerConfig(**arguments))

    @keywords_of(TransformerConfig)
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.decoder = Transformer(config, causal=True)

    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        documents: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, TransformerState]:
        """Decode `x` [B, T, D]; see `DecoderStack.forward`."""
        assert state is None or isinstance(state, TransformerState)
        y, after = self.decoder(x, key_mask=key_mask, attn_mask=attn_mask, documents=documents, state=state)
        return y, after
