"""The interface of mixers: modules that move information between tokens, with a state that decoding carries from step to step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from torch import Tensor, nn

from attnkit.attention import DecayBias, FiniteBias, LazyBias
from attnkit.masks import Mask
from attnkit.position import QueryBias, Rotation
from attnkit.registry.arguments import parameters
from attnkit.state import State

Direction = Literal["causal", "bidirectional", "cross"]
PositionWay = Literal["rotation", "bias", "query_bias"]
Growth = Literal["none", "constant", "window", "linear"]
S = TypeVar("S", bound=State)


@dataclass(frozen=True)
class Tokens:
    """The properties of tokens that a mixer may read besides their vectors. A stack creates one instance for all layers of a kind.

    Attributes:
        mask: Which keys attention may read, broadcastable to [B, H, T, K]: causality, padding, the window, documents and the caller's
            mask combined; None allows all.
        bias: The bias that the layer's positions add to the scores, broadcastable to [B, H, T, K]; a function of the queries; or None.
        rotation: The rotation of the layer's positions at the tokens, or None.
        real: [B, T] bool, True = real token; None if all are. A recurrent state must neither decay nor change at padding.
        starts: [B, T] bool, True = first token of a document, where a recurrent state is reset; None if each row is one document.
        positions: [B or 1, T], the positions of the tokens in their row, counting real tokens only; a stack always sets them.
        first: Number of tokens before these when a sequence is processed in parts; only dropout depends on it.
        first_value: [B, Hkv, T, Dh], the values of the first layer with a value residual; None in that layer.
        products: The products of the vectors with the query, key and value weights, [B, T, H Dh] each, if the mixer has computed them
            together; or None.
    """

    mask: Mask | None = None
    bias: FiniteBias | LazyBias | DecayBias | QueryBias | Tensor | None = None
    rotation: Rotation | None = None
    real: Tensor | None = None
    starts: Tensor | None = None
    positions: Tensor | None = None
    first: int = 0
    first_value: Tensor | None = None
    products: tuple[Tensor, ...] | None = None

    def changed(self, change: Callable[[Tensor], Tensor], *, queries: int, keys: int, device: torch.device) -> "Tokens":
        """Return a copy with `change` applied to the mask of `queries` and `keys`, and to the bias unless it reads the queries."""
        mask, bias = self.mask, self.bias
        if mask is not None:
            allowed = mask.dense(queries, keys, device)
            assert allowed is not None
            mask = Mask.of(change(allowed if mask.alive is None else allowed & mask.alive))
        if isinstance(bias, FiniteBias | LazyBias | DecayBias):
            bias = FiniteBias(change(bias.values))
        elif isinstance(bias, Tensor):
            bias = change(bias)
        return replace(self, mask=mask, bias=bias)

    def read_with(self, ways: frozenset[PositionWay]) -> "Tokens":
        """Return the properties for a mixer whose `reads_positions` are `ways`: without positions, unless it can apply all of them."""
        bias: PositionWay = "query_bias" if isinstance(self.bias, QueryBias) else "bias"
        given: dict[PositionWay, object] = {"rotation": self.rotation, bias: self.bias}
        if all(way in ways for way, value in given.items() if value is not None):
            return self
        return replace(self, bias=None, rotation=None)


class Mixer(nn.Module, ABC, Generic[S]):
    """Base class of modules that move information between tokens, [B, T, D] -> [B, T, D].

    The constructor takes the arguments of its spec, and may declare any option of a layer (`AttentionConfig`), which the layer passes:
    `d_model`, `direction`, `num_heads`, `dropout`, ... To add a mixer, write a subclass and register it.

    Args:
        d_model: Width D.
        num_heads: Number of heads H.
        direction: Which tokens it reads: one of its `directions`.

    Attributes:
        directions: Which tokens it can read: earlier ones (`causal`), all tokens (`bidirectional`), or a memory (`cross`).
        reads_positions: The kinds of position encodings that it applies: rotations of queries and keys, biases, and biases that depend on
            the query. Positions added to the embeddings work with every mixer.
        has_weights: Whether it has attention weights that `attnkit.record_attention` records.
        reads_masks: Whether it respects an arbitrary mask between pairs of tokens (`attn_mask`); every mixer respects padding and
            documents.
        growth: How its state grows with the tokens that it has read: not at all (`none`: it has no state; `constant`), until it holds a
            window of tokens (`window`), or with each token (`linear`).
        splits: The linear maps whose outputs tensor parallelism splits by heads. Such a mixer ends with a linear map `output` and works
            with any subset of its heads. If empty, every process computes the whole mixer.
    """

    directions: ClassVar[frozenset[Direction]]
    reads_positions: ClassVar[frozenset[PositionWay]] = frozenset()
    has_weights: ClassVar[bool] = False
    reads_masks: ClassVar[bool] = False
    growth: Growth
    splits: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def options_read(cls, arguments: Mapping[str, Any]) -> frozenset[str]:
        """Return the layer options that a mixer with these `arguments` in its spec reads (default: those that the constructor declares)."""
        return frozenset(parameters(cls))

    @abstractmethod
    def forward(self, x: Tensor, tokens: Tokens, state: S | None = None) -> tuple[Tensor, S | None]:
        """Mix the tokens `x`, which follow those in `state`.

        Args:
            x: [B, T, D].
            tokens: The properties of `x`.
            state: The state returned by the previous call, or None before the first token; in direction `cross`, by `remember`.

        Returns:
            [B, T, D], and the state after `x`, which the next call needs. In direction `cross`, the state is returned unchanged.
        """

    def remember(self, memory: Tensor, tokens: Tokens) -> S:
        """Return the state for a memory [B, S, D], which is projected once for all steps. Direction `cross` only."""
        raise NotImplementedError(f"{type(self).__name__} cannot read a memory")


def refuse_empty(x: Tensor) -> None:
    """Raise a ValueError if an input [B, T, D] has no rows or no tokens, so that there is nothing to mix."""
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise ValueError(f"the input of a stack needs at least one row and one token, but has the shape {[*x.shape]}: skip empty inputs")
