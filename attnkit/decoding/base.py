"""The interface between decoding and models: a step function and a starting point."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor

from attnkit.state import State


class Step(Protocol):
    """A function that scores every token of the vocabulary as the next one."""

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Read `tokens` [N, T], which follow `state`; return the logits of the next token [N, V] and the new state."""


class Start(NamedTuple):
    """The start of generation.

    Attributes:
        tokens: The first tokens that the model reads, [B, T].
        state: The state of the model before `tokens`, or None.
        prompt: The tokens [B, P] that the repetition penalty counts in addition to the new ones, or None.
    """

    tokens: Tensor
    state: State | None = None
    prompt: Tensor | None = None
