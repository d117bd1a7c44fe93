# https://arxiv.org/abs/1409.0473
"""Additive attention with products of exponentials, in eager code."""

from functools import partial
from typing import ClassVar

from torch import Tensor

from attnkit.attention.additive import Additive
from attnkit.attention.backend import blocks
from attnkit.attention.backend.additive_tiles import AdditivePairs, Tiles
from attnkit.attention.backend.base import Backend, Inputs
from attnkit.attention.backend.online import attend, refuses_inputs
from attnkit.attention.base import Attention
from attnkit.registry import backends

MIN_NUMBERS = 2**18  # below this many query-key pairs times channels, the reference is as fast
MIN_ON_GPU = 2**27
"""The same on a GPU: up to 2^26, the reference took 1.9 ms on an H200, less than the host needs for a call of `additive_triton`. From here
on, each tensor of the reference takes half a GiB."""


@backends.register("additive_eager")
class AdditiveEager(Backend):
    r"""Additive attention in tiles of queries that the backward pass recomputes, so no matrix of all queries and keys is kept.

    Exponentials are computed once per query and once per key, and each pair needs a multiply-add and a reciprocal instead of a tanh.
    Results are exact up to rounding for inputs of any magnitude. Dropout drops the same weights as the reference. Second derivatives need
    `reference`.

    Equation:
        $$\tanh(q + k) = 1 - \frac{2}{1 + e^{2q} e^{2k}}$$

    Paper: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473 (the score)

    Example:
        >>> import attnkit
        >>> attnkit.attentions.build("additive", head_dim=4).backends
        ('reference', 'chunked', 'additive_eager', 'additive_compiled')
    """

    rank = 15
    options = frozenset({"scale"})
    reads_lazy_bias = True
    score: ClassVar[str] = "additive_eager"

    def refuses_score(self, attention: Attention) -> str | None:
        """Return a reason unless the score is `Additive.score`."""
        is_additive = type(attention).score is Additive.score and "score" not in attention.__dict__
        return None if is_additive else "its score is not additive"

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason if every weight is dropped, or under torch.func or forward-mode differentiation."""
        return refuses_inputs(inputs)

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is enough work, and more than one query: for one, exponentials are as many as the tanh they replace."""
        return inputs.query.shape[-2] > 1 and pair_channels(inputs) >= (MIN_ON_GPU if inputs.query.is_cuda else MIN_NUMBERS)

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        assert isinstance(attention, Additive)
        return attend(attention, inputs, self.score, scale=attention.factor, weight=attention.score_weight)


def pair_channels(inputs: Inputs) -> int:
    """Return B H Q K A."""
    return inputs.query.numel() * inputs.key.shape[-2]


blocks.scores["additive_eager"] = partial(AdditivePairs, Tiles())
