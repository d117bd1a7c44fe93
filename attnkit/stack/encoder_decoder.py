# https://arxiv.org/abs/1706.03762
"""The encoder-decoder stack."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from attnkit.layers import EncoderDecoderConfig, Transformer, TransformerState
from attnkit.layers.compatibility import legal_layers
from attnkit.layers.effects import Layers, mixer_options
from attnkit.registry import ConfigurationError, StackSpec, stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import EncoderDecoderStack, EncoderStack
from attnkit.state import State


@stacks.register("encoder_decoder")
class EncoderDecoder(EncoderDecoderStack):
    r"""The Transformer: an encoder reads the source, and a decoder attends to its own past and to the encoder's output.

    Encoder and decoder have the same width; each has its own positions. The option `encoder` replaces the encoder by another encoder stack.

    Equation:
        $$m = \mathrm{encoder}(x), \quad y_t = \mathrm{decoder}(y_{\le t}, m)$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Raises:
        ConfigurationError: A spec is wrong, the position encoding does not work with the score, or `encoder` is not an encoder stack of
            this width.

    Example:
        >>> import torch
        >>> stack = EncoderDecoder(d_model=16, num_layers=2, num_heads=4, cross_attention="additive")
        >>> state = stack.encode(torch.randn(2, 7, 16))
        >>> y, state = stack.decode(torch.randn(2, 5, 16), state)
        >>> y.shape
        torch.Size([2, 5, 16])
        >>> lstm = {"name": "recurrent_encoder", "d_model": 16, "num_layers": 1}
        >>> mixed = EncoderDecoder(d_model=16, num_layers=2, num_heads=4, encoder=lstm)
        >>> mixed.decode(torch.randn(2, 5, 16), mixed.encode(torch.randn(2, 7, 16)))[0].shape
        torch.Size([2, 5, 16])
    """

    @staticmethod
    def unread(arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the arguments that are set but have no effect, and why; see `ResolvedSpec.unread`."""
        config = EncoderDecoderConfig(**arguments)
        decoder = Layers.of(_decoder(config), mixer_options(config.cross_mixer)).unread
        return decoder if config.encoder is not None else {k: v for k, v in Layers.of(config).unread.items() if k in decoder}

    @keywords_of(EncoderDecoderConfig)
    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        decoder = _decoder(config)
        cross: dict[str, Any] = {
            "cross_mixer": config.cross_mixer,
            "cross_attention": config.cross_attention,
            "cross_position": config.cross_position,
        }
        legal_layers(decoder, direction="causal", **cross)  # before the encoder is built
        self.encoder = Transformer(config, causal=False) if config.encoder is None else _encoder(config.encoder, config.d_model)
        depth = len(self.encoder.order) if isinstance(self.encoder, Transformer) else 1
        self.decoder = Transformer(decoder, causal=True, **cross, memory_depth=depth)

    def encode(self, src: Tensor, *, src_mask: Tensor | None = None) -> TransformerState:
        """Read the embedded source [B, S, D]; see `EncoderDecoderStack.encode`."""
        memory = self.encoder(src, key_mask=src_mask)
        return self.decoder.start(memory[0] if isinstance(self.encoder, Transformer) else memory, src_mask)

    def decode(self, tgt: Tensor, state: State, *, key_mask: Tensor | None = None) -> tuple[Tensor, TransformerState]:
        """Decode the embedded target tokens [B, T, D] that follow `state`; see `EncoderDecoderStack.decode`."""
        assert isinstance(state, TransformerState)
        y, after = self.decoder(tgt, key_mask=key_mask, state=state)
        return y, after


def _decoder(config: EncoderDecoderConfig) -> EncoderDecoderConfig:
    """Return the options with the decoder's own layers, if it has any, as `layers` and `num_layers`."""
    return replace(
        config,
        num_layers=config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers,
        layers=config.layers if config.decoder_layers is None else config.decoder_layers,
    )


def _encoder(spec: StackSpec, d_model: int) -> EncoderStack:
    """Build an encoder stack of this width."""
    name = stacks.resolve(spec).name
    if not issubclass(stacks.get(name), EncoderStack):
        able = [n for n in stacks.names() if issubclass(stacks.get(n), EncoderStack)]
        raise ConfigurationError(f"encoder {name!r} is not an encoder stack; choose one of: {', '.join(able)}")
    encoder: EncoderStack = stacks.build(spec)
    if encoder.d_model != d_model:
        raise ConfigurationError(
            f"encoder and decoder must have the same width: d_model is {d_model}, but the encoder's is {encoder.d_model}"
        )
    return encoder
