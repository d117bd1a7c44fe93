# https://arxiv.org/abs/2312.06635
"""The recurrences with the Triton kernels of fla (flash-linear-attention, https://github.com/fla-org/flash-linear-attention), on CUDA.

Each takes and returns the same tensors as its plain torch form, but multiplies in TF32, or in bfloat16 under autocast to bfloat16; sums,
decays and states are in fp32. fla uses chunks of 64 tokens.

A decay per head is computed as a decay per channel, although fla has kernels for the former, because those give wrong results. On an
NVIDIA H200 with triton 3.7.1 and in bfloat16, their gradients of queries, keys and decays were off by up to 230 times the values, and one
call accessed memory out of bounds; on Hopper GPUs, fla itself refuses them with triton 3.4 to 3.7.0.
"""

from collections.abc import Callable
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.registry import ConfigurationError
from attnkit.transforms import transformed

SMALLEST = -104.0  # its exponential is zero in fp32; fla subtracts sums of logarithms, which would give NaN for -inf
MULTIPLE = 16  # head widths are padded to it: tensor cores need at least 16, and triton miscompiles odd widths in bfloat16
WIDEST = 256  # width of the keys of a head in the delta rule
NEWEST = (3, 6)
"""The newest triton with which `chunk_kda` was checked against float64 on a Hopper GPU; with 3.7.1, other kernels of fla were wrong."""


@torch.compiler.disable  # type: ignore[untyped-decorator]
def fla_outer_product(query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Compute `outer_product` with fla's kernels."""
    _refuse(value)
    query, key = (x.repeat_interleave(value.shape[1] // x.shape[1], 1) for x in (query, key))
    from fla.ops.gla import chunk_gla

    return _computed(chunk_gla, query, key, value, log_decay, state)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def fla_delta_rule(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `delta_rule` with fla's kernels."""
    _refuse(value)
    if key.shape[-1] > WIDEST:
        raise ConfigurationError(f"kernel 'fla' computes the delta rule with keys of at most {WIDEST} channels, not {key.shape[-1]}")
    _refuse_untested()
    from fla.ops.kda import chunk_kda

    return _computed(chunk_kda, query, key, value, log_decay, state, beta)


def _refuse(value: Tensor) -> None:
    reason = None
    if not value.is_cuda:
        reason = f"it needs a CUDA GPU, and the inputs are on {value.device.type!r}"
    elif find_spec("fla") is None:
        reason = "fla is not installed (pip install 'attnkit[fla]')"
    elif value.dtype == torch.float64:
        reason = "it computes in fp32, and the inputs are in float64"
    elif transformed():
        reason = "torch.func and forward-mode derivatives cannot trace it"
    if reason is not None:
        raise ConfigurationError(f"kernel 'fla' of a mixer cannot compute this call: {reason}; kernel 'torch' has the same parameters")


def _refuse_untested() -> None:
    import triton

    release = tuple(map(int, triton.__version__.split(".")[:2]))
    if torch.cuda.get_device_capability()[0] == 9 and release > NEWEST:
        raise ConfigurationError(
            f"kernel 'fla' has not been tested with the delta rule and triton {triton.__version__} on Hopper GPUs, where other kernels "
            f"of fla were wrong with triton 3.7.1: use triton {'.'.join(map(str, NEWEST))}, or kernel 'torch'"
        )


def _computed(
    kernel: Callable[..., tuple[Tensor, Tensor]], query: Tensor, key: Tensor, value: Tensor, log_decay: Tensor, state: Tensor | None,
    *more: Tensor,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    n, p = key.shape[-1], value.shape[-1]
    half = torch.is_autocast_enabled("cuda") and torch.get_autocast_dtype("cuda") == torch.bfloat16
    with torch.autocast("cuda", enabled=False):
        vectors = [_padded(x.to(torch.bfloat16 if half else torch.float32)).transpose(1, 2) for x in (query, key, value)]
        decays = _padded(log_decay.float().clamp(min=SMALLEST).expand(*value.shape[:3], n)).transpose(1, 2)
        scalars = [x.float().squeeze(-1).transpose(1, 2) for x in more]
        start = None if state is None else _padded(_padded(state.float()).mT).mT
        output, last = kernel(*vectors, decays, *scalars, scale=1.0, initial_state=start, output_final_state=True)
    return output[..., :p].transpose(1, 2).float(), last[..., :n, :p]


def _padded(x: Tensor) -> Tensor:
    """Pad the channels with zeros to a multiple of `MULTIPLE`."""
    extra = -x.shape[-1] % MULTIPLE
    return F.pad(x, (0, extra)) if extra else x
