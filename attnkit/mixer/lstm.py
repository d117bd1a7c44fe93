# https://doi.org/10.1162/neco.1997.9.8.1735
"""Long short-term memory."""

from attnkit.mixer.recurrence.recurrent_mixer import RecurrentMixer
from attnkit.registry import mixers


@mixers.register("lstm")
class LSTM(RecurrentMixer):
    r"""Long short-term memory: a cell whose gates control writing, keeping and reading.

    Equation:
        $$c_t = f_t \odot c_{t-1} + i_t \odot \tanh(W_c x_t + U_c h_{t-1} + b_c), \qquad h_t = o_t \odot \tanh(c_t)$$
        with gates $i, f, o = \sigma(W x_t + U h_{t-1} + b)$, each with its own weights

    Paper: Hochreiter and Schmidhuber 1997, https://doi.org/10.1162/neco.1997.9.8.1735; forget gates by Gers et al. 2000,
    https://doi.org/10.1162/089976600300015015

    It has no output projection, and its weights are those of torch's `nn.LSTM`, so a stack of this mixer with the residual `none`, the
    feed-forward network `none` and the position `none` is the stack `recurrent_decoder`. In the direction `bidirectional`, a second
    layer reads from the end, and each has half the width (Schuster and Paliwal 1997, https://doi.org/10.1109/78.650093).

    Initialisation: see `RecurrentLayer`.

    Cost per token: $8 D^2$ multiply-adds, one token after another even in training. State: `constant`, 2 D numbers, in fp32
    even under autocast. Training keeps about 7 D numbers per token. Packed documents run in parallel, each in its own row.

    Example:
        >>> import torch
        >>> from attnkit.mixer import Tokens
        >>> y, state = LSTM(d_model=8)(torch.randn(1, 5, 8), Tokens())
        >>> torch.equal(state.hidden, y[:, -1])
        True
    """

    cell = "lstm"
