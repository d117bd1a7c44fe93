# https://arxiv.org/abs/2212.10554
"""xPos: rotary positions whose inner products decay with distance."""

from dataclasses import replace

import torch
from torch import Tensor

from attnkit.position.base import Rotation
from attnkit.position.rotary import Rotary
from attnkit.registry import positions


@positions.register("xpos")
class XPos(Rotary):
    r"""xPos: rotary positions that also scale queries and keys, so that inner products decay with distance; for causal stacks only.

    Queries are multiplied and keys divided by zeta raised to the position, so only the distance counts, and keys can be cached unchanged.
    Exponents count from the middle of `max_length`, which keeps them small; longer sequences raise an error. Keys without a position
    (`memory_keys`) would not cancel the queries' factors, so they are refused. For fp16, keep `max_length` at most 8 times `scale_base`:
    keys are then scaled by up to 150.

    Equation:
        $$\langle q_t', k_u' \rangle = \sum_i \zeta_i^{(t-u)/B} \, \langle R(t \omega_i) q_i, R(u \omega_i) k_i \rangle, \quad
        \zeta_i = \frac{2i/d_\mathrm{head} + 0.4}{1.4}$$

    Paper: Sun et al. 2023, https://arxiv.org/abs/2212.10554

    Args:
        base: b of the frequencies omega, as in `rotary`.
        interleaved: Whether to pair neighbouring channels, as in the paper, rather than the two halves.
        scale_base: B, the distance over which a pair decays by zeta.
        max_length: Number of positions.

    Raises:
        ValueError: `head_dim` is odd, `max_length` or `scale_base` is not positive, or `max_length` exceeds 64 times `scale_base`, which
            would exceed the range of fp32.

    Example:
        >>> rotation = XPos(head_dim=2, scale_base=2.0, max_length=8).rotation(torch.tensor([[0, 4, 6]]))
        >>> x = torch.tensor([1.0, 0.0]).expand(1, 1, 3, 2)
        >>> rotation.query(x).norm(dim=-1), rotation.key(x).norm(dim=-1)
        (tensor([[[12.2500,  1.0000,  0.2857]]]), tensor([[[0.0816, 1.0000, 3.5000]]]))
    """

    needs_causal = True
    scales_queries = True

    def __init__(
        self, *, head_dim: int, base: float = 10_000.0, interleaved: bool = False, scale_base: float = 512.0, max_length: int = 4096
    ) -> None:
        super().__init__(head_dim=head_dim, base=base, interleaved=interleaved)
        if scale_base <= 0 or max_length < 1:
            raise ValueError(f"scale_base ({scale_base}) and max_length ({max_length}) must be positive")
        if max_length > 64 * scale_base:
            raise ValueError(f"max_length ({max_length}) must not exceed 64 * scale_base ({64 * scale_base:g}); raise scale_base")
        self.scale_base, self.max_length = scale_base, max_length

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the rotation and the scale at these positions, [B or 1, 1, T, head_dim / 2]."""
        zeta = (torch.arange(0, self.width, 2, dtype=torch.float64, device=positions.device) / self.width + 0.4) / 1.4
        assert self.max_length is not None
        power = (positions - self.max_length // 2).double()[:, None, :, None] / self.scale_base
        return replace(super().rotation(positions), scale=(zeta**power).to(self.dtype))
