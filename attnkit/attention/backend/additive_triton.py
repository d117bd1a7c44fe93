# https://arxiv.org/abs/1409.0473
"""Additive attention by products of exponentials, in a Triton kernel."""

import os
from importlib.util import find_spec

import torch
from torch import Tensor

from attnkit.attention.additive import Additive
from attnkit.attention.backend.additive_eager import AdditiveEager
from attnkit.attention.backend.additive_launch import attend
from attnkit.attention.backend.base import UNORDERED, Inputs
from attnkit.attention.backend.online import arguments
from attnkit.attention.base import Attention
from attnkit.dropout import kept_scale
from attnkit.registry import backends


@backends.register("additive_triton")
class AdditiveTriton(AdditiveEager):
    r"""`additive_eager` in Triton kernels, on a GPU.

    The kernels compute in fp32, and results are exact up to rounding for inputs of any magnitude. Dropout drops the same weights as the
    reference. The order of gradient sums varies, so repeated runs differ by rounding; with torch.use_deterministic_algorithms (Lightning's
    `deterministic: true`), `auto` takes `additive_eager`. Second derivatives need `reference`. Tests interpret the kernels on a CPU, with
    TRITON_INTERPRET=1 set before triton is imported.

    Equation:
        $$\tanh(q + k) = 1 - \frac{2}{1 + e^{2q} e^{2k}}$$

    Paper: Bahdanau et al. 2015, https://arxiv.org/abs/1409.0473 (the score)

    Example:
        >>> import attnkit
        >>> attnkit.attentions.build("additive", head_dim=4).check_backend("additive_triton")  # whether a device has it shows at a call
    """

    rank = 17

    def __init__(self) -> None:
        self.has_triton = find_spec("triton") is not None
        self.interprets = os.environ.get("TRITON_INTERPRET") == "1"

    def refuses_device(self, device: torch.device) -> str | None:
        """Return a reason if triton is missing, or the device is not a CUDA GPU."""
        if not self.has_triton:
            return "triton is not installed (pip install 'attnkit[triton]')"
        return None if self.interprets or device.type == "cuda" else f"its kernels are for CUDA, and the inputs are on {device.type!r}"

    def refuses_inputs(self, attention: Attention, inputs: Inputs) -> str | None:
        """Return a reason if every weight is dropped, the inputs are in float64, or sums must have a fixed order."""
        if inputs.query.dtype == torch.float64 and not self.interprets:
            return "it computes in fp32, and the inputs are in float64"
        if torch.are_deterministic_algorithms_enabled():
            return UNORDERED
        return super().refuses_inputs(attention, inputs)

    def suits(self, attention: Attention, inputs: Inputs) -> bool:
        """Return whether there is enough work on a GPU."""
        return inputs.query.is_cuda and super().suits(attention, inputs)

    def compute(self, attention: Attention, inputs: Inputs) -> Tensor:
        """Return the attention [B, H, Q, Dv]."""
        assert isinstance(attention, Additive)
        operands = arguments(attention, inputs, scale=attention.factor, weight=attention.score_weight)
        output: Tensor = attend(*operands)[0]
        return output if inputs.dropout == 0 else output * kept_scale(inputs.dropout)
