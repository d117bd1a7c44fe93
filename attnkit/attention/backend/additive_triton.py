# https://arxiv.org/abs/1409.0473
"""Additive attention with products of exponentials, in Triton kernels."""

import os
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from attnkit.attention.backend import blocks
from attnkit.attention.backend.additive_eager import AdditiveEager
from attnkit.attention.backend.additive_tiles import AdditivePairs, Tiles, crossing, exponentials
from attnkit.attention.backend.base import Inputs
from attnkit.attention.base import Attention
from attnkit.registry import backends

LOGITS, SLOPES = (64, 64, 2), (16, 64, 1)
"""The queries and keys (or queries and channels) in a tile, and the warps that compute it: within 1 % of the fastest of 10 and of 12 sizes
on an H200, at T = 2048 with 64 channels."""
AT_ONCE = 8
"""The number of keys that `slopes` reads at once."""


@backends.register("additive_triton")
class AdditiveTriton(AdditiveEager):
    r"""`additive_eager` with the tiles computed by Triton kernels, on a GPU.

    The kernels compute in fp32, and results are exact up to rounding for inputs of any magnitude. Dropout drops the same weights as the
    reference. Second derivatives need `reference`. Tests interpret the kernels on a CPU, with TRITON_INTERPRET=1 set before triton is
    imported.

    Equation:
        $$\tanh(q + k) = 1 - \frac{2}{1 + e^{2q} e^{2k}}$$

    Paper: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473 (the score)

    Example:
        >>> import attnkit
        >>> attnkit.attentions.build("additive", head_dim=4).check_backend("additive_triton")  # the device is checked at a call
    """

    rank = 17
    score = "additive_triton"

    def __init__(self) -> None:
        self.has_triton = find_spec("triton") is not None
        self.interprets = os.environ.get("TRITON_INTERPRET") == "1"

    def refuses_device(self, device: torch.device) -> str | None:
        """Return a reason if triton is missing, or the device is not a CUDA GPU."""
        if not self.has_triton:
            return "triton is not installed (pip install 'attnkit[triton]')"
        return None if self.interprets or device.type == "cuda" else f"its kernels are for CUDA, and the inputs are on {device.type!r}"

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason if every weight is dropped, or the inputs are in float64."""
        if inputs.query.dtype == torch.float64 and not self.interprets:
            return "it computes in fp32, and the inputs are in float64"
        return super().refuses_inputs(attention, inputs)

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is enough work on a GPU."""
        return inputs.query.is_cuda and super().suits(attention, inputs)


class TritonTiles(Tiles):
    """Tiles of all queries, keys and heads of a block, computed by Triton kernels."""

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Any]:
        """Return the same as `Tiles.prepare`, with `exact` on the device, so that nothing waits for it."""
        exact = crossing(query, key).any()
        return query.where(exact, exponentials(query)), key.where(exact, exponentials(key)), exact.int()

    def logits(self, q: Tensor, k: Tensor, weight: Tensor, *, exact: Any) -> Tensor:
        """Return the same as `Tiles.logits`."""
        (heads, queries, channels), keys, (rows, columns, warps) = q.shape, k.shape[1], LOGITS
        output, grid = q.new_empty(heads, queries, keys), (heads, -(-queries // rows), -(-keys // columns))
        q, k = q.mT.contiguous(), k.mT.contiguous()
        sizes = {"CHANNELS": channels, "ROWS": rows, "COLUMNS": columns}
        _launch("logits", grid, q, k, weight.contiguous(), exact, output, queries, keys, **sizes, num_warps=warps)
        return output

    def slopes(self, q: Tensor, k: Tensor, gradient: Tensor, *, exact: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return the same as `Tiles.slopes`."""
        q, k, (head, row, column) = q.contiguous(), k.contiguous(), gradient.stride()
        over_keys, weights, over_queries = torch.empty_like(q), torch.empty_like(q), torch.empty_like(k)
        for x, y, sums, more, steps in ((q, k, over_keys, weights, (row, column)), (k, q, over_queries, None, (column, row))):
            (heads, ones, channels), (rows, part, warps) = x.shape, SLOPES
            part = min(part, 1 << (channels - 1).bit_length())
            grid = heads, -(-ones // rows), -(-channels // part)
            sizes = {"CHANNELS": channels, "ROWS": rows, "PART": part, "UNROLL": AT_ONCE}
            _launch("slopes", grid, x, y, gradient, exact, sums, more, ones, y.shape[1], head, *steps, **sizes, num_warps=warps)
        return over_keys, over_queries, weights


def _launch(kernel: str, grid: tuple[int, int, int], x: Tensor, *arguments: Any, **sizes: int) -> None:
    """Run a kernel on the device of its inputs."""
    from attnkit.attention.backend import additive_kernels  # needs triton

    with torch.cuda.device_of(x):  # type: ignore[no-untyped-call]
        getattr(additive_kernels, kernel)[grid](x, *arguments, **sizes)


blocks.scores["additive_triton"] = partial(AdditivePairs, TritonTiles())
