"""The base class of all kinds of attention: the mask, the normalizer, the weighted sum, grouped heads, and the backends that compute them.

A kind of attention is a *score*: one number per query and key. Everything else is here, so a new score works from the start with masks,
normalizers, grouped-query heads, caches, recorded weights and every backend that takes any score.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from attnkit.attention.backend.base import Inputs, choose, computing, named, ordered
from attnkit.attention.bias import FiniteBias, LazyBias, prepare
from attnkit.attention.decay import DecayBias
from attnkit.attention.talking_heads import TalkingHeads
from attnkit.half import HALF
from attnkit.masks import Mask
from attnkit.normalizer import Normalizer
from attnkit.normalizer.softmax import Softmax
from attnkit.registry import NormalizerSpec, normalizers

OPTIONS = frozenset({"scale", "softcap", "talking_heads", "normalizer"})  # the options of `Attention.configure`


class Attention(nn.Module, ABC):
    r"""A score between queries and keys, and the attention that follows from it.

    Subclasses implement `score`, and may project queries and keys first. To add one, write a subclass and register it.

    Equation:
        $$\mathrm{attention}(q, K, V) = \sum_j \mathrm{normalizer}_j(\mathrm{score}(q, k_j) + b_j) \, v_j$$

    The normalizer is softmax unless `configure` says otherwise.

    Args:
        head_dim: Width of each query and key head.
        num_heads: Number of query heads H.
        num_kv_heads: Number of key and value heads, a divisor of H (default: H). Query head h uses key head h * num_kv_heads // H.
    """

    inner_product: ClassVar[bool] = False
    """Whether the score is an inner product of the projected query and key, as rotations and fused kernels require."""
    chunk_elements: int = 2**22
    """The maximum number of elements in a tensor of `chunked` (16 MiB in fp32)."""
    site: int = 0
    """The number that identifies this dropout in the model; a task derives it from the module's path."""
    memory_keys: int = 0
    """How many keys, the first ones, belong to no token; recorded maps omit them."""
    first_head: int = 0
    """Index of the first head of this process under tensor parallelism."""
    as_written: bool = False
    """Whether to compute the equation without extra channels, as FLOPs are counted."""

    def __init_subclass__(cls, **keywords: object) -> None:
        super().__init_subclass__(**keywords)
        if "backends" in vars(cls):
            raise TypeError(
                f"{cls.__qualname__} declares `backends`, which nothing reads: each backend declares which scores it computes "
                f"(attnkit.attention.backend.Backend.refuses_score)"
            )

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None) -> None:
        super().__init__()
        ordered()  # reads the registry now rather than while a compiler traces
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads ({self.num_kv_heads}) must be positive and divide num_heads ({num_heads})")
        self.configure()

    def configure(
        self, *, normalizer: NormalizerSpec = "softmax", scale: float = 1.0, softcap: float | None = None, talking_heads: bool = False
    ) -> Self:
        r"""Set how logits are computed from any score, and weights from logits.

        Equation:
            $$z_j = c \tanh(a \, \mathrm{score}(q, k_j) / c) + b_j, \quad w = \mathrm{normalizer}(z)$$

        Papers: Gemma Team 2024, https://arxiv.org/abs/2408.00118 (softcap); Shazeer et al. 2020, https://arxiv.org/abs/2003.02436 (talking
        heads)

        Args:
            normalizer: The function that turns logits into weights.
            scale: a, a factor of the score, in addition to the score's own (`dot_product` has none).
            softcap: c, a bound on the scores, before talking heads, biases and masks (default: none).
            talking_heads: Whether learned matrices mix the scores of all heads, and then the weights of all heads.

        Returns:
            This attention.

        Raises:
            ValueError: `scale` or `softcap` is not positive and finite.
            ConfigurationError: The normalizer is unknown or has a wrong argument.
        """
        for name, number in (("scale", scale), ("softcap", softcap)):
            if number is not None and not 0 < number < math.inf:
                raise ValueError(f"{name} must be positive and finite, but is {number}")
        self.normalizer: Normalizer = normalizers.build(normalizer, num_heads=self.num_heads)
        self.factor, self.softcap = scale, softcap
        self.talking_heads = TalkingHeads(self.num_heads) if talking_heads else None
        used = {"scale": scale != 1, "softcap": softcap is not None, "talking_heads": talking_heads}
        used["normalizer"] = type(self.normalizer) is not Softmax
        self.options = tuple(name for name, is_used in used.items() if is_used)
        return self

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that compute this score; each agrees with `reference` in values and gradients."""
        return computing(self)

    @property
    def rows_sum_to_one(self) -> bool:
        """Whether the weights of each query sum to one over the keys of tokens."""
        return self.normalizer.rows_sum_to_one and self.talking_heads is None and self.memory_keys == 0

    @property
    def pair_width(self) -> int:
        """The number of values that `score` holds at once for each query-key pair."""
        return 1

    def project_query(self, query: Tensor) -> Tensor:
        """Transform the queries [B, H, Q, Dh] -> [B, H, Q, E]. Default: no change."""
        return query

    def project_key(self, key: Tensor) -> Tensor:
        """Transform the keys [B, Hkv, K, Dh] -> [B, Hkv, K, E], once per key: caches hold the result. Default: no change."""
        return key

    @abstractmethod
    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the logits.

        Args:
            query: Projected queries [B, H, Q, E], in fp32 or float64.
            key: Projected keys [B, H, K, E], with the heads already repeated for grouped queries.

        Returns:
            [B, H, Q, K].
        """

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        attn_bias: FiniteBias | LazyBias | DecayBias | Tensor | None = None,
        projected: bool = False,
        dropout: float = 0.0,
        first_query: int = 0,
        backend: str = "auto",
    ) -> Tensor:
        """Attend.

        Args:
            query: [B, H, Q, Dh].
            key: [B, Hkv, K, Dh].
            value: [B, Hkv, K, Dv].
            mask: Bool, broadcastable to [B, H, Q, K]; True = attend. A row without any key gives zeros.
            attn_bias: Added to the logits, broadcastable to [B, H, Q, K]; or a `DecayBias`, if the mask hides the keys after a query. A key
                whose bias is -inf is masked, so a row in which all are -inf gives zeros; +inf and NaN make their row NaN.
            projected: Whether `query` and `key` have already gone through `project_query` and `project_key`.
            dropout: Probability of dropping a weight in training mode; see `attnkit.dropout`. Only `sdpa` and `tiled` draw from torch's
                generators instead, so `auto` does not choose them with dropout.
            first_query: Position of the first query when a sequence is processed in parts; only dropout depends on it.
            backend: A name in `attnkit.backends`, or `auto` for the suitable one of highest rank.

        Returns:
            [B, H, Q, Dv].

        Raises:
            Refused: The named backend cannot compute the score or the call.
        """
        if not projected:
            query, key = self.project_query(query), self.project_key(key)
        lazy = attn_bias if isinstance(attn_bias, LazyBias | DecayBias) else None
        dtype = query.dtype if self.normalizer.rows_sum_to_one else None
        mask, bias = prepare(mask, attn_bias if lazy is None else None, query, key, dtype=dtype)
        inputs = Inputs(query, key, value, mask, bias if lazy is None else lazy, dropout if self.training else 0.0, first_query)
        chosen = choose(backend, self, inputs)
        output = chosen.compute(self, chosen.readable(self, inputs))
        return output if mask is None or mask.alive is None else output * mask.alive

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        attn_bias: FiniteBias | LazyBias | DecayBias | Tensor | None = None,
        projected: bool = False,
    ) -> Tensor:
        """Return the attention weights [B, H, Q, K], without dropout; they are zero for masked keys, and in rows without any key."""
        weights, mask = self._in_chunks(self.row_weights, query, key, mask, attn_bias, projected)
        return weights if mask is None or mask.alive is None else weights * mask.alive

    def logits(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        attn_bias: FiniteBias | LazyBias | DecayBias | Tensor | None = None,
        projected: bool = False,
    ) -> Tensor:
        """Return the logits [B, H, Q, K] that the normalizer reads, -inf at masked keys unless the whole row is masked."""
        return self._in_chunks(self.row_logits, query, key, mask, attn_bias, projected)[0]

    def _in_chunks(
        self,
        compute: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        mask: Mask | Tensor | None,
        attn_bias: FiniteBias | LazyBias | DecayBias | Tensor | None,
        projected: bool,
    ) -> tuple[Tensor, Mask | None]:
        """Apply `compute` to a few queries at a time; return the result [B, H, Q, K], and the mask combined with that of the bias."""
        if not projected:
            query, key = self.project_query(query), self.project_key(key)
        mask, bias = prepare(mask, attn_bias, query, key)
        return torch.cat([compute(rows, key, m, b) for rows, m, b in self.chunks(query, key, mask, bias)], -2), mask

    def check_backend(self, backend: str) -> None:
        """Raise `Refused` with the reason unless `backend` is `auto` or computes this score."""
        if backend != "auto":
            named(backend, self)

    def chunk_size(self, query: Tensor, key: Tensor) -> int:
        """Return how many queries fit into `chunk_elements` at once."""
        row = query.shape[0] * query.shape[1] * key.shape[-2] * self.pair_width  # 0 for empty inputs
        return max(1, self.chunk_elements // max(1, row))

    def row_weights(self, query: Tensor, key: Tensor, mask: Mask | None, attn_bias: Tensor | None) -> Tensor:
        """Return the weights [B, H, Q, K], in fp32 or float64, of projected queries; `attn_bias` is finite."""
        weights: Tensor = self.normalizer(self.row_logits(query, key, mask, attn_bias))
        return weights if self.talking_heads is None else self.talking_heads.mix_weights(weights)

    def row_logits(self, query: Tensor, key: Tensor, mask: Mask | None, attn_bias: Tensor | None) -> Tensor:
        """Return the logits [B, H, Q, K] of `row_weights`."""
        with torch.autocast(query.device.type, enabled=False):  # logits would overflow in fp16 and lose digits in bf16
            order = torch.contiguous_format  # otherwise products would have to copy the heads
            query, key = (x.to(torch.float32, memory_format=order) if x.dtype in HALF else x for x in (query, key))
            logits = self.score(query, repeat_heads(key, query))  # [B, H, Q, K]
            logits = logits if self.factor == 1 else logits * self.factor
            if self.softcap is not None:
                logits = self.softcap * torch.tanh(logits / self.softcap)
            if self.talking_heads is not None:
                logits = self.talking_heads.mix_logits(logits)
            if attn_bias is not None:
                logits = logits + attn_bias
            allowed = None if mask is None else mask.dense(query.shape[-2], key.shape[-2], query.device)
            if allowed is not None:
                logits = logits.masked_fill(~allowed, float("-inf"))
            return logits

    def chunks(
        self, query: Tensor, key: Tensor, mask: Mask | None, attn_bias: Tensor | None
    ) -> Iterator[tuple[Tensor, Mask | None, Tensor | None]]:
        """Yield a few queries at a time, with their rows of the mask and of the bias."""
        queries, keys, size = query.shape[-2], key.shape[-2], self.chunk_size(query, key)
        for start in range(0, max(1, queries), size):
            stop = min(start + size, queries)
            rows = None if mask is None else mask.rows(start, stop, queries, keys, query.device)
            bias = attn_bias if attn_bias is None or attn_bias.shape[-2] == 1 else attn_bias[..., start:stop, :]
            yield query[..., start:stop, :], rows, bias


class InnerProduct(Attention):
    """Attention whose score is `scale * <projected query, projected key>`, which fused kernels can compute.

    Fused kernels read the projections and `scale`, never `score`: a subclass that overrides `score` runs without them.
    """

    inner_product = True
    scale: float = 1.0

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Return `scale * query . key`, [B, H, Q, K]."""
        return (query * self.scale) @ key.transpose(-1, -2)


def repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Repeat the key or value heads to get one for each query head."""
    groups = query.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)
