# https://arxiv.org/abs/1507.06947
"""Embeddings of audio frames."""

from typing import ClassVar

from einops import rearrange
from torch import Tensor, nn

from attnkit.embedding.base import Embedding, Inputs, refuse_segments
from attnkit.linear import Linear
from attnkit.registry import ConfigurationError, embeddings, require_at_least


@embeddings.register("frames")
class Frames(Embedding):
    r"""Stacked frames: k consecutive audio frames become one vector, which makes the sequence k times shorter.

    Equation:
        $$x_t = W \, [f_{kt}; f_{kt+1}; \ldots; f_{kt+k-1}] + b$$

    Paper: Sak et al. 2015, https://arxiv.org/abs/1507.06947 (section 3.1)

    Zero frames complete the last group of k, as in padding; for normalised features, zero is the mean. A vector is real if its first frame
    is. Positions belong to the stack.

    Args:
        d_model: Width D.
        num_features: Number of features in a frame F, such as the channels of a mel spectrogram.
        stacking: Number of frames k in a vector (with frames of 10 ms: 4 for 40 ms).
        bias: Whether to learn b.

    Raises:
        ConfigurationError: `num_features` is missing (the data are not frames), or a number is below 1.

    Example:
        >>> import torch
        >>> frames = Frames(d_model=8, num_features=40, stacking=4)
        >>> frames(torch.rand(2, 90, 40)).shape
        torch.Size([2, 23, 8])
        >>> frames.mask(torch.arange(90).expand(1, -1) < 41).sum()
        tensor(11)
    """

    reads: ClassVar[Inputs] = "frames"

    def __init__(self, *, d_model: int, num_features: int | None = None, stacking: int = 4, bias: bool = True) -> None:
        super().__init__()
        if num_features is None:
            raise ConfigurationError("embedding 'frames' reads frames, but num_features is missing; for text, use embedding 'token'")
        require_at_least(1, stacking=stacking, num_features=num_features)
        self.num_features, self.stacking = num_features, stacking
        self.projection = Linear(stacking * num_features, d_model, bias=bias)

    def forward(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embed frames [B, S, F] as [B, T, D], where T = S / k, rounded up."""
        refuse_segments(segments)
        if inputs.shape[2] != self.num_features:
            raise ConfigurationError(f"the model reads frames of {self.num_features} features, but these have {inputs.shape[2]}")
        missing = -inputs.shape[1] % self.stacking
        x: Tensor = self.projection(rearrange(nn.functional.pad(inputs, (0, 0, 0, missing)), "b (t k) f -> b t (k f)", k=self.stacking))
        return x
