# https://cdn.openai.com/better-language-models/language_models_are_unsupervised_multitask_learners.pdf
"""The decoder-only stack."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import Tensor
from typing_extensions import override

from attnkit.layers import Transformer, TransformerConfig, TransformerState
from attnkit.layers.compatibility import adds
from attnkit.layers.config import LayerConfig
from attnkit.layers.effects import Layers, reads_position
from attnkit.registry import mixers, positions, stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import DecoderStack
from attnkit.state import State


@stacks.register("decoder")
class Decoder(DecoderStack):
    r"""A Transformer decoder without memory: every token attends to itself and to earlier tokens (GPT, Llama).

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
        """Return the options of a stack of one layer that is like the last layer; see `DecoderStack.last_layer`.

        Positions that are added to the embeddings, or that the layer does not read, are omitted, as is a value residual, because it reads
        an earlier layer.

        Example:
            >>> layers = [{"window": 3}, {"mixer": "retention"}]
            >>> last = Decoder.last_layer({"d_model": 8, "num_layers": 4, "num_heads": 2, "layers": layers})
            >>> last["mixer"]["name"], "window" in last
            ('retention', False)
        """
        layers = Layers.of(config := TransformerConfig(**arguments))
        last = layers.entries[layers.pattern.entry_at(layers.pattern.depth - 1)]
        options = {field.name: getattr(last, field.name) for field in fields(LayerConfig)}
        mixer = mixers.resolve(last.mixer)
        options["mixer"] = mixers.resolve({key: value for key, value in mixer.items() if key != "value_residual"})
        if not reads_position(last) or adds(positions.get(positions.resolve(last.position).name)):
            options["position"] = "none"
        alone: dict[str, Any] = {"num_layers": 1, "final_norm": config.final_norm}
        kept = Layers.of(TransformerConfig(**options, **alone)).read | {"d_model", "position"}
        return {name: value for name, value in options.items() if name in kept} | alone

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
