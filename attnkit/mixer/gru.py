# https://arxiv.org/abs/1406.1078
"""The gated recurrent unit."""

from attnkit.mixer.recurrence.recurrent_mixer import RecurrentMixer
from attnkit.registry import mixers


@mixers.register("gru")
class GRU(RecurrentMixer):
    r"""The gated recurrent unit: one gate interpolates between the previous state and a new one.

    Equation:
        $$h_t = z_t \odot h_{t-1} + (1 - z_t) \odot \tanh(W_n x_t + b_n + r_t \odot (U_n h_{t-1} + b'_n))$$
        with gates $r, z = \sigma(W x_t + U h_{t-1} + b)$, each with its own weights

    Paper: Cho et al. 2014, https://arxiv.org/abs/1406.1078

    It has no output projection, and its weights are those of torch's `nn.GRU`, so a stack of this mixer with the residual `none`, the
    feed-forward network `none` and the position `none` is the stack `recurrent_decoder`. In the direction `bidirectional`, a second
    layer reads from the end, and each has half the width (Schuster and Paliwal 1997, https://doi.org/10.1109/78.650093).

    Initialisation: see `RecurrentLayer`.

    Cost per token: $6 D^2$ multiply-adds, one token after another even in training. State: `constant`, D numbers, in fp32
    even under autocast. Training keeps about 6 D numbers per token. Packed documents run in parallel, each in its own row.

    Example:
        >>> import torch
        >>> from attnkit.mixer import Tokens
        >>> y, state = GRU(d_model=8)(torch.randn(1, 5, 8), Tokens())
        >>> torch.equal(state.hidden, y[:, -1])
        True
    """

    cell = "gru"
