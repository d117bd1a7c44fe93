"""The interface of position encodings: they may add to the embeddings, rotate queries and keys, or add a bias to the logits."""

from abc import ABC
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Rotation:
    """A rotation of the first 2 R channels of queries and keys, by position.

    Attributes:
        cos: [B or 1, 1, T, R] fp32, or float64 in a float64 model.
        sin: With the shape and type of `cos`.
        interleaved: Whether pairs are neighbouring channels (2i, 2i + 1) rather than (i, i + R).
        scale: With the shape and type of `cos`; multiplies queries and divides keys; or None.
    """

    cos: Tensor
    sin: Tensor
    interleaved: bool = False
    scale: Tensor | None = None

    def at(self, positions: Tensor) -> "Rotation":
        """Return the rotation at `positions` [B, T], looked up in a rotation for the positions 0, 1, 2, ... ([1, 1, N, R])."""
        cos, sin, scale = (None if x is None else x[0, 0][positions][:, None] for x in (self.cos, self.sin, self.scale))
        assert cos is not None
        assert sin is not None
        return Rotation(cos, sin, self.interleaved, scale)

    def query(self, x: Tensor) -> Tensor:
        """Rotate queries [B, H, T, Dh], in fp32 or higher precision."""
        return self._turn(x, self.cos, self.sin) if self.scale is None else self._turn(x, self.cos * self.scale, self.sin * self.scale)

    def key(self, x: Tensor) -> Tensor:
        """Rotate keys [B, H, T, Dh], in the same way."""
        return self._turn(x, self.cos, self.sin) if self.scale is None else self._turn(x, self.cos / self.scale, self.sin / self.scale)

    def _turn(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        width = 2 * cos.shape[-1]
        rotated, rest = x[..., :width], x[..., width:]
        axis, pairs = (-1, (-1, 2)) if self.interleaved else (-2, (2, -1))
        first, second = rotated.to(torch.promote_types(x.dtype, cos.dtype)).reshape(*x.shape[:-1], *pairs).unbind(axis)
        turned = (first * cos - second * sin, first * sin + second * cos)
        rotated = torch.stack(turned, axis).flatten(-2).to(x.dtype)
        return torch.cat([rotated, rest], -1) if rest.shape[-1] else rotated


class Position(nn.Module, ABC):
    """A position encoding. By default, all layers of a stack with equal positions share one.

    Subclasses override the methods that they need; the others do nothing. Positions are integers, [B, T] or [1, T].

    Attributes:
        max_length: Number of positions, or None if there is no limit.
        needs_inner_product: Whether it requires an attention score that is an inner product.
        needs_causal: Whether it is defined only if no query attends to a later key of the same sequence.
        scales_queries: Whether its rotation scales queries by a factor that only that of a key at a position cancels.
        by_offset: Whether its bias, if any, depends only on the key's position minus the query's.
        reads_queries: Whether its bias depends on the queries, so that it implements `query_bias`.
    """

    max_length: int | None = None
    needs_inner_product: ClassVar[bool] = False
    needs_causal: ClassVar[bool] = False
    scales_queries: ClassVar[bool] = False
    by_offset: ClassVar[bool] = False
    reads_queries: ClassVar[bool] = False
    _precision: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_precision", torch.empty(0), persistent=False)  # `.double()` converts it too

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of computed tables: float64 after `.double()`, otherwise fp32, even in half precision."""
        return torch.promote_types(self._precision.dtype, torch.float32)

    def embedding(self, positions: Tensor) -> Tensor | None:
        """Return vectors to add to the embeddings, [B or 1, T, D], or None."""
        return None

    def rotation(self, positions: Tensor) -> Rotation | None:
        """Return the rotation of projected queries and keys at these positions, or None."""
        return None

    def bias(self, query_positions: Tensor, key_positions: Tensor) -> Tensor | None:
        """Return a bias to add to the logits, [B or 1, H, Q, K], or None. It must be finite: masking belongs to the mask."""
        return None

    def query_bias(self, query: Tensor, logits: Callable[[], Tensor], query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return a bias that depends on the queries, [B, H, Q, K], finite. Called only if `reads_queries`, with autocast off.

        Args:
            query: Queries [B, H, Q, Dh] after the layer's projection, before the score's own; fp32, or float64 in a float64 model.
            logits: Returns the score's logits [B, H, Q, K], -inf at masked keys unless the whole row is masked. The call computes the
                score a second time, so omit it if the bias does not need the logits.
            query_positions: [B or 1, Q].
            key_positions: [B or 1, K].
        """
        raise NotImplementedError


class Table(Position):
    """A position encoding with a learned table, initialised from a normal distribution with standard deviation 0.02."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from a normal distribution with standard deviation 0.02."""
        nn.init.normal_(self.weight, std=0.02)


class QueryBias(NamedTuple):
    """The bias, at these positions, of a position encoding that reads the queries; each attention calls it with its own queries.

    Attributes:
        position: The position encoding.
        query_positions: [B or 1, Q].
        key_positions: [B or 1, K].
    """

    position: Position
    query_positions: Tensor
    key_positions: Tensor

    def __call__(self, query: Tensor, logits: Callable[[], Tensor]) -> Tensor:
        """Return the bias [B, H, Q, K] for queries [B, H, Q, Dh] and the logits of their score."""
        with torch.autocast(query.device.type, enabled=False):
            query = query.to(torch.promote_types(query.dtype, self.position.dtype))
            return self.position.query_bias(query, logits, self.query_positions, self.key_positions)


def frequencies(width: int, base: float, device: torch.device) -> Tensor:
    """Return the angular frequencies base^(-2i / width) for i < width / 2, [width / 2] in float64.

    They are recomputed in each call, so `.to(bfloat16)`, meta-device initialisation and sharding cannot corrupt them.

    Example:
        >>> frequencies(4, 10_000.0, torch.device("cpu"))
        tensor([1.0000, 0.0100], dtype=torch.float64)
    """
    return base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
