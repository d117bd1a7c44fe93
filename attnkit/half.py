# https://docs.pytorch.org/docs/stable/library.html#torch.library.get_kernel
"""Half precision on processors without instructions for it."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

HALF = (torch.float16, torch.bfloat16)

_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
PRODUCTS = (
    *(f"{product}{kind}" for product in ("mm", "bmm", "addmm", "baddbmm") for kind in ("", ".out")),
    *("addmm_", "baddbmm_", "convolution", "convolution_backward", _ATTENTION, f"{_ATTENTION}_backward"),
)
"""torch operators that are slow without half-precision instructions."""

_is_open = False


def has_bfloat16() -> bool:
    """Return whether oneDNN multiplies bfloat16 matrices on this processor (AVX-512, ideally with BF16 or AMX)."""
    return bool(torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported())  # type: ignore[no-untyped-call]


@contextmanager
def products_in_float32() -> Iterator[None]:
    """Multiply half-precision matrices in float32 and round the product, inside the `with` block, on a CPU without bfloat16 instructions.

    Without such instructions, torch's own loops are 20 to 40 times slower than its float32 products. Products of two bfloat16 numbers are
    exact in float32, and both methods sum in float32, so the results differ only in the order of summation. Fused attention rounds its
    weights less often. The block applies to every module in this process, and takes a millisecond to enter.

    Example:
        >>> x = torch.ones(2, 3, dtype=torch.bfloat16)
        >>> with products_in_float32():
        ...     x @ x.T
        tensor([[3., 3.],
                [3., 3.]], dtype=torch.bfloat16)
    """
    global _is_open
    if _is_open or has_bfloat16():
        yield
        return
    with torch.library._scoped_library("aten", "IMPL") as library:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Warning only once for all operators", category=UserWarning)  # we override on purpose
            for name in PRODUCTS:
                library.impl(name, _in_float32(name), "CPU", with_keyset=True)
        _is_open = True
        try:
            yield
        finally:
            _is_open = False


def _in_float32(name: str) -> Callable[..., Any]:
    """Return a kernel for a torch operator that computes half precision in float32, and other dtypes as torch does."""
    packet = name.partition(".")[0]
    torch_kernel = torch.library.get_kernel(f"aten::{name}", "CPU")
    product = getattr(torch.ops.aten, packet.removesuffix("_")).default

    def kernel(keys: Any, *args: Any, out: Tensor | None = None, **kwargs: Any) -> Any:
        dtype = args[0].dtype
        if dtype not in HALF:
            return torch_kernel.call_boxed(keys, *args, **(kwargs if out is None else {**kwargs, "out": out}))
        result = product(*map(_float, args), **{key: _float(value) for key, value in kwargs.items()})
        if packet.endswith("_"):
            return args[0].copy_(result)
        if out is not None:
            return out.resize_(result.shape).copy_(result)
        if packet == _ATTENTION:  # the second result, the logsumexp, is float32 in torch, too
            return result[0].to(dtype), result[1]
        return tuple(x if x is None else x.to(dtype) for x in result) if isinstance(result, tuple) else result.to(dtype)

    return kernel


def _float(x: Any) -> Any:
    return x.float() if isinstance(x, Tensor) and x.dtype in HALF else x
