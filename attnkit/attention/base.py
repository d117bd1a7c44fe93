"""What all attention kinds share: the masked softmax, the weighted sum, grouped heads, and the backends that compute them.

A kind of attention is a *score*: one number per query and key. Everything else is here, so that a new score has masks,
grouped-query heads, caches, recorded weights and every backend at once.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnkit.attention.bias import FiniteBias, prepare
from attnkit.dropout import dropout as drop
from attnkit.masks import Mask

Backend = Literal["auto", "reference", "chunked", "sdpa"]

HALF = (torch.float16, torch.bfloat16)

MOST_HEADS = 2**16
"""More heads than a layer has: numbers of (query, head) are all different."""

CPU_SHORT_KEYS = 128
"""Up to this many keys, plain matrix products beat torch's fused kernel in half precision on a CPU (6 times at 16 keys, even at 128)."""


class Attention(nn.Module, ABC):
    r"""A score between queries and keys, and the attention that follows from it.

    Subclasses write `score`, and may project queries and keys first. To add one, write a class like this and register it.

    Equation:
        $$\mathrm{attention}(q, K, V) = \sum_j \mathrm{softmax}_j(\mathrm{score}(q, k_j) + b_j) \, v_j$$

    Args:
        head_dim: Width of each query and key head.
        num_heads: Query heads H.
        num_kv_heads: Key and value heads, a divisor of H (default H). Query head h uses key head h * num_kv_heads // H.
    """

    inner_product: ClassVar[bool] = False
    """Whether the score is an inner product of the projected query and key (rotations need this, fused kernels too)."""
    chunk_elements: int = 2**22
    """Elements of the largest tensor that `chunked` makes at once (16 MiB in fp32)."""
    site: int = 0
    """Which of the model's dropouts this is; a task sets it by the module's path."""
    first_head: int = 0
    """Number of the first head that this process has, under tensor parallelism."""

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        if self.num_kv_heads < 1 or num_heads < 1 or num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads ({self.num_kv_heads}) must be positive and divide num_heads ({num_heads})")

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that compute this score; each agrees with `reference` in values and gradients."""
        return ("reference", "chunked")

    @property
    def pair_width(self) -> int:
        """Numbers that `score` holds for each query and key at once."""
        return 1

    def project_query(self, query: Tensor) -> Tensor:
        """Transform the queries [B, H, Q, Dh] -> [B, H, Q, E]. Default: as they are."""
        return query

    def project_key(self, key: Tensor) -> Tensor:
        """Transform the keys [B, Hkv, K, Dh] -> [B, Hkv, K, E]. Done once per key: caches hold the result."""
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
        attn_bias: FiniteBias | Tensor | None = None,
        projected: bool = False,
        dropout: float = 0.0,
        first_query: int = 0,
        backend: Backend = "auto",
    ) -> Tensor:
        """Attend.

        Args:
            query: [B, H, Q, Dh].
            key: [B, Hkv, K, Dh].
            value: [B, Hkv, K, Dv].
            mask: Bool, broadcastable to [B, H, Q, K]; True = attend. A row without any key gives zeros.
            attn_bias: Added to the logits, broadcastable to [B, H, Q, K]. A key whose bias is -inf is masked, so a row of only -inf gives
                zeros; +inf and NaN make their row NaN.
            projected: `query` and `key` went through `project_query` and `project_key` already.
            dropout: Probability of dropping a weight, in training mode; see `attnkit.dropout`. Only `sdpa` draws from torch's generators
                instead, so with dropout `auto` does not choose it.
            first_query: Position of the first query, where a sequence comes in parts; it matters for dropout alone.
            backend: `reference` (the oracle: whole logits, fp32), `chunked` (the same, a few queries at a time, recomputed in
                the backward pass), `sdpa` (torch's fused kernels, inner products only) or `auto`.

        Returns:
            [B, H, Q, Dv].
        """
        if not projected:
            query, key = self.project_query(query), self.project_key(key)
        mask, bias = prepare(mask, attn_bias, query.shape[-2], key.shape[-2], dtype=query.dtype)
        dropout = dropout if self.training else 0.0
        compute = getattr(self, f"_{self._choose(backend, query, key, dropout)}")
        output: Tensor = compute(query, key, value, mask, bias, dropout, first_query)
        return output if mask is None or mask.alive is None else output * mask.alive

    def weights(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        attn_bias: FiniteBias | Tensor | None = None,
        projected: bool = False,
    ) -> Tensor:
        """Return the attention weights [B, H, Q, K], without dropout: each row sums to one, or to zero if it has no key."""
        if not projected:
            query, key = self.project_query(query), self.project_key(key)
        mask, bias = prepare(mask, attn_bias, query.shape[-2], key.shape[-2])
        chunks = [self._softmax(rows, key, m, b) for rows, m, b in self._chunks(query, key, mask, bias)]
        weights = torch.cat(chunks, -2)
        return weights if mask is None or mask.alive is None else weights * mask.alive

    def logits(
        self,
        query: Tensor,
        key: Tensor,
        *,
        mask: Mask | Tensor | None = None,
        attn_bias: FiniteBias | Tensor | None = None,
        projected: bool = False,
    ) -> Tensor:
        """Return what the softmax reads [B, H, Q, K]: scores and biases, and -inf at masked keys in rows with others."""
        if not projected:
            query, key = self.project_query(query), self.project_key(key)
        mask, bias = prepare(mask, attn_bias, query.shape[-2], key.shape[-2])
        return torch.cat([self._logits(rows, key, m, b) for rows, m, b in self._chunks(query, key, mask, bias)], -2)

    def check_backend(self, backend: str) -> None:
        """Raise unless `backend` is `auto` or computes this score.

        Raises:
            ValueError: It does not; the message says why.
        """
        if backend != "auto" and backend not in self.backends:
            reason = self._refusal(backend) or f"{type(self).__name__} has no backend {backend!r}"
            raise ValueError(f"{reason}; choose 'auto' or one of {', '.join(self.backends)}")

    def _refusal(self, backend: str) -> str | None:
        """Return why a backend that exists cannot compute this score, or None."""
        return None

    def _choose(self, backend: Backend, query: Tensor, key: Tensor, dropout: float) -> str:
        if backend == "auto":
            return "chunked" if self._chunk_size(query, key) < query.shape[-2] else "reference"
        self.check_backend(backend)
        return backend

    def _chunk_size(self, query: Tensor, key: Tensor) -> int:
        """Return how many queries fit into `chunk_elements` at once."""
        return max(1, self.chunk_elements // (query.shape[0] * query.shape[1] * key.shape[-2] * self.pair_width))

    def _softmax(self, query: Tensor, key: Tensor, mask: Mask | None, attn_bias: Tensor | None) -> Tensor:
        return self._logits(query, key, mask, attn_bias).softmax(-1)

    def _logits(self, query: Tensor, key: Tensor, mask: Mask | None, attn_bias: Tensor | None) -> Tensor:
        with torch.autocast(query.device.type, enabled=False):  # logits overflow in fp16, and lose digits in bf16
            query, key = (x.float() if x.dtype in HALF else x for x in (query, key))
            logits = self.score(query, _repeat_heads(key, query))  # [B, H, Q, K]
            if attn_bias is not None:
                logits = logits + attn_bias
            allowed = None if mask is None else mask.dense(query.shape[-2], key.shape[-2], query.device)
            if allowed is not None:
                logits = logits.masked_fill(~allowed, float("-inf"))
            return logits

    def _reference(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, attn_bias: Tensor | None, dropout: float, first_query: int
    ) -> Tensor:
        weights = self._softmax(query, key, mask, attn_bias)
        if dropout > 0:
            heads, queries = (torch.arange(n, device=query.device) for n in query.shape[1:3])
            rows = (first_query + queries) * MOST_HEADS + (self.first_head + heads)[:, None]  # [H, Q]
            weights = drop(weights, dropout, site=self.site, rows=rows)
        return weights.to(value.dtype) @ _repeat_heads(value, query)

    def _chunked(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, attn_bias: Tensor | None, dropout: float, first_query: int
    ) -> Tensor:
        outputs: list[Tensor] = []
        for rows, m, bias in self._chunks(query, key, mask, attn_bias):
            outputs.append(checkpoint(self._reference, rows, key, value, m, bias, dropout, first_query, use_reentrant=False))
            first_query += rows.shape[-2]
        return torch.cat(outputs, -2)

    def _chunks(
        self, query: Tensor, key: Tensor, mask: Mask | None, attn_bias: Tensor | None
    ) -> Iterator[tuple[Tensor, Mask | None, Tensor | None]]:
        """Yield a few queries at a time, with their rows of the mask and of the bias."""
        queries, keys, size = query.shape[-2], key.shape[-2], self._chunk_size(query, key)
        for start in range(0, queries, size):
            stop = min(start + size, queries)
            rows = None if mask is None else mask.rows(start, stop, queries, keys, query.device)
            bias = attn_bias if attn_bias is None or attn_bias.shape[-2] == 1 else attn_bias[..., start:stop, :]
            yield query[..., start:stop, :], rows, bias


class InnerProduct(Attention):
    """Attention whose score is `scale * <projected query, projected key>`, so that fused kernels compute it.

    Fused kernels read the projections and `scale`, never `score`: a subclass that overrides `score` runs without them.
    """

    inner_product = True
    scale: float = 1.0

    @property
    def backends(self) -> tuple[str, ...]:
        """The backends that compute this score: `sdpa` too, as long as it is the inner product."""
        return (*super().backends, "sdpa") if self._is_fusible else super().backends

    @property
    def _is_fusible(self) -> bool:
        """Whether the score is still `InnerProduct.score`, with a scale that is a plain number."""
        return getattr(self.score, "__func__", None) is InnerProduct.score and isinstance(self.scale, int | float)

    def _refusal(self, backend: str) -> str | None:
        if backend != "sdpa" or self._is_fusible:
            return None
        changed = "has a scale that is not a plain number" if type(self).score is InnerProduct.score else "overrides `score`"
        return f"{type(self).__name__} {changed}, which the fused kernels of backend 'sdpa' do not read"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        """Return `scale * query . key`, [B, H, Q, K]."""
        return (query * self.scale) @ key.transpose(-1, -2)

    def _choose(self, backend: Backend, query: Tensor, key: Tensor, dropout: float) -> str:
        if backend != "auto" or dropout > 0 or not self._is_fusible:
            return super()._choose(backend, query, key, dropout)
        is_short = key.shape[-2] <= CPU_SHORT_KEYS and query.device.type == "cpu" and query.dtype in HALF
        return "reference" if is_short else "sdpa"

    def _sdpa(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Mask | None, attn_bias: Tensor | None, dropout: float, first_query: int
    ) -> Tensor:
        grouped = key.shape[1] != query.shape[1]
        symbolic = attn_bias is None and (mask is None or (mask.causal and mask.allowed is None))
        # torch's fused kernels take grouped heads on CUDA without a dense mask; elsewhere they would fall back to slow code
        native = grouped and symbolic and query.is_cuda
        if grouped and not native:
            key, value = _repeat_heads(key, query), _repeat_heads(value, query)
        if symbolic:
            return F.scaled_dot_product_attention(
                query, key, value, is_causal=mask is not None, dropout_p=dropout, scale=self.scale, enable_gqa=native
            )
        attn_mask = None if mask is None else mask.dense(query.shape[-2], key.shape[-2], query.device)
        if attn_bias is not None:
            attn_bias = attn_bias.to(query.dtype)
            attn_mask = attn_bias if attn_mask is None else attn_bias.masked_fill(~attn_mask, float("-inf"))
        return F.scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, dropout_p=dropout, scale=self.scale)


def _repeat_heads(x: Tensor, query: Tensor) -> Tensor:
    """Repeat the key or value heads so that there is one for each query head."""
    groups = query.shape[1] // x.shape[1]
    return x if groups == 1 else x.repeat_interleave(groups, dim=1)
