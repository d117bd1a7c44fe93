"""What decoding needs of a model: one function."""

from typing import Any, Protocol

from torch import Tensor


class Step(Protocol):
    """Score the tokens that may come next."""

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read `tokens` [N, T], which follow `state`; return the logits of the next token [N, V] and the state after them."""
