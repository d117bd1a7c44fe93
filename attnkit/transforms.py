"""Detects what tracks tensors besides the backward pass: tracing, torch.func (grad, vmap, jvp, ...) and forward-mode differentiation.

Custom operators and autograd functions do not support the last two: torch.func rejects them, and forward mode treats their results as
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
    """Return whether torch.func or forward mode may track the tensors, so that only torch's own operators give right results."""
    return torch._C._are_functorch_transforms_active() or in_forward_mode()


def traced() -> bool:
    """Return whether a graph is being traced for reuse, as by torch.export, so that control flow must not depend on tensor values."""
    if torch.compiler.is_dynamo_compiling():  # torch 2.11 breaks the graph at the rest, and assumes that `is_exporting()` is true
        return torch.compiler._is_exporting_flag
    return torch.compiler.is_exporting() or get_proxy_mode() is not None or torch._C._get_tracing_state() is not None


def observed() -> bool:
    """Return whether a dispatch mode tracks each operation, such as to count FLOPs; torch then runs compiled functions uncompiled."""
    return not torch.compiler.is_compiling() and _get_current_dispatch_mode() is not None
