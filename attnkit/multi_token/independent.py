# https://arxiv.org/abs/2404.19737
"""Independent layers for further tokens."""

from torch import Tensor
from typing_extensions import override

from attnkit.multi_token.base import MultiToken
from attnkit.registry import StackSpec, multi_tokens


@multi_tokens.register("independent")
class Independent(MultiToken):
    r"""Predicts each further token from the stack's output, with a separate layer and the shared head.

    Equation:
        $$p(x_{t+i} \mid x_{\le t}) = \mathrm{softmax}(\mathrm{head}(f_i(h_t))), \quad
        L = \sum_t -\log p(x_{t+1} \mid x_{\le t}) - \lambda \sum_{i=2}^{n} \log p(x_{t+i} \mid x_{\le t})$$
        where h is the stack's output, $f_1$ is the identity, and $f_i$ is a layer

    Paper: Gloeckle et al. 2024, https://arxiv.org/abs/2404.19737

    In the paper, $f_1$ is a layer too, the last one of a stack of equal depth, and the others read the input of that layer; here they read
    the stack's output, after its final norm.

    Args:
        weight: Factor lambda of the loss of each further token.

    Example:
        >>> import torch
        >>> further = Independent(stack={"name": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2}, num_tokens=3)
        >>> x = torch.randn(1, 5, 8)
        >>> [y.shape for y in further(x, x)]
        [torch.Size([1, 5, 8]), torch.Size([1, 5, 8])]
    """

    def __init__(self, *, stack: StackSpec, num_tokens: int = 4, weight: float = 1.0) -> None:
        super().__init__(stack=stack, num_tokens=num_tokens, weight=weight)

    @override
    def forward(self, x: Tensor, embedded: Tensor, *, key_mask: Tensor | None = None, documents: Tensor | None = None) -> list[Tensor]:
        return [stack(x, key_mask=key_mask, documents=documents)[0] for stack in self.stacks]
