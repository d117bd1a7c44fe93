# https://arxiv.org/abs/1706.03762
"""The encoder-decoder stack."""

from dataclasses import replace

from torch import Tensor

from attnkit.layers import EncoderDecoderConfig, Transformer, TransformerState
from attnkit.registry import ConfigurationError, StackSpec, stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import EncoderDecoderStack, EncoderStack
from attnkit.state import State


@stacks.register("encoder_decoder")
class EncoderDecoder(EncoderDecoderStack):
    r"""The Transformer: an encoder reads the source, a decoder attends to its own past and to the encoder's output.

    Encoder and decoder have the same width; each has its own positions. The encoder may be any encoder stack (`encoder`).

    Equation:
        $$m = \mathrm{encoder}(x), \quad y_t = \mathrm{decoder}(y_{\le t}, m)$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Raises:
        ConfigurationError: A spec is wrong, the position encoding does not work with the score, or `encoder` is not an encoder stack of
            this width.
        ValueError: A width, count or probability is out of range.

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

    @keywords_of(EncoderDecoderConfig)
    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.encoder = Transformer(config, causal=False) if config.encoder is None else _encoder(config.encoder, config.d_model)
        self.decoder = Transformer(
            replace(
                config,
                num_layers=config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers,
                layers=config.layers if config.decoder_layers is None else config.decoder_layers,
            ),
            causal=True,
            cross_mixer=config.cross_mixer,
            cross_attention=config.attention if config.cross_attention is None else config.cross_attention,
            cross_position=config.cross_position,
            memory_depth=len(self.encoder.order) if isinstance(self.encoder, Transformer) else 1,
        )

    def encode(self, src: Tensor, *, src_mask: Tensor | None = None) -> TransformerState:
        """Read the embedded source [B, S, D]; see `EncoderDecoderStack.encode`."""
        memory = self.encoder(src, key_mask=src_mask)
        return self.decoder.start(memory[0] if isinstance(self.encoder, Transformer) else memory, src_mask)

    def decode(self, tgt: Tensor, state: State, *, key_mask: Tensor | None = None) -> tuple[Tensor, TransformerState]:
        """Decode the embedded target tokens [B, T, D] that follow `state`; see `EncoderDecoderStack.decode`."""
        assert isinstance(state, TransformerState)
        y, after = self.decoder(tgt, key_mask=key_mask, state=state)
        return y, after


def _encoder(spec: StackSpec, d_model: int) -> EncoderStack:
    """Build an encoder stack of this width."""
    name = stacks.resolve(spec).name
    if not issubclass(stacks.get(name), EncoderStack):
        able = [n for n in stacks.names() if issubclass(stacks.get(n), EncoderStack)]
        raise ConfigurationError(f"encoder {name!r} is not an encoder stack; choose one of: {', '.join(able)}")
    encoder: EncoderStack = stacks.build(spec)
    if encoder.d_model != d_model:
        raise ConfigurationError(
            f"the decoder reads an encoder of its own width: d_model is {d_model}, but the encoder's {encoder.d_model}"
        )
    return encoder
