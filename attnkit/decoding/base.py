"""What decoding needs of a model: one function, and where it starts."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from attnkit.state import State


class Step(Protocol):
    """Score the tokens that may come next."""

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read `tokens` [N, T], which follow `state`; return the logits of the next token [N, V] and the state after them."""


class Start(NamedTuple):
    """Where a generation starts.

    Attributes:
        tokens: What the model reads first, [B, T].
        state: What the model knows before `tokens`, or None.
        prompt: The tokens [B, P] that the repetition penalty counts besides the new ones, or None.
    """

    tokens: Tensor
    state: State | None = None
    prompt: Tensor | None = None
