# https://arxiv.org/abs/1409.3215
"""The recurrent encoder-decoder."""

from torch import Tensor

from attnkit.layers import Cell, ContextDecoder, ContextState, Placement, Recurrent
from attnkit.registry import AttentionSpec, BackendName, stacks
from attnkit.stack.base import EncoderDecoderStack
from attnkit.state import State


@stacks.register("recurrent_encoder_decoder")
class RecurrentEncoderDecoder(EncoderDecoderStack):
    r"""Recurrent sequence-to-sequence models, with any attention or none: what `encoder_decoder` is to the Transformer.

    | attention | placement | the model of |
    |---|---|---|
    | none | `after` | Sutskever et al. 2014: the source is the decoder's first state, a vector of fixed size |
    | none | `before` | Cho et al. 2014, https://arxiv.org/abs/1406.1078: the same vector is read with every input too |
    | any | `before` | Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473: the last state attends; the input is read with what it found |
    | any | `after` | Luong et al. 2015, https://arxiv.org/abs/1508.04025: the new state attends; `input_feeding` is theirs too |

    A decoder layer starts from the last state of the encoder layer of the same height, counted from the highest. Ours: that start in
    Bahdanau's model, which has a map of its own there, and one kind of output for all, where Bahdanau and Cho have a maxout. Of several
    layers the lowest attends in `before` (as in Wu et al. 2016, https://arxiv.org/abs/1609.08144), so that those above it run on torch's
    fused sequence kernels, as the encoder does, and the whole decoder in `after` without input feeding.

    The cells are those of Elman 1990, https://doi.org/10.1207/s15516709cog1402_1 (`rnn`), Hochreiter and Schmidhuber 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735 (`lstm`), and Cho et al. 2014, https://arxiv.org/abs/1406.1078 (`gru`); equations and
    initialisation are in `attnkit.layers.RecurrentLayer`.

    Equation:
        $$y_t = \tanh(W [c_t; h_t]), \quad \mathrm{after:}\ c_t = \mathrm{attention}(h_t, m), \ h_t = \mathrm{cell}(x_t, h_{t-1}), \quad
        \mathrm{before:}\ c_t = \mathrm{attention}(h_{t-1}, m), \ h_t = \mathrm{cell}([x_t; c_t], h_{t-1})$$

    Paper: Sutskever et al. 2014, https://arxiv.org/abs/1409.3215

    Args:
        d_model: Width of inputs, memory, states and outputs D.
        num_layers: Layers of the encoder, and of the decoder.
        num_decoder_layers: Layers of the decoder, if other than of the encoder.
        cell: `rnn`, `lstm` or `gru`.
        attention: The score between decoder and encoder, or None: the source is a vector of fixed size.
        num_heads: Heads of attention. 1 is the papers': the score alone, between states. More have projections, as in the Transformer.
        placement: Whether attention comes `after` or `before` the cell.
        input_feeding: With `after`: whether an output is read with the next input, so that attention knows what it found before.
        bidirectional: Whether the encoder reads from both ends, each with half of the width.
        dropout: Probability of dropping an element of each layer's input and output.
        attention_dropout: Probability of dropping an attention weight.
        backend: What computes the attention (auto, reference, chunked, sdpa); changes no result.

    Raises:
        ConfigurationError: An unknown name, an odd `d_model` with two directions, or input feeding where there is nothing to feed.
        ValueError: A width, count or probability is out of range, or the attention has no such backend.

    Example:
        >>> import torch
        >>> stack = RecurrentEncoderDecoder(d_model=16, num_layers=1, cell="gru", attention="additive", placement="before")
        >>> state = stack.encode(torch.randn(2, 7, 16))
        >>> y, state = stack.decode(torch.randn(2, 5, 16), state)
        >>> y.shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_layers: int,
        num_decoder_layers: int | None = None,
        cell: Cell = "lstm",
        attention: AttentionSpec | None = "scaled_dot_product",
        num_heads: int = 1,
        placement: Placement = "after",
        input_feeding: bool = False,
        bidirectional: bool = True,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        backend: BackendName = "auto",
    ) -> None:
        super().__init__()
        self.d_model = d_model
        self.encoder = Recurrent(cell=cell, d_model=d_model, num_layers=num_layers, bidirectional=bidirectional, dropout=dropout)
        self.decoder = ContextDecoder(
            cell=cell,
            d_model=d_model,
            num_layers=num_layers if num_decoder_layers is None else num_decoder_layers,
            attention=attention,
            num_heads=num_heads,
            placement=placement,
            input_feeding=input_feeding,
            dropout=dropout,
            attention_dropout=attention_dropout,
            backend=backend,
        )

    def encode(self, src: Tensor, *, src_mask: Tensor | None = None) -> ContextState:
        """Read the embedded source [B, S, D]; see `EncoderDecoderStack.encode`."""
        memory, encoded = self.encoder(src, key_mask=src_mask)
        return self.decoder.start(memory, encoded, src_mask)

    def decode(self, tgt: Tensor, state: State) -> tuple[Tensor, ContextState]:
        """Decode the embedded target tokens [B, T, D] that follow `state`."""
        assert isinstance(state, ContextState)
        y, after = self.decoder(tgt, state)
        return y, after
