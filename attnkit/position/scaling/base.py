"""The interface of scalings."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor


class Scaling(ABC):
    """A change of rotary's frequencies, so that a model reads sequences longer than those of its first training.

    A scaling depends on its arguments alone, never on the sequences of a call: keys are cached as they were rotated, and a row must not
    depend on the longest row of its batch. So the length is an argument where a published rule switches by it.

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
