"""The encoder-decoder model, which predicts a target from a source."""

from typing import Unpack

import torch
from torch import Tensor, nn

from attnkit.decoding import Start
from attnkit.embedding import Embedding
from attnkit.embedding.base import require_one_segment
from attnkit.masks import check_bool
from attnkit.models.base import GeneratingModel, SpecialTokens, Tie, check_tie, norm_of
from attnkit.models.inputs import input_embedding
from attnkit.registry import ConfigurationError, EmbeddingSpec, HeadSpec, StackSpec, embeddings, heads, stacks
from attnkit.reports import reporters
from attnkit.stack import EncoderDecoderStack
from attnkit.state import State


class EncoderDecoderModel(GeneratingModel):
    """Embeddings, encoder-decoder stack and head; the arguments are those of `attnkit.compose`.

    Attributes:
        reports: Whether layers of the stack report (`attnkit.reports`), as experts do.

    Raises:
        ConfigurationError: `tie` is `inputs` or `all`, and the vocabularies have different sizes or the source has its own embedding; or
            the size that the source embedding needs is missing.

    Example:
        >>> import torch
        >>> import attnkit
        >>> model = attnkit.compose(stack="encoder_decoder", d_model=16, num_layers=1, num_heads=2, src_vocab_size=20, tgt_vocab_size=30)
        >>> src, tgt = torch.randint(3, 20, (2, 7)), torch.randint(3, 30, (2, 5))
        >>> model(src, tgt, src_mask=src != 0).shape
        torch.Size([2, 5, 30])
        >>> captioner = attnkit.compose(stack="encoder_decoder", d_model=16, num_layers=1, num_heads=2, src_shape=[1, 28, 28],
        ...     src_embedding={"name": "patch", "patch_size": 7}, tgt_vocab_size=30)
        >>> captioner.generate(torch.rand(2, 1, 28, 28), max_length=5).shape[0]
        2
    """

    def __init__(
        self,
        *,
        stack: StackSpec,
        tgt_vocab_size: int,
        src_vocab_size: int | None = None,
        src_shape: list[int] | None = None,
        embedding: EmbeddingSpec,
        src_embedding: EmbeddingSpec | None = None,
        tie: Tie = "none",
        head: HeadSpec = "linear",
        **special_tokens: Unpack[SpecialTokens],
    ) -> None:
        super().__init__(**special_tokens)
        check_tie(tie, ("none", "output", "inputs", "all"))
        is_shared = tie in ("inputs", "all")
        if is_shared and src_embedding is not None:
            raise ConfigurationError(f"tie {tie!r} shares one embedding between source and target: use tie 'output', or no src_embedding")
        if is_shared and src_vocab_size != tgt_vocab_size:
            raise ConfigurationError(
                f"tie {tie!r} shares one table between source and target, but the vocabularies have {src_vocab_size} and "
                f"{tgt_vocab_size} tokens; use tie 'output', or one tokenizer for both"
            )
        self.stack: EncoderDecoderStack = stacks.build(stack)
        d_model = self.stack.d_model
        tgt: Embedding = embeddings.build(embedding, vocab_size=tgt_vocab_size, d_model=d_model)
        require_one_segment(tgt)
        self.embeddings = nn.ModuleDict({"shared": tgt} if is_shared else {"tgt": tgt})
        if not is_shared:
            self.embeddings["src"] = src = input_embedding(
                embedding if src_embedding is None else src_embedding,
                d_model=d_model,
                vocab_size=src_vocab_size,
                shape=src_shape,
                arguments=("src_vocab_size", "src_shape"),
            )
            require_one_segment(src)
        self.reports = bool(reporters(self.stack))
        tied = tgt if tie in ("output", "all") else None
        self.head = heads.build(head, d_model=d_model, outputs=tgt_vocab_size, tied=tied, norm=norm_of(stack))

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None, tgt_mask: Tensor | None = None) -> Tensor:
        """Score a target, each token given those before it.

        Args:
            src: Tokens [B, S], images [B, C, H, W] or frames [B, S, F], depending on the source embedding.
            tgt: [B, T], starting with `bos_id`.
            src_mask: [B, S] bool, True = real token or frame (default: all).
            tgt_mask: [B, T] bool, True = real token (default: all). Padding on the right needs no mask, since no real token attends to it,
                except with `reports`: experts would count it in their statistics and losses.

        Returns:
            The logits [B, T, V] of the token after each token.
        """
        if tgt_mask is not None:
            check_bool(tgt_mask, "tgt_mask", tgt.shape)
        x, _ = self.stack.decode(self._embedding("tgt")(tgt), self.encode(src, src_mask), key_mask=tgt_mask)
        logits: Tensor = self.head(x)
        return logits

    def encode(self, src: Tensor, src_mask: Tensor | None = None) -> State:
        """Read the source and return the state before the first target token."""
        embedding = self.source_embedding
        if src_mask is not None and embedding.reads != "image":
            check_bool(src_mask, "src_mask", src.shape[:2])
        return self.stack.encode(embedding(src), src_mask=None if src_mask is None else embedding.mask(src_mask))

    @property
    def source_embedding(self) -> Embedding:
        """The embedding of the source."""
        return self._embedding("src")

    def step(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Return the logits [B, V] of the token after `tokens` [B, T], which follow `state`, and the state after them."""
        x, state = self.stack.decode(self._embedding("tgt")(tokens), state)
        return self.head(x[:, -1]), state

    def begin(self, inputs: Tensor, mask: Tensor | None = None) -> Start:
        """Return the start of generation from a source; see `generate`."""
        start = torch.full((len(inputs), 1), self.bos_id, device=inputs.device)
        return Start(start, self.encode(inputs, mask))

    def _embedding(self, side: str) -> Embedding:
        embedding = self.embeddings[side if side in self.embeddings else "shared"]
        assert isinstance(embedding, Embedding)
        return embedding
