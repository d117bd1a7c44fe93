# https://doi.org/10.1207/s15516709cog1402_1
"""The simple recurrent network."""

from attnkit.mixer.recurrence.recurrent_mixer import RecurrentMixer
from attnkit.registry import mixers


@mixers.register("rnn")
class RNN(RecurrentMixer):
    r"""Elman's simple recurrent network: the new state is a squashed sum of projections of the input and the previous state.

    Equation:
        $$h_t = \tanh(W x_t + U h_{t-1} + b)$$

    Paper: Elman 1990, https://doi.org/10.1207/s15516709cog1402_1

    It has no output projection, and its weights are those of torch's `nn.RNN`, so a stack of this mixer with the residual `none`, the
    feed-forward network `none` and the position `none` is the stack `recurrent_decoder`. In the direction `bidirectional`, a second
    layer reads from the end, and each has half the width (Schuster and Paliwal 1997, https://doi.org/10.1109/78.650093).

    Initialisation: see `RecurrentLayer`.

    Cost per token: $2 D^2$ multiply-adds, one token after another even in training. State: `constant`, D numbers, in fp32
    even under autocast. Training keeps about 2 D numbers per token. Packed documents run in parallel, each in its own row.

    Example:
        >>> import torch
        >>> from attnkit.mixer import Tokens
        >>> y, state = RNN(d_model=8)(torch.randn(1, 5, 8), Tokens())
        >>> torch.equal(state.hidden, y[:, -1])
        True
    """

    cell = "rnn"
