# https://arxiv.org/abs/2405.21060
"""The root-mean-square norm of a recurrence's output, with a gate."""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnkit.feed_forward.base import make_activation
from attnkit.mixer.recurrence.tokens import in_full_precision
from attnkit.registry import require_at_least

Gate = Literal["after", "before", "none"]


class GatedNorm(nn.Module):
    r"""Root-mean-square or layer normalisation of groups of channels, in fp32, with a gate after or before it.

    Equation:
        $$\mathrm{after:}\ y = w \odot \mathrm{norm}(x) \odot \phi(z), \qquad \mathrm{before:}\ y = w \odot \mathrm{norm}(x \odot \phi(z))$$

    Paper: Sun et al. 2023, https://arxiv.org/abs/2307.08621 (after); Dao and Gu 2024, https://arxiv.org/abs/2405.21060 (before)

    `group` channels at a time are normalised together; `centered` subtracts their mean, as a layer norm does. There is a learned scale $w$
    for each channel, one for each channel of a group (shared by all groups), or none, depending on the number of `scales`. With the gate
    `none`, $z$ is not read. The activation is $\phi$.

    Example:
        >>> norm = GatedNorm(channels=4, group=2, eps=0.0, scales=2, gate="none")
        >>> norm(torch.tensor([3.0, 3.0, 0.5, 0.5])).detach()
        tensor([1., 1., 1., 1.])
    """

    def __init__(
        self,
        *,
        channels: int,
        group: int,
        eps: float,
        scales: int,
        gate: Gate = "after",
        activation: str = "silu",
        centered: bool = False,
    ) -> None:
        super().__init__()
        require_at_least(0, eps=eps)
        if channels % group:
            raise ValueError(f"a norm over groups of {group} channels does not fit {channels} channels")
        self.group, self.eps, self.gate = group, eps, gate
        self.centered = centered
        self.weight = nn.Parameter(torch.empty(scales)) if scales else None
        self.activation = make_activation(activation)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the scales to one."""
        if self.weight is not None:
            nn.init.ones_(self.weight)

    def forward(self, x: Tensor, z: Tensor | None = None) -> Tensor:
        """Normalise `x` [..., channels] with the gate's logits `z` [..., channels]; the result is in fp32 or float64."""
        with torch.autocast(x.device.type, enabled=False):
            (x,) = in_full_precision(x)
            gate = None if z is None else self.activation(*in_full_precision(z))
            if gate is not None and self.gate == "before":
                x = x * gate
            normalize = F.layer_norm if self.centered else F.rms_norm
            y = normalize(x.reshape(*x.shape[:-1], -1, self.group), (self.group,), eps=self.eps)
            if self.weight is not None:
                y = y * self.weight.to(y.dtype).view(-1, self.group)
            y = y.flatten(-2)
            return y * gate if gate is not None and self.gate == "after" else y
