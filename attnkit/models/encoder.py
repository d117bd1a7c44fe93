"""The encoder model: token logits, or classes."""

import torch
from torch import Tensor

from attnkit.embedding import Embedding
from attnkit.models.base import Model
from attnkit.models.head import Head, Tie, check_tie
from attnkit.registry import EmbeddingSpec, StackSpec, embeddings, stacks
from attnkit.stack import EncoderStack


class EncoderModel(Model):
    """Embedding, encoder stack and head.

    Args:
        stack: An encoder stack.
        vocab_size: Tokens V.
        num_classes: Classes C of the whole sequence (mean over its real tokens), or None: logits for each token.
        embedding: The embedding.
        tie: `output` shares the embedding's table with the token head, `none` does not.
        pad_id: Fills the rows of a batch.
        bos_id: Starts a sequence.
        eos_id: Ends a sequence, or None.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20, num_classes=3)
        >>> model(torch.randint(20, (2, 5))).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        *,
        stack: StackSpec,
        vocab_size: int,
        num_classes: int | None = None,
        embedding: EmbeddingSpec = "token",
        tie: Tie = "none",
        pad_id: int = 0,
        bos_id: int = 1,
        eos_id: int | None = 2,
    ) -> None:
        super().__init__(pad_id=pad_id, bos_id=bos_id, eos_id=eos_id)
        check_tie(tie, ("none", "output") if num_classes is None else ("none",))
        self.stack: EncoderStack = stacks.build(stack)
        self.embedding: Embedding = embeddings.build(embedding, vocab_size=vocab_size, d_model=self.stack.d_model)
        self.num_classes = num_classes
        self.head = Head(
            d_model=self.stack.d_model,
            outputs=vocab_size if num_classes is None else num_classes,
            tied=self.embedding if tie == "output" else None,
        )

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Encode.

        Args:
            tokens: [B, T].
            key_mask: [B, T] bool, True = real token (default: all).

        Returns:
            [B, T, V], or [B, C] with `num_classes`.
        """
        x = self.stack(self.embedding(tokens), key_mask=key_mask)  # [B, T, D]
        if self.num_classes is not None:
            real = torch.ones_like(tokens, dtype=torch.bool) if key_mask is None else key_mask
            x = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)  # [B, D]
        logits: Tensor = self.head(x)
        return logits
