"""What follows tensors besides the backward pass: tracing, torch.func (grad, vmap, jvp, ...), and differentiation in forward mode.

Custom operators and autograd functions do not know the last two: torch.func refuses them, and forward mode takes their results for
constants.
"""

import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.utils._python_dispatch import _get_current_dispatch_mode


def in_forward_mode() -> bool:
    """Return whether tensors may carry tangents, as in `torch.func.jvp`."""
    return forward_ad._current_level >= 0


def transformed() -> bool:
    """Return whether torch.func or forward mode may follow the tensors, so that only torch's own operators give right results."""
    return torch._C._are_functorch_transforms_active() or in_forward_mode()


def traced() -> bool:
    """Return whether a graph is recorded for other inputs too, as by torch.export: no number in a tensor may decide what is computed."""
    if torch.compiler.is_dynamo_compiling():  # torch 2.11 breaks its graph at the rest, and takes `is_exporting()` for true
        return torch.compiler._is_exporting_flag
    return torch.compiler.is_exporting() or get_proxy_mode() is not None or torch._C._get_tracing_state() is not None


def observed() -> bool:
    """Return whether a dispatch mode follows each operation, as to count FLOPs: torch then leaves compiled functions uncompiled."""
    return not torch.compiler.is_compiling() and _get_current_dispatch_mode() is not None
