# https://arxiv.org/abs/2412.19437
"""Sequential modules for further tokens."""

import torch
from torch import Tensor, nn
from typing_extensions import override

from attnkit.linear import Linear
from attnkit.multi_token.base import MultiToken, later
from attnkit.registry import NormSpec, StackSpec, multi_tokens, norms


@multi_tokens.register("sequential")
class Sequential(MultiToken):
    r"""Predicts each further token from the vectors that predict the previous one, and from the embedding of that previous token.

    Equation:
        $$h^1 = h, \quad h_t^i = f_i(M_i [\mathrm{norm}(h_t^{i-1}); \mathrm{norm}(E x_{t+i-1})]), \quad
        p(x_{t+i} \mid x_{<t+i}) = \mathrm{softmax}(\mathrm{head}(h_t^i)), \quad
        L = L_1 + \lambda \sum_{i=2}^{n} L_i$$
        where h is the stack's output, E the embedding, $f_i$ a layer, and $L_i$ the negative log-likelihood of the tokens at offset i

    Paper: DeepSeek-AI 2024, https://arxiv.org/abs/2412.19437

    These are the modules of DeepSeek-V3, which predicts the second token with a weight of 0.3, later 0.1.

    Args:
        norm: The stack's norm.
        weight: Factor lambda of the loss of each further token (in the paper: divided by n - 1).

    Example:
        >>> further = Sequential(stack={"name": "decoder", "d_model": 8, "num_layers": 2, "num_heads": 2})
        >>> x = torch.randn(1, 5, 8)
        >>> [y.shape for y in further(x, x)]
        [torch.Size([1, 5, 8])]
    """

    def __init__(self, *, stack: StackSpec, norm: NormSpec = "layer_norm", num_tokens: int = 2, weight: float = 0.3) -> None:
        super().__init__(stack=stack, num_tokens=num_tokens, weight=weight)
        d_model: int = self.stacks[0].d_model  # type: ignore[assignment]
        self.norms = nn.ModuleList(norms.build(norm, d_model=d_model) for _ in self.stacks)
        self.embedding_norms = nn.ModuleList(norms.build(norm, d_model=d_model) for _ in self.stacks)
        self.joins = nn.ModuleList(Linear(2 * d_model, d_model, bias=False) for _ in self.stacks)

    @override
    def forward(self, x: Tensor, embedded: Tensor, *, key_mask: Tensor | None = None, documents: Tensor | None = None) -> list[Tensor]:
        found: list[Tensor] = []
        modules = zip(self.norms, self.embedding_norms, self.joins, self.stacks, strict=True)
        for offset, (norm, embedding_norm, join, stack) in enumerate(modules, start=1):
            x = join(torch.cat([norm(x), embedding_norm(later(embedded, offset))], -1))  # [B, T, D]
            x = stack(x, key_mask=key_mask, documents=documents)[0]
            found.append(x)
        return found
