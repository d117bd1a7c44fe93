# https://arxiv.org/abs/1310.4546
"""Two vectors for each word: one for reading it, and one for predicting it."""

import torch
from torch import Tensor, nn

from attnkit.embedding import Embedding
from attnkit.embedding.base import require_one_segment
from attnkit.registry import EmbeddingSpec, embeddings


class WordVectorModel(nn.Module):
    """The two tables of skip-gram and CBOW, [V, D]. Training them yields the embedding.

    Initialisation: as in word2vec, the embedding is uniform in (-0.5, 0.5) / D (a pretrained one keeps its own), the outputs are zero.

    Example:
        >>> model = WordVectorModel(vocab_size=10, d_model=4, embedding="token")
        >>> model(torch.zeros(2, 3, 4), torch.ones(2, 3, 5, dtype=torch.int64)).shape
        torch.Size([2, 3, 5])
    """

    def __init__(self, *, vocab_size: int, d_model: int, embedding: EmbeddingSpec) -> None:
        super().__init__()
        self.embedding: Embedding = embeddings.build(embedding, vocab_size=vocab_size, d_model=d_model)
        require_one_segment(self.embedding)
        self.output = nn.Embedding(vocab_size, d_model)
        nn.init.zeros_(self.output.weight)
        if self.embedding.weight is not None:
            nn.init.uniform_(self.embedding.weight, -0.5 / d_model, 0.5 / d_model)

    def forward(self, x: Tensor, words: Tensor) -> Tensor:
        """Return the logits [B, T, A] of `words` [B, T, A] given vectors `x` [B, T, D]."""
        logits: Tensor = torch.einsum("btd, btad -> bta", x, self.output(words))
        return logits
