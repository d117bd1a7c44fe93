# https://arxiv.org/abs/1608.05859
"""Token embeddings."""

import torch
from torch import Tensor, nn

from attnkit.embedding.base import Embedding
from attnkit.registry import embeddings


@embeddings.register("token")
class Token(Embedding):
    r"""One vector for each token of the vocabulary, scaled to unit variance. The model can tie the output projection to it.

    Equation:
        $$x_t = \sqrt{d} \, E_{w_t}, \quad \mathrm{logits} = E h_t \ \text{(tied)}$$

    Paper: Press and Wolf 2017, https://arxiv.org/abs/1608.05859 (tying); Vaswani et al. 2017 (the factor)

    Initialisation: normal with standard deviation d^-1/2, so that tied logits start with unit variance; with `scale`, embeddings do too.

    Args:
        vocab_size: Tokens V.
        d_model: Width D.
        scale: Multiply by the square root of D.

    Raises:
        ValueError: `vocab_size` is not positive.

    Example:
        >>> Token(vocab_size=10, d_model=4)(torch.tensor([[1, 2, 3]])).shape
        torch.Size([1, 3, 4])
    """

    def __init__(self, *, vocab_size: int, d_model: int, scale: bool = True) -> None:
        super().__init__()
        if vocab_size < 1:
            raise ValueError(f"vocab_size must be positive, but is {vocab_size}")
        self.factor = d_model**0.5 if scale else 1.0
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the table from a normal distribution with standard deviation d_model^-1/2."""
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, tokens: Tensor) -> Tensor:
        """Embed `tokens` [B, T], giving [B, T, D]."""
        return nn.functional.embedding(tokens, self.weight) * self.factor
