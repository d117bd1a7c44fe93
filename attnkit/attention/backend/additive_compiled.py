# https://arxiv.org/abs/1409.0473
"""Additive attention with products of exponentials, compiled."""

import warnings
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.attention.backend import blocks
from attnkit.attention.backend.additive_eager import AdditiveEager
from attnkit.attention.backend.additive_loops import LANES, Share, loops, shares, spread
from attnkit.attention.backend.additive_tiles import AdditivePairs, Tiles
from attnkit.attention.backend.base import Inputs
from attnkit.attention.base import Attention
from attnkit.cpp import compiler
from attnkit.registry import backends


@backends.register("additive_compiled")
class AdditiveCompiled(AdditiveEager):
    r"""`additive_eager` with tiles in loops of C++ without intermediate tensors, on a CPU with a compiler (g++, clang++, or CXX).

    The first call on a machine compiles them, which takes less than a second; the code is kept in `~/.cache/attnkit` (`ATTNKIT_CACHE`) for
    all sizes and processes. If that fails, a warning says why, and eager code computes the tiles; so it does in float64.

    Equation:
        $$\tanh(q + k) = 1 - \frac{2}{1 + e^{2q} e^{2k}}$$

    Paper: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473 (the score)

    Example:
        >>> import attnkit
        >>> "additive_compiled" in attnkit.attentions.build("additive", head_dim=4).backends
        True
    """

    rank = 16
    score = "additive_compiled"

    def __init__(self) -> None:
        self.has_compiler = bool(compiler())

    def refuses_device(self, device: torch.device) -> str | None:
        """Return a reason if there is no compiler for the device."""
        if not self.has_compiler:
            return "no C++ compiler is installed (g++ or clang++, or the one named by CXX)"
        return None if device.type == "cpu" else "its compiled form is for CPUs"

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is enough work, and the keys fill a register."""
        return super().suits(attention, inputs) and inputs.key.shape[-2] >= LANES


class CompiledTiles(Tiles):
    """Tiles in compiled loops; eager in float64, where exponentials are inexact, or if the compiler fails."""

    failed = False

    def logits(self, q: Tensor, k: Tensor, weight: Tensor, *, exact: Any) -> Tensor:
        """Return the same as `Tiles.logits`."""
        if (run := self._loops(q, exact)) is None:
            return super().logits(q, k, weight, exact=exact)
        (heads, queries, channels), keys = q.shape, k.shape[1]
        more = -channels % LANES  # with weight 0
        q, weight = (F.pad(x, (0, more)).contiguous() for x in (q, weight))
        k = F.pad(k.mT, (0, -keys % LANES, 0, more)).contiguous()
        found = q.new_empty(heads, queries, k.shape[2])

        def compute(share: Share) -> None:
            some, rows, _ = share
            given = q[some, rows], k[some], weight[some], found[some, rows]
            run.logits(*(x.data_ptr() for x in given), len(given[0]), queries, given[0].shape[1], *k.shape[:0:-1])

        spread(compute, shares(heads, queries, q.numel() * keys))
        return found[..., :keys]

    def slopes(self, q: Tensor, k: Tensor, gradient: Tensor, *, exact: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same as `Tiles.slopes`."""
        if (run := self._loops(q, exact)) is None:
            return super().slopes(q, k, gradient, exact=exact)
        heads, queries, channels = q.shape
        more, odd = -channels % LANES, queries % 2  # a pair of queries shares a division
        q, k, gradient = (F.pad(x, pad).contiguous() for x, pad in ((q, (0, more, 0, odd)), (k, (0, more)), (gradient, (0, 0, 0, odd))))
        among = shares(heads, q.shape[1], q.numel() * k.shape[1])
        over_keys, weights, over_queries = torch.zeros_like(q), torch.zeros_like(q), k.new_zeros(1 + among[-1][-1], *k.shape)

        def compute(share: Share) -> None:
            some, rows, part = share
            given = q[some, rows], k[some], gradient[some, rows], over_keys[some, rows], over_queries[part, some], weights[some, rows]
            run.slopes(*(x.data_ptr() for x in given), len(given[0]), q.shape[1], given[0].shape[1], *k.shape[1:])

        spread(compute, among)
        return over_keys[:, :queries, :channels], over_queries.sum(0)[..., :channels], weights[:, :queries, :channels]

    def _loops(self, q: Tensor, exact: bool) -> Any:
        """Return the compiled loops, or None if they do not serve these inputs."""
        if self.failed or exact or q.dtype != torch.float32:
            return None
        try:
            return loops()
        except OSError as error:
            self.failed = True
            warnings.warn(f"additive attention runs without compilation, which failed: {error}", stacklevel=2)
        return None


blocks.scores["additive_compiled"] = partial(AdditivePairs, CompiledTiles())
