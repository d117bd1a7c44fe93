# https://arxiv.org/abs/2105.01601
"""No mixing."""

from torch import Tensor

from attnkit.mixer.base import Mixer, Tokens
from attnkit.registry import mixers
from attnkit.state import State


@mixers.register("none")
class NoMixer(Mixer[State]):
    r"""No mixing: the sublayer contributes nothing and has no residual connection, so a layer is only its feed-forward network.

    A stack of such layers processes each token separately: a baseline for mixers. In a list of layers, it makes the feed-forward network
    a separate layer (Nemotron-H).

    Equation:
        $$\mathrm{none}(x) = 0$$

    Paper: Tolstikhin et al. 2021, https://arxiv.org/abs/2105.01601 (MLP-Mixer, which replaces attention as the token mixer)

    Cost: nothing. State: none.

    Example:
        >>> import torch
        >>> NoMixer()(torch.ones(1, 2, 3), Tokens())[0].sum()
        tensor(0.)
    """

    directions = frozenset({"causal", "bidirectional"})
    growth = "none"

    def forward(self, x: Tensor, tokens: Tokens, state: State | None = None) -> tuple[Tensor, None]:
        """Return zeros [B, T, D], and no state."""
        return x.new_zeros(()).expand_as(x), None
