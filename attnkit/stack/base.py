"""The three shapes of a stack. A stack works on vectors; embeddings and heads belong to the model around it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from attnkit.registry import ConfigurationError
from attnkit.state import State


class EncoderStack(nn.Module, ABC):
    """A stack that sees the whole sequence at once.

    Attributes:
        d_model: Width of input and output.
    """

    d_model: int

    @abstractmethod
    def forward(self, x: Tensor, *, key_mask: Tensor | None = None, attn_mask: Tensor | None = None) -> Tensor:
        """Encode.

        Args:
            x: Embedded tokens [B, T, D].
            key_mask: [B, T] bool, True = real token (default: all).
            attn_mask: Further restriction of self-attention, bool, broadcasts to [B, H, T, T].

        Returns:
            [B, T, D].
        """


class DecoderStack(nn.Module, ABC):
    """A stack in which a token sees itself and earlier ones.

    Attributes:
        d_model: Width of input and output.
    """

    d_model: int

    @staticmethod
    def last_layer(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a stack of one layer, which is like the last one of the stack with these arguments.

        Its input is that of a layer, so it has no positions that are added to embeddings, and no `embedding_norm`.

        Raises:
            ConfigurationError: This kind of stack is not made of layers.
        """
        raise ConfigurationError("multi_token needs a stack that is made of layers, whose class has the method last_layer")

    @abstractmethod
    def forward(
        self,
        x: Tensor,
        *,
        key_mask: Tensor | None = None,
        attn_mask: Tensor | None = None,
        documents: Tensor | None = None,
        state: State | None = None,
    ) -> tuple[Tensor, State]:
        """Decode `x`, which follows the tokens that `state` remembers.

        Args:
            x: Embedded tokens [B, T, D].
            key_mask: [B, T] bool, True = real token (default: all).
            attn_mask: Further restriction of self-attention, bool, broadcasts to [B, H, T, past + T].
            documents: [B, T] integers, the document of each token, in rows that pack several contiguous ones; no token sees another
                document. Without a state.
            state: From an earlier call (default: nothing before `x`).

        Returns:
            [B, T, D], and the state after `x`.
        """


class EncoderDecoderStack(nn.Module, ABC):
    """A stack that decodes a target after reading a source.

    Attributes:
        d_model: Width of inputs and outputs.
    """

    d_model: int

    @abstractmethod
    def encode(self, src: Tensor, *, src_mask: Tensor | None = None) -> State:
        """Read the embedded source [B, S, D] (`src_mask` [B, S] bool, True = real) and return the state before the first target token."""

    @abstractmethod
    def decode(self, tgt: Tensor, state: State, *, key_mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Decode the embedded target tokens [B, T, D] that follow `state`; return [B, T, D] and the state after them.

        Args:
            tgt: Embedded tokens [B, T, D]. Padding is on the right, where no real token sees it.
            state: From `encode`, or from an earlier call.
            key_mask: [B, T] bool, True = real token (default: all), for what layers report (`attnkit.reports`).
        """


def refuse_masks(attn_mask: Tensor | None, documents: Tensor | None = None) -> None:
    """Raise if a recurrent stack is given a mask for attention, or documents."""
    if documents is not None:
        raise ConfigurationError(
            "a recurrent stack carries its state from one document into the next: set data.document_mask to false, or use the stack "
            "'decoder', whose mixers reset at each document"
        )
    if attn_mask is not None:
        raise ValueError("a recurrent stack has no attention to restrict: leave attn_mask out, or use a stack with attention")
