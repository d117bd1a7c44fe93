"""The three kinds of stack. A stack works on vectors; embeddings and heads belong to the model around it."""

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
            attn_mask: An additional restriction of self-attention, bool, which broadcasts to [B, H, T, T].

        Returns:
            [B, T, D].
        """


class DecoderStack(nn.Module, ABC):
    """A stack in which a token sees itself and earlier tokens.

    Attributes:
        d_model: Width of input and output.
    """

    d_model: int

    @staticmethod
    def last_layer(arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a one-layer stack whose layer is like the last layer of the stack with these arguments.

        Its input is the output of a layer, so it adds no positions to the embeddings and has no `embedding_norm`.

        Raises:
            ConfigurationError: This kind of stack does not consist of layers.
        """
        raise ConfigurationError("multi_token needs a stack that consists of layers and whose class has the method last_layer")

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
        """Decode `x`, which follows the tokens in `state`.

        Args:
            x: Embedded tokens [B, T, D].
            key_mask: [B, T] bool, True = real token (default: all).
            attn_mask: An additional restriction of self-attention, bool, which broadcasts to [B, H, T, past + T].
            documents: [B, T] integers, the document of each token in rows that pack several contiguous documents; tokens do not see other
                documents. Cannot be combined with a state.
            state: The state returned by the previous call (default: nothing before `x`).

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
        """Encode the embedded source [B, S, D] (`src_mask` [B, S] bool, True = real); return the state before the first target token."""

    @abstractmethod
    def decode(self, tgt: Tensor, state: State, *, key_mask: Tensor | None = None) -> tuple[Tensor, State]:
        """Decode the embedded target tokens [B, T, D], which follow `state`; return [B, T, D] and the state after them.

        Args:
            tgt: Embedded tokens [B, T, D], padded on the right, so that no real token sees the padding.
            state: The state returned by `encode` or by the previous call.
            key_mask: [B, T] bool, True = real token (default: all), for the reports of layers (`attnkit.reports`).
        """


def refuse_masks(attn_mask: Tensor | None, documents: Tensor | None = None) -> None:
    """Raise if a recurrent stack receives an attention mask or documents."""
    if documents is not None:
        raise ConfigurationError(
            "a recurrent stack carries its state from one document into the next: set data.document_mask to false, or use the stack "
            "'decoder', whose mixers reset at each document"
        )
    if attn_mask is not None:
        raise ValueError("a recurrent stack has no attention to restrict: remove attn_mask, or use a stack with attention")
