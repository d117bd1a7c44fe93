# https://arxiv.org/abs/1409.3215
"""The recurrent encoder-decoder."""

from torch import Tensor

from attnkit.layers import ContextDecoder, ContextState, Recurrent, RecurrentEncoderDecoderConfig
from attnkit.masks import check_bool
from attnkit.mixer.recurrence.tokens import rows
from attnkit.registry import stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import EncoderDecoderStack
from attnkit.state import State


@stacks.register("recurrent_encoder_decoder")
class RecurrentEncoderDecoder(EncoderDecoderStack):
    r"""Recurrent sequence-to-sequence models with any attention or none: the recurrent counterpart of `encoder_decoder`.

    | attention | placement | the model of |
    |---|---|---|
    | none | `after` | Sutskever et al. 2014: the source is one vector, the decoder's initial state |
    | none | `before` | Cho et al. 2014, https://arxiv.org/abs/1406.1078: the same vector is also read with every input |
    | any | `before` | Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473: the previous state attends; the input is read with it |
    | any | `after` | Luong et al. 2015, https://arxiv.org/abs/1508.04025: the new state attends; with or without `input_feeding` |

    A decoder layer starts from the last state of the corresponding encoder layer, counted from the highest. Two things are our choice: this
    initial state in Bahdanau's model, which uses a separate map, and a single kind of output for all models, where Bahdanau and Cho use a
    maxout. If a decoder with `before` has several layers, the lowest attends (as in Wu et al. 2016, https://arxiv.org/abs/1609.08144).
    The layers above it then run on torch's fused sequence kernels, as does the encoder and, with `after` but without input feeding, the
    whole decoder.

    The cells are those of Elman 1990, https://doi.org/10.1207/s15516709cog1402_1 (`rnn`), Hochreiter and Schmidhuber 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735 (`lstm`), and Cho et al. 2014, https://arxiv.org/abs/1406.1078 (`gru`); equations and
    initialisation are in `attnkit.layers.RecurrentLayer`.

    Equation:
        $$y_t = \tanh(W [c_t; h_t]), \quad \mathrm{after:}\ c_t = \mathrm{attention}(h_t, m), \ h_t = \mathrm{cell}(x_t, h_{t-1}), \quad
        \mathrm{before:}\ c_t = \mathrm{attention}(h_{t-1}, m), \ h_t = \mathrm{cell}([x_t; c_t], h_{t-1})$$

    Paper: Sutskever et al. 2014, https://arxiv.org/abs/1409.3215

    Raises:
        ConfigurationError: A name is unknown, `d_model` is odd with two directions, or there is nothing to feed for `input_feeding`.
        ValueError: A width, count or probability is out of range, or the attention has no such backend.

    Example:
        >>> import torch
        >>> stack = RecurrentEncoderDecoder(d_model=16, num_layers=1, cell="gru", attention="additive", placement="before")
        >>> state = stack.encode(torch.randn(2, 7, 16))
        >>> y, state = stack.decode(torch.randn(2, 5, 16), state)
        >>> y.shape
        torch.Size([2, 5, 16])
    """

    @keywords_of(RecurrentEncoderDecoderConfig)
    def __init__(self, config: RecurrentEncoderDecoderConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.encoder = Recurrent(config, bidirectional=config.bidirectional)
        self.decoder = ContextDecoder(config)

    def encode(self, src: Tensor, *, src_mask: Tensor | None = None) -> ContextState:
        """Encode the embedded source [B, S, D]; see `EncoderDecoderStack.encode`."""
        memory, encoded = self.encoder(src, key_mask=src_mask)
        return self.decoder.start(memory, encoded, src_mask)

    def decode(self, tgt: Tensor, state: State, *, key_mask: Tensor | None = None) -> tuple[Tensor, ContextState]:
        """Decode the embedded target tokens [B, T, D] that follow `state`; padding on the right needs no `key_mask`.

        The state after `tgt` has read the padding, too, so no tokens should follow rows with padding.
        """
        assert isinstance(state, ContextState)
        if key_mask is None:
            y, after = self.decoder(tgt, state)
            return y, after
        check_bool(key_mask, "key_mask", tgt.shape[:2])
        order = (~key_mask).int().argsort(dim=1, stable=True)  # real tokens first
        y, after = self.decoder(rows(tgt, order), state)
        return rows(y, order.argsort(dim=1)), after
