# https://arxiv.org/abs/2104.09864
"""Rotary positions."""

import torch
from torch import Tensor

from attnkit.position.base import Position, Rotation, frequencies
from attnkit.position.scaling import Scaling
from attnkit.registry import RotaryScalingSpec, positions, rotary_scalings


@positions.register("rotary")
class Rotary(Position):
    r"""Rotary positions: queries and keys are rotated by angles proportional to their position.

    The inner product of two rotated vectors depends only on their distance, so the attention score must be an inner product. The rotation
    follows the score's own projections, directly before the inner product (with `query_key_norm_after_rotation`, it precedes them).

    Equation:
        $$(q_i, q_{i+r/2})_t' = R(t \, b^{-2i/r}) \, (q_i, q_{i+r/2})_t, \quad r = f d_\mathrm{head}$$

    Paper: Su et al. 2021, https://arxiv.org/abs/2104.09864

    Args:
        head_dim: Width of a head.
        base: b; a larger base rotates more slowly.
        fraction: f, the fraction of the channels that is rotated (GPT-NeoX: 0.25).
        interleaved: Whether to pair neighbouring channels, as in the paper and GPT-J, rather than the two halves, as in GPT-NeoX and Llama.
        scaling: Changes the frequencies for sequences longer than those of pretraining (default: none).

    Raises:
        ValueError: The rotated width is odd or zero, `base` is at most 1, `fraction` is outside (0, 1], or the scaling does not fit the
            width or the base.

    Example:
        >>> import torch
        >>> rotation = Rotary(head_dim=2).rotation(torch.tensor([[0, 1]]))
        >>> rotation.query(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))
        tensor([[[[1.0000, 0.0000],
                  [0.5403, 0.8415]]]])
    """

    needs_inner_product = True

    def __init__(
        self,
        *,
        head_dim: int,
        base: float = 10_000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
        scaling: RotaryScalingSpec | None = None,
    ) -> None:
        super().__init__()
        if not base > 1:
            raise ValueError(f"base must exceed 1, but is {base}")
        if not 0 < fraction <= 1:
            raise ValueError(f"fraction must be in (0, 1], but is {fraction}")
        self.width = int(head_dim * fraction)
        if self.width < 2 or self.width % 2:
            raise ValueError(f"rotary positions rotate pairs of channels, but head_dim {head_dim} * fraction {fraction} gives {self.width}")
        self.base, self.interleaved = base, interleaved
        self.scaling: Scaling | None = None if scaling is None else rotary_scalings.build(scaling)
        self.frequencies(torch.device("cpu"))  # raises if the scaling does not fit

    def frequencies(self, device: torch.device) -> Tensor:
        """Return the angular frequencies [width / 2] in float64."""
        frequencies_of = frequencies if self.scaling is None else self.scaling.frequencies
        return frequencies_of(self.width, self.base, device)

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the rotation at these positions, [B or 1, 1, T, width / 2]."""
        angles = (positions[..., None] * self.frequencies(positions.device))[:, None]
        factor = 1.0 if self.scaling is None else self.scaling.attention_factor
        return Rotation((angles.cos() * factor).to(self.dtype), (angles.sin() * factor).to(self.dtype), self.interleaved)
