"""Floating-point operations of a model on a batch, as torch counts them: those of products of matrices."""

import warnings
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import FlopCounterMode

BACKWARD = 2
"""A backward pass has two products for each one of the forward pass."""


def forward_flops(task: Any, batch: Any) -> int:
    """Return the operations of a forward pass of a task's objective through a batch.

    Scores that are no product of matrices, such as the additive one, have cheap operations that are not counted. The CPU's fused kernels
    of attention and of recurrent layers are not counted by torch, so the plain ones are used.
    """
    fused = torch.backends.mkldnn.flags(enabled=False)
    with warnings.catch_warnings(), FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        warnings.filterwarnings("ignore", message="TF32 acceleration on top of oneDNN")  # setting any flag sets all
        with fused:
            task.objective(batch)
    return int(counter.get_total_flops())


def training_flops_per_token(task: LightningModule, batch: Any) -> int | None:
    """Return the operations of training, forward and backward, for each token of a batch that is no padding; None without a batch."""
    if batch is None:
        return None
    batch = tree_map(lambda leaf: leaf.to(task.device) if isinstance(leaf, Tensor) else leaf, batch)
    tokens = sum(int(leaf.count_nonzero()) for leaf in tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dtype == torch.int64)
    return round((1 + BACKWARD) * forward_flops(task, batch) / tokens) if tokens else None
