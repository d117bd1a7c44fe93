"""The decoder model, which predicts each token from those before it."""

from typing import Unpack

import torch
from torch import Tensor

from attnkit.decoding import Start
from attnkit.embedding import Embedding
from attnkit.embedding.base import require_one_segment
from attnkit.masks import check_bool
from attnkit.models.base import GeneratingModel, SpecialTokens, Tie, check_tie, norm_of
from attnkit.multi_token import MultiToken
from attnkit.registry import EmbeddingSpec, HeadSpec, MultiTokenSpec, StackSpec, embeddings, heads, multi_tokens, stacks
from attnkit.reports import reporters
from attnkit.stack import DecoderStack
from attnkit.state import State

MIN_SAVED = 64  # a prefix that all prompts share is read once if that saves at least this many tokens

MAX_REST = 256
"""The maximum length of the part after a shared prefix, which attends under dense masks; at most a quarter of the longest prompt."""


class DecoderModel(GeneratingModel):
    """Embedding, decoder stack and head; the arguments are those of `attnkit.compose`.

    Attributes:
        reports: Whether layers of the stack report (`attnkit.reports`), as experts do.

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
        embedding: EmbeddingSpec,
        tie: Tie = "none",
        head: HeadSpec = "linear",
        multi_token: MultiTokenSpec | None = None,
        **special_tokens: Unpack[SpecialTokens],
    ) -> None:
        super().__init__(**special_tokens)
        check_tie(tie, ("none", "output"))
        self.stack: DecoderStack = stacks.build(stack)
        self.embedding: Embedding = embeddings.build(embedding, vocab_size=vocab_size, d_model=self.stack.d_model)
        require_one_segment(self.embedding)
        self.multi_token: MultiToken | None = None
        if multi_token is not None:
            self.multi_token = multi_tokens.build(multi_token, stack=stack, norm=norm_of(stack))
        self.reports = bool(reporters(self.stack))
        tied = self.embedding if tie == "output" else None
        self.head = heads.build(head, d_model=self.stack.d_model, outputs=vocab_size, tied=tied, norm=norm_of(stack))

    def forward(
        self, tokens: Tensor, key_mask: Tensor | None = None, documents: Tensor | None = None, *, further: bool = False
    ) -> Tensor | list[Tensor]:
        """Return the logits of the token after each token.

        Args:
            tokens: [B, T].
            key_mask: [B, T] bool, True = real token (default: all). Padding on the right needs no mask, since no real token sees it, except
                with `reports`: experts would count it in their statistics and losses.
            documents: [B, T] integers, the document of each token in rows that pack several: no token sees another (default: a row is one
                document).
            further: Whether to predict with `multi_token` too.

        Returns:
            [B, T, V]; with `further`, a list of one such tensor for each offset from 1.

        Raises:
            ConfigurationError: There are documents, but the stack cannot separate them.
            ValueError: There is no `multi_token` to predict further tokens.
        """
        embedded = self.embedding(tokens)
        x: Tensor = self.stack(embedded, key_mask=key_mask, documents=documents)[0]
        if not further:
            logits: Tensor = self.head(x)
            return logits
        if self.multi_token is None:
            raise ValueError("this model predicts only the next token: build it with multi_token")
        return [self.head(y) for y in (x, *self.multi_token(x, embedded, key_mask=key_mask, documents=documents))]

    def step(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        """Return the logits [B, V] of the token after `tokens` [B, T], which follow `state`, and the state after them."""
        x, state = self.stack(self.embedding(tokens), state=state)
        return self.head(x[:, -1]), state

    def begin(self, inputs: Tensor, mask: Tensor | None = None) -> Start:
        """Return the start of generation after a prompt; see `generate`."""
        _check_prompt(inputs, mask)
        if mask is None or inputs.shape[1] == 1:
            return Start(inputs, prompt=inputs)
        return self._after(None, inputs, mask, prompt=inputs, real=mask)

    def _start(self, inputs: Tensor, mask: Tensor | None) -> Start:
        _check_prompt(inputs, mask)
        if len(inputs) == 1 or inputs.numel() < MIN_SAVED:
            return self.begin(inputs, mask)
        real = torch.ones_like(inputs, dtype=torch.bool) if mask is None else mask
        aligned = (~real).int().argsort(stable=True, dim=1)  # padding last: all rows begin with their first real token
        tokens, real_tokens = inputs.gather(1, aligned), real.gather(1, aligned)
        shared = _shared(tokens, real_tokens)
        if not shared:
            return self.begin(inputs, mask)
        state = self.stack(self.embedding(tokens[:1, :shared]))[1].select(tokens.new_zeros(len(tokens)))
        return self._after(state, tokens[:, shared:], real_tokens[:, shared:], prompt=inputs, real=real)

    def _after(self, state: State | None, rest: Tensor, rest_real: Tensor, *, prompt: Tensor, real: Tensor) -> Start:
        """Return the start of generation after `state` and the `rest` of a prompt, which has real tokens [B, T]."""
        order = rest_real.int().argsort(stable=True, dim=1)  # padding first: all rows end with their last real token
        rest, rest_real = rest.gather(1, order), rest_real.gather(1, order)
        last = rest[:, -1:]
        if rest.shape[1] > 1:
            _, state = self.stack(self.embedding(rest[:, :-1]), key_mask=rest_real[:, :-1], state=state)
        return Start(last, state, prompt=prompt.where(real, last))  # the repetition penalty does not count padding


def _check_prompt(inputs: Tensor, mask: Tensor | None) -> None:
    if inputs.dim() != 2:
        raise ValueError(f"the prompt must be tokens [B, T], but has the shape {list(inputs.shape)}")
    if mask is not None:
        check_bool(mask, "mask", inputs.shape)
    if inputs.shape[1] == 0 or (mask is not None and not bool(mask.any(1).all())):
        raise ValueError("every row of the prompt needs at least one token; start an empty one with bos_id")


def _shared(tokens: Tensor, real: Tensor) -> int:
    """Return how many initial tokens all rows [B, T] share, excluding any row's last real token; 0 if reading them once saves little."""
    equal = int((tokens == tokens[:1]).all(0).int().cumprod(0).sum())
    shared = min(equal, int(real.sum(1).min()) - 1)
    rest = tokens.shape[1] - shared
    return shared if shared * (len(tokens) - 1) >= MIN_SAVED and rest <= min(MAX_REST, tokens.shape[1] / 4) else 0
