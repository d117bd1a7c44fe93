# https://arxiv.org/abs/1706.03762
"""The encoder-decoder stack."""

from dataclasses import replace

from torch import Tensor

from attnkit.layers import EncoderDecoderConfig, Transformer, TransformerState
from attnkit.registry import stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import EncoderDecoderStack
from attnkit.state import State


@stacks.register("encoder_decoder")
class EncoderDecoder(EncoderDecoderStack):
    r"""The Transformer: an encoder reads the source, a decoder attends to its own past and to the encoder's output.

    Encoder and decoder have the same widths; each has its own positions.

    Equation:
        $$m = \mathrm{encoder}(x), \quad y_t = \mathrm{decoder}(y_{\le t}, m)$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Raises:
        ConfigurationError: A spec is wrong, or the position encoding does not work with the score.
        ValueError: A width, count or probability is out of range.

    Example:
        >>> import torch
        >>> stack = EncoderDecoder(d_model=16, num_layers=2, num_heads=4, cross_attention="additive")
        >>> state = stack.encode(torch.randn(2, 7, 16))
        >>> y, state = stack.decode(torch.randn(2, 5, 16), state)
        >>> y.shape
        torch.Size([2, 5, 16])
    """

    @keywords_of(EncoderDecoderConfig)
    def __init__(self, config: EncoderDecoderConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.encoder = Transformer(config, causal=False)
        self.decoder = Transformer(
            replace(
                config,
                num_layers=config.num_layers if config.num_decoder_layers is None else config.num_decoder_layers,
                layers=config.layers if config.decoder_layers is None else config.decoder_layers,
            ),
            causal=True,
            cross_mixer=config.cross_mixer,
            cross_attention=config.cross_attention,
            cross_position=config.cross_position,
            memory_depth=len(self.encoder.order),
        )

    def encode(self, src: Tensor, *, src_mask: Tensor | None = None) -> TransformerState:
        """Read the embedded source [B, S, D]; see `EncoderDecoderStack.encode`."""
        memory, _ = self.encoder(src, key_mask=src_mask)
        return self.decoder.start(memory, src_mask)

    def decode(self, tgt: Tensor, state: State, *, key_mask: Tensor | None = None) -> tuple[Tensor, TransformerState]:
        """Decode the embedded target tokens [B, T, D] that follow `state`; see `EncoderDecoderStack.decode`."""
        assert isinstance(state, TransformerState)
        y, after = self.decoder(tgt, key_mask=key_mask, state=state)
        return y, after
