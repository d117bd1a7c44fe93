"""The classifier and regressor, with outputs for a whole sequence or image, or for each token."""

from typing import Unpack

from torch import Tensor

from attnkit.head import Head
from attnkit.models.base import Model, SpecialTokens
from attnkit.models.inputs import input_embedding
from attnkit.models.pooling import Pooler, Pooling, pool
from attnkit.registry import ConfigurationError, EmbeddingSpec, StackSpec, embeddings, heads, stacks
from attnkit.stack import DecoderStack, EncoderStack


class ClassifierModel(Model):
    """Embedding, encoder or decoder stack, pooling and head; the arguments are those of `attnkit.compose`.

    Raises:
        ConfigurationError: The pooling does not work with the stack or the embedding, or the size that the embedding needs is missing.

    Example:
        >>> import torch
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20, num_classes=3)
        >>> model(torch.randint(20, (2, 5))).shape
        torch.Size([2, 3])
    """

    def __init__(
        self,
        *,
        stack: StackSpec,
        num_classes: int,
        vocab_size: int | None = None,
        image_shape: list[int] | None = None,
        pooling: Pooling = "mean",
        pooler: bool = False,
        embedding: EmbeddingSpec,
        **special_tokens: Unpack[SpecialTokens],
    ) -> None:
        super().__init__(**special_tokens)
        self.stack: EncoderStack | DecoderStack = stacks.build(stack)
        d_model = self.stack.d_model
        self.embedding = input_embedding(
            embedding, d_model=d_model, vocab_size=vocab_size, shape=image_shape, arguments=("vocab_size", "image_shape")
        )
        if pooling == "class_token" and isinstance(self.stack, DecoderStack):
            raise ConfigurationError(
                f"pooling 'class_token' takes the first token, which sees no other in the stack {stacks.resolve(stack).name!r}: "
                f"use pooling last or mean, or an encoder"
            )
        if pooling == "class_token" and not (self.embedding.reads == "tokens" or self.embedding.has_class_token):
            raise ConfigurationError(
                f"embedding {embeddings.resolve(embedding).name!r} has no class token here: use pooling mean, or give the embedding one"
            )
        self.pooling: Pooling = pooling
        self.pooler = Pooler(d_model=d_model) if pooler else None
        self.head: Head = heads.build({"name": "linear", "bias": True}, d_model=d_model, outputs=num_classes)

    def forward(self, inputs: Tensor, key_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Return the logits of the classes.

        Args:
            inputs: Tokens [B, T] or images [B, C, H, W], depending on the embedding.
            key_mask: [B, T] bool, True = real token (default: all).
            segments: [B, T], the segment of each token, for an embedding with segments (default: the first).

        Returns:
            [B, C]; with pooling `none`, [B, T, C].
        """
        x = self.stack(self.embedding(inputs, segments), key_mask=key_mask)  # [B, T, D], and a decoder's state
        pooled = pool(x[0] if isinstance(x, tuple) else x, key_mask, self.pooling)
        logits: Tensor = self.head(pooled if self.pooler is None else self.pooler(pooled))
        return logits
