"""The interface of mixers: what moves information between tokens, with a state that decoding carries from step to step."""

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
        mask: Which keys attention may read, broadcastable to [B, H, T, K]: causality, padding, window, documents and the caller's mask in
            one; None allows all.
        bias: The bias of the layer's positions, broadcastable to [B, H, T, K], a function of the queries, or None.
        rotation: The rotation of the layer's positions at the tokens, or None.
        real: [B, T] bool, True = real token; None if all are. A recurrent state must neither decay nor change at padding.
        starts: [B, T] bool, True = first token of a document, where a recurrent state is reset; None if each row is one document.
        positions: [B or 1, T], the positions of the tokens in their row, which count real tokens; a stack always gives them.
        first: Number of tokens before these when a sequence is processed in parts; only dropout depends on it.
        first_value: [B, Hkv, T, Dh], the values of the first layer with a value residual; None in that layer.
        products: The products of the vectors with the weights of queries, keys and values, [B, T, H Dh] each, if the mixer has computed
            them at once; or None.
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
        """Return what a mixer whose `reads_positions` are `ways` reads: without the positions, unless it applies all that they give."""
        bias: PositionWay = "query_bias" if isinstance(self.bias, QueryBias) else "bias"
        given: dict[PositionWay, object] = {"rotation": self.rotation, bias: self.bias}
        if all(way in ways for way, value in given.items() if value is not None):
            return self
        return replace(self, bias=None, rotation=None)


class Mixer(nn.Module, ABC, Generic[S]):
    """Base class of modules that move information between tokens, [B, T, D] -> [B, T, D].

    The constructor takes the arguments of its spec, and may declare any option of a layer (`AttentionConfig`), which the layer passes:
    `d_model`, `direction`, `num_heads`, `dropout`, ... To add a mixer, write a class like this and register it.

    Args:
        d_model: Width D.
        num_heads: Number of heads H.
        direction: The tokens that it reads: one of its `directions`.

    Attributes:
        directions: The tokens that it can read: earlier ones (`causal`), all tokens (`bidirectional`), or a memory (`cross`).
        reads_positions: The kinds of position encodings that it applies: rotations of queries and keys, biases, and biases that depend on
            the query. Positions that are added to the embeddings work with every mixer.
        has_weights: Whether it has attention weights that `attnkit.record_attention` records.
        reads_masks: Whether a mask between any two tokens can restrict it (`attn_mask`); padding and documents restrict every mixer.
        growth: How its state grows with the tokens that it has read: not at all (`none`: there is no state; `constant`), until it holds
            a window of tokens (`window`), or with each token (`linear`).
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
        """Return the options of a layer that a mixer with these `arguments` in its spec reads (default: those of the constructor)."""
        return frozenset(parameters(cls))

    @abstractmethod
    def forward(self, x: Tensor, tokens: Tokens, state: S | None = None) -> tuple[Tensor, S | None]:
        """Mix the tokens `x`, which follow those in `state`.

        Args:
            x: [B, T, D].
            tokens: Their properties.
            state: The state returned by the previous call, or None before the first token. In direction `cross`, what `remember` returned.

        Returns:
            [B, T, D], and the state after `x`, which the next call needs. In direction `cross`, the state is returned unchanged.
        """

    def remember(self, memory: Tensor, tokens: Tokens) -> S:
        """Return the state that represents a memory [B, S, D], projected once for all steps. Direction `cross` only."""
        raise NotImplementedError(f"{type(self).__name__} cannot read a memory")


def refuse_empty(x: Tensor) -> None:
    """Raise a ValueError if an input [B, T, D] has no rows or no tokens: there is nothing to mix."""
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise ValueError(f"the input of a stack needs at least one row and one token, but has the shape {[*x.shape]}: do not pass it")
