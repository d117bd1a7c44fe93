# https://arxiv.org/abs/2010.11929
"""Patch embeddings of images."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from einops import rearrange
from torch import Tensor, nn

from attnkit.embedding.base import Embedding, Inputs, refuse_segments
from attnkit.linear import Linear
from attnkit.registry import ConfigurationError, check_positive, embeddings, require_at_least


@embeddings.register("patch")
class Patch(Embedding):
    r"""Patch embedding (ViT): cuts images into square patches, and embeds each patch by the same linear map.

    Equation:
        $$x_0 = c, \quad x_t = W \, \mathrm{vec}(\mathrm{patch}_t) + b, \quad t = 1 \ldots \frac{H}{p} \cdot \frac{W}{p}$$

    Paper: Dosovitskiy et al. 2021, https://arxiv.org/abs/2010.11929; Darcet et al. 2024, https://arxiv.org/abs/2309.16588 (registers)

    Patches are ordered row by row, and the elements of a patch channel by channel, so the map equals a convolution with stride p and the
    same weight. Positions belong to the stack: `position: {name: learned, max_length: N}`, where N counts the patches, the class token and
    the registers.

    Initialisation: the map as in all linear maps; the class token is zero, as in the paper's code; registers are drawn from a normal
    distribution with standard deviation 0.02, as in DeiT. Neither has weight decay.

    Args:
        d_model: Width D.
        image_shape: Channels, height and width of the images [C, H, W].
        patch_size: Height and width p of a patch, in pixels.
        class_token: Whether to prepend a learned vector, whose output can represent the whole image.
        registers: Number of additional learned vectors between class token and patches (DINOv2: 4; DeiT's distillation token is one).
        bias: Whether to learn b (CLIP does not).

    Raises:
        ConfigurationError: `image_shape` is missing (the data are not images), or `patch_size` does not divide the height and width.
        ValueError: `patch_size` is not positive, or `registers` is negative.

    Example:
        >>> Patch(d_model=8, image_shape=[1, 28, 28], patch_size=4)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 50, 8])
    """

    reads: ClassVar[Inputs] = "image"
    undecayed = ("registers",)

    def __init__(
        self,
        *,
        d_model: int,
        image_shape: Sequence[int] | None = None,
        patch_size: int = 16,
        class_token: bool = True,
        registers: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_positive(patch_size=patch_size)
        require_at_least(0, registers=registers)
        if image_shape is None:
            raise ConfigurationError("embedding 'patch' reads images, but image_shape is missing; for text, use embedding 'token'")
        channels, height, width = image_shape
        if height % patch_size or width % patch_size:
            fits = [p for p in range(1, min(height, width) + 1) if height % p == 0 and width % p == 0]
            raise ConfigurationError(
                f"patch_size {patch_size} does not divide images of {height} x {width}; use one of {', '.join(map(str, fits))}, "
                f"or resize the images"
            )
        self.image_shape, self.patch_size, self.has_class_token = (channels, height, width), patch_size, class_token
        self.projection = Linear(channels * patch_size**2, d_model, bias=bias)
        self.class_token = nn.Parameter(torch.empty(d_model)) if class_token else None
        self.registers = nn.Parameter(torch.empty(registers, d_model)) if registers else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the class token to zero, and draw the registers. (The map initialises itself.)"""
        if self.class_token is not None:
            nn.init.zeros_(self.class_token)
        if self.registers is not None:
            nn.init.normal_(self.registers, std=0.02)

    def forward(self, inputs: Tensor, segments: Tensor | None = None) -> Tensor:
        """Embed images [B, C, H, W] as [B, T, D], where T = (H / p) (W / p), plus the class token and the registers."""
        refuse_segments(segments)
        if inputs.shape[1:] != self.image_shape:
            raise ConfigurationError(f"the model reads images of shape {list(self.image_shape)}, but these have {list(inputs.shape[1:])}")
        p = self.patch_size
        x: Tensor = self.projection(rearrange(inputs, "b c (h p) (w q) -> b (h w) (c p q)", p=p, q=p))  # [B, T, D]
        first = [None if self.class_token is None else self.class_token[None], self.registers]
        return torch.cat([*(tokens.to(x.dtype).expand(len(x), -1, -1) for tokens in first if tokens is not None), x], 1)
