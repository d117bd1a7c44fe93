"""The decoder model: the next token from those before."""

from torch import Tensor

from attnkit.embedding import Embedding
from attnkit.masks import check_bool
from attnkit.models.base import Model, generating
from attnkit.models.head import Head, Tie, check_tie
from attnkit.registry import EmbeddingSpec, StackSpec, embeddings, stacks
from attnkit.stack import DecoderStack
from attnkit.state import State


class DecoderModel(Model):
    """Embedding, decoder stack and head.

    Args:
        stack: A decoder stack.
        vocab_size: Tokens V.
        embedding: The embedding.
        tie: `output` shares the embedding's table with the head, `none` does not.
        pad_id: Fills the rows of a batch.
        bos_id: Starts a sequence.
        eos_id: Ends a sequence, or None: `generate` always makes `max_length` tokens.

    Example:
        >>> import torch
        >>> import attnkit
        >>> model = attnkit.compose(stack="decoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20, eos_id=None)
        >>> model.generate(torch.tensor([[5, 6, 7]]), max_length=4).shape
        torch.Size([1, 4])
    """

    def __init__(
        self,
        *,
        stack: StackSpec,
        vocab_size: int,
        embedding: EmbeddingSpec = "token",
        tie: Tie = "none",
        pad_id: int = 0,
        bos_id: int = 1,
        eos_id: int | None = 2,
    ) -> None:
        super().__init__(pad_id=pad_id, bos_id=bos_id, eos_id=eos_id)
        check_tie(tie, ("none", "output"))
        self.stack: DecoderStack = stacks.build(stack)
        self.embedding: Embedding = embeddings.build(embedding, vocab_size=vocab_size, d_model=self.stack.d_model)
        self.head = Head(d_model=self.stack.d_model, outputs=vocab_size, tied=self.embedding if tie == "output" else None)

    def forward(self, tokens: Tensor, key_mask: Tensor | None = None) -> Tensor:
        """Return the logits [B, T, V] of the token after each of `tokens` [B, T] (`key_mask` [B, T] bool, True = real token)."""
        logits: Tensor = self.head(self.stack(self.embedding(tokens), key_mask=key_mask)[0])
        return logits

    def step(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the logits [B, V] of the token after `tokens` [B, T], which follow `state`, and the state after them."""
        x, state = self.stack(self.embedding(tokens), state=state)
        return self.head(x[:, -1]), state

    def generate(
        self,
        prompt: Tensor,
        *,
        prompt_mask: Tensor | None = None,
        max_length: int = 64,
        beam_size: int = 1,
        length_penalty: float = 1.0,
    ) -> Tensor:
        """Continue `prompt`, without dropout and gradients.

        Args:
            prompt: [B, T], at least one real token in each row.
            prompt_mask: [B, T] bool, True = real token; padding may be on either side.
            max_length: New tokens at the most.
            beam_size: 1 is greedy decoding.
            length_penalty: Exponent of the length that divides a beam's log-probability.

        Returns:
            The new tokens [B, L]; rows that ended are filled with `pad_id`.

        Raises:
            ValueError: A row of the prompt is empty, the mask has another shape, or a number is not positive.
            TypeError: The mask is not bool.
        """
        if prompt_mask is not None:
            check_bool(prompt_mask, "prompt_mask", prompt.shape)
        if prompt.shape[1] == 0 or (prompt_mask is not None and not bool(prompt_mask.any(1).all())):
            raise ValueError("every row of the prompt needs at least one token; start an empty one with bos_id")
        state: State | None = None
        tokens = prompt
        with generating(self):
            if prompt_mask is not None and prompt.shape[1] > 1:
                order = prompt_mask.int().argsort(stable=True, dim=1)  # padding first, so that every row ends with its last real token
                prompt = prompt.gather(1, order)
                tokens = prompt[:, -1:]
                _, state = self.stack(self.embedding(prompt[:, :-1]), key_mask=prompt_mask.gather(1, order)[:, :-1])
            return self.search(self.step, tokens, state, max_length=max_length, beam_size=beam_size, length_penalty=length_penalty)
