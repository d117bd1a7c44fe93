"""The interface of scalings."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Scaling(ABC):
    """A change of rotary frequencies that lets a model read sequences longer than those of its pretraining.

    A scaling depends only on its arguments, never on the sequences of a call: cached keys are already rotated, and a row must not depend
    on the longest row of its batch. If a published rule depends on the length, the length is therefore an argument.

    Attributes:
        attention_factor: Multiplies rotated queries and keys, and so their logits by its square.
    """

    attention_factor: float = 1.0

    @abstractmethod
    def frequencies(self, width: int, base: float, device: torch.device) -> Tensor:
        """Return the angular frequencies, [width / 2] in float64, that replace `attnkit.position.base.frequencies`.

        Raises:
            ValueError: The scaling does not fit the width or the base.
        """
