# https://proceedings.mlr.press/v9/glorot10a.html
"""The linear map that all components use, and its product by oneDNN during generation."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache

import torch
from torch import Tensor, nn
from typing_extensions import override

MIN_NUMBERS = {torch.float32: 2**18, torch.bfloat16: 2**14}
"""By type, the numbers of the smallest weight that goes to oneDNN for one row: a call of oneDNN takes 15 microseconds however small."""

MIN_PRODUCTS = 2**20
"""Smaller weights go there, too, with so many rows that there are this many products."""

MIN_USES = 8
"""A weight is packed when it has been used so often. Packing takes as long as it saves in 25 uses or more: at 64 new tokens, 8 was faster
than 32, and a short generation packs nothing."""

Packed = dict[int, tuple[Tensor, int, int, Tensor]]
"""By the id of a weight: the weight, its version, how often it has been used, and the matrix to multiply by."""

_packed: ContextVar[Packed | None] = ContextVar("packed", default=None)


@contextmanager
def packing(weights: Packed) -> Iterator[None]:
    """Inside the `with` block, let `linear` multiply by oneDNN in fp32 and bf16 on a CPU, where no gradients are computed.

    oneDNN's product takes half the time of torch's own (MKL) in fp32 where MKL does not know the processor, whatever the number of rows;
    for a few rows it is faster still with weights in the order in which it reads them. That copy is made once a weight has been used
    often, and doubles the memory of large weights inside the block.

    Args:
        weights: Filled with the copies; a weight that has changed since is copied again.

    Example:
        >>> layer, x = Linear(512, 512), torch.ones(4, 512)
        >>> with torch.no_grad(), packing({}):
        ...     y = layer(x)
        >>> bool(torch.allclose(y, layer(x), atol=1e-5))
        True
    """
    is_open = torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled  # type: ignore[no-untyped-call]
    is_open = is_open and not torch.is_autocast_enabled("cpu")
    token = _packed.set(weights if is_open else None)
    try:
        yield
    finally:
        _packed.reset(token)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return the product of `x` [..., I] and the transpose of `weight` [O, I], plus `bias` [O]: [..., O]."""
    is_eager = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    packed = _packed.get() if is_eager else None
    if packed is None or not _pays(x, weight):
        return nn.functional.linear(x, weight, bias)
    owner, version, uses, matrix = packed.get(id(weight), (None, 0, 0, weight))
    if owner is not weight or version != weight._version:
        uses, matrix = 0, weight.detach()
    if uses == MIN_USES:
        matrix = torch.ops.mkldnn._reorder_linear_weight(matrix)
    if uses <= MIN_USES and type(weight) is nn.Parameter:  # a weight that a module computes for each call would be kept for each
        packed[id(weight)] = (weight, weight._version, uses + 1, matrix)
    bias = None if bias is None else bias.contiguous()  # oneDNN reads it number by number, whatever its strides
    product: Tensor = torch.ops.mkldnn._linear_pointwise.default(x, matrix, bias, "none", [], "")
    return product


def _pays(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN is faster: both are of one type on a CPU, large enough, and nothing is between us and the numbers."""
    dtype, numbers = weight.dtype, weight.numel()
    least = MIN_NUMBERS.get(dtype) if x.dtype is dtype else None
    if least is None or not x.is_cpu or not weight.is_cpu or not (x.numel() and x.shape[-1]):
        return False
    if numbers < least and numbers * (x.numel() // x.shape[-1]) < MIN_PRODUCTS:
        return False
    is_own = type(x) is Tensor and type(weight) in (Tensor, nn.Parameter) and not weight.is_inference()
    return is_own and not torch._C._are_functorch_transforms_active() and (dtype is torch.float32 or _has_bf16())


@cache
def _has_bf16() -> bool:
    """Return whether oneDNN multiplies in bf16 on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class Linear(nn.Linear):
    """A linear map with Glorot's uniform initialisation and zero bias.

    Glorot and Bengio 2010, https://proceedings.mlr.press/v9/glorot10a.html; used by Vaswani et al. 2017 in tensor2tensor.

    Args:
        in_features: Width of the input.
        out_features: Width of the output.
        bias: Whether to learn a bias.
        fixed_inputs: Whether the input has a width of its own, which does not grow with that of the model; initialisations may ask.

    Example:
        >>> Linear(2, 3).bias.tolist()
        [0.0, 0.0, 0.0]
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, fixed_inputs: bool = False) -> None:
        self.fixed_inputs = fixed_inputs
        super().__init__(in_features, out_features, bias=bias)

    def reset_parameters(self) -> None:
        """Draw the weight from Glorot's uniform distribution, and set the bias to zero."""
        nn.init.xavier_uniform_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)
