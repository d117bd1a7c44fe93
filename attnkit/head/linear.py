# https://arxiv.org/abs/1608.05859
"""The linear head."""

import math

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.embedding import Embedding
from attnkit.head.base import Head
from attnkit.registry import ConfigurationError, check_positive, heads

NEVER = -1e4
"""Added to the logit of an excluded output, whose probability is then zero in every precision."""


@heads.register("linear")
class LinearHead(Head):
    r"""A linear map to the logits, with its own matrix or the embedding's table (`tie`).

    Equation:
        $$z = c \tanh\left(\frac{\lambda W h + b}{c}\right), \quad \text{or without a cap}\ z = \lambda W h + b$$

    Paper: Press and Wolf 2017, https://arxiv.org/abs/1608.05859 (tying); Gemma Team 2024, https://arxiv.org/abs/2408.00118 (cap)

    Args:
        tied: The embedding whose table is W, or None.
        bias: Whether each output has a bias b (Marian, GPT-J).
        scale: Factor lambda of the product (Cohere: 0.0625; T5 with `tie`: d^-1/2; Granite: 1 / `logits_scaling`).
        softcap: The cap c on the logits' absolute values (Gemma 2: 30; default: none).
        excluded: Outputs that are never chosen, such as ids that represent no text: 10,000 is subtracted from their logits z, so their
            probability is zero. They must not be targets (default: none).

    Raises:
        ConfigurationError: `scale` is not positive, `softcap` is not positive and finite, `excluded` has other numbers than outputs or all
            of these, or the tied embedding has no table.

    Example:
        >>> head = LinearHead(d_model=2, outputs=3, softcap=30.0)
        >>> bool(head(torch.full((1, 2), 1e6)).abs().max() <= 30)
        True
        >>> LinearHead(d_model=2, outputs=3, excluded=[0])(torch.randn(1, 2)).softmax(-1)[0, 0].item()
        0.0
    """

    def __init__(
        self,
        *,
        d_model: int,
        outputs: int,
        tied: Embedding | None = None,
        bias: bool = False,
        scale: float = 1.0,
        softcap: float | None = None,
        excluded: list[int] | None = None,
    ) -> None:
        super().__init__(d_model=d_model, outputs=outputs, tied=tied, bias=bias)
        check_positive(scale=scale)
        if softcap is not None and not 0 < softcap < math.inf:
            raise ConfigurationError(f"softcap must be positive and finite, but is {softcap}; omit it for no cap")
        self.scale, self.softcap, self.excluded, self.outputs = scale, softcap, sorted(set(excluded or ())), outputs
        if not set(self.excluded) < set(range(outputs)):
            raise ConfigurationError(f"excluded must be some of the ids 0 to {outputs - 1}, but is {excluded}")

    @override
    def forward(self, x: Tensor) -> Tensor:
        logits = self.project(x if self.scale == 1.0 else self.scale * x)
        logits = logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)
        if not self.excluded:
            return logits
        never = logits.new_zeros(self.outputs)  # not a buffer: on the meta device it would have no values
        for output in self.excluded:
            never[output].fill_(NEVER)
        return logits.add_(never)
