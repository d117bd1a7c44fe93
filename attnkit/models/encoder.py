"""The encoder model: logits for each token."""

from typing import Unpack

from torch import Tensor

from attnkit.embedding import Embedding
from attnkit.head import Head
from attnkit.masks import check_bool
from attnkit.models.base import Model, SpecialTokens, Tie, check_tie, norm_of
from attnkit.registry import EmbeddingSpec, HeadSpec, StackSpec, embeddings, heads, stacks
from attnkit.stack import EncoderStack


class EncoderModel(Model):
    """Embedding, encoder stack and head; the arguments are those of `attnkit.compose`. For classes of a sequence, see `ClassifierModel`.

    Example:
        >>> import torch
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20)
        >>> model(torch.randint(20, (2, 5))).shape
        torch.Size([2, 5, 20])
    """

    def __init__(
        self,
        *,
        stack: StackSpec,
        vocab_size: int,
        embedding: EmbeddingSpec,
        tie: Tie = "none",
        head: HeadSpec = "linear",
        **special_tokens: Unpack[SpecialTokens],
    ) -> None:
        super().__init__(**special_tokens)
        check_tie(tie, ("none", "output"))
        self.stack: EncoderStack = stacks.build(stack)
        d_model = self.stack.d_model
        self.embedding: Embedding = embeddings.build(embedding, vocab_size=vocab_size, d_model=d_model)
        tied = self.embedding if tie == "output" else None
        self.head: Head = heads.build(head, d_model=d_model, outputs=vocab_size, tied=tied, norm=norm_of(stack))

    def forward(
        self, tokens: Tensor, key_mask: Tensor | None = None, segments: Tensor | None = None, chosen: Tensor | None = None
    ) -> Tensor:
        """Return the logits of each token.

        Args:
            tokens: [B, T].
            key_mask: [B, T] bool, True = real token (default: all).
            segments: [B, T], the segment of each token, for an embedding with segments (default: the first).
            chosen: [B, T] bool, the N tokens whose logits to return (default: all).

        Returns:
            [B, T, V], or [N, V] with `chosen`.
        """
        if chosen is not None:
            check_bool(chosen, "chosen", tokens.shape)
        x = self.stack(self.embedding(tokens, segments), key_mask=key_mask)  # [B, T, D]
        x = x if chosen is None else x[chosen]  # [N, D]
        logits: Tensor = self.head(x)
        return logits
