# https://doi.org/10.1109/78.650093
"""The recurrent encoder."""

from torch import Tensor

from attnkit.layers import Recurrent, RecurrentEncoderConfig
from attnkit.registry import stacks
from attnkit.registry.keywords import keywords_of
from attnkit.stack.base import EncoderStack, refuse_masks


@stacks.register("recurrent_encoder")
class RecurrentEncoder(EncoderStack):
    r"""A recurrent network over the whole sequence in both directions (such as a BiLSTM): the recurrent counterpart of `encoder`.

    Padding on either side changes no state, and its outputs are zero. Every layer runs on torch's fused sequence kernel.

    The cells are those of Elman 1990, https://doi.org/10.1207/s15516709cog1402_1 (`rnn`), Hochreiter and Schmidhuber 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735 (`lstm`), and Cho et al. 2014, https://arxiv.org/abs/1406.1078 (`gru`); equations and
    initialisation are in `attnkit.layers.RecurrentLayer`.

    Equation:
        $$\overrightarrow{h}_t = \mathrm{cell}(x_t, \overrightarrow{h}_{t-1}), \quad
        \overleftarrow{h}_t = \mathrm{cell}(x_t, \overleftarrow{h}_{t+1}), \quad y_t = [\overrightarrow{h}_t; \overleftarrow{h}_t]$$

    Paper: Schuster and Paliwal 1997, https://doi.org/10.1109/78.650093

    Raises:
        ConfigurationError: The cell is unknown, or `d_model` is odd with two directions.

    Example:
        >>> import torch
        >>> stack = RecurrentEncoder(d_model=16, num_layers=2, cell="gru")
        >>> stack(torch.randn(2, 5, 16), key_mask=torch.ones(2, 5, dtype=torch.bool)).shape
        torch.Size([2, 5, 16])
    """

    @keywords_of(RecurrentEncoderConfig)
    def __init__(self, config: RecurrentEncoderConfig) -> None:
        super().__init__()
        self.d_model = config.d_model
        self.encoder = Recurrent(config, bidirectional=config.bidirectional)

    def forward(self, x: Tensor, *, key_mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """Encode `x` [B, T, D]; see `EncoderStack.forward`. `attn_mask` is refused, because there is no attention."""
        refuse_masks(attn_mask)
        y: Tensor = self.encoder(x, key_mask=key_mask)[0]
        return y
