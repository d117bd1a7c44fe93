"""The base class of mixers that attend to cached tokens."""

from abc import abstractmethod

from torch import Tensor

from attnkit.attention import Attention
from attnkit.mixer.base import Direction, Growth, Mixer, Tokens
from attnkit.mixer.key_values import KeyValues


class CachedAttention(Mixer[KeyValues]):
    """Attention to all tokens, to the tokens so far or the most recent ones, or to a memory. Subclasses implement `project` and `attend`.

    Args:
        window: Number of tokens that a token can reach, itself included; a causal cache keeps no more (default: all tokens).
    """

    attention: Attention  # the score
    dropout: float  # probability of dropping an attention weight
    backend: str  # the implementation of attention

    directions = frozenset({"causal", "bidirectional", "cross"})
    reads_positions = frozenset({"rotation", "bias"})
    has_weights = True
    reads_masks = True
    growth: Growth = "linear"

    def __init__(self, *, direction: Direction, window: int | None) -> None:
        super().__init__()
        self.is_cross = direction == "cross"
        self.window = window if direction == "causal" else None
        self.growth = "linear" if self.window is None else "window"

    @abstractmethod
    def project(self, memory: Tensor, tokens: Tokens) -> tuple[Tensor, ...]:
        """Return the contents of `KeyValues` for vectors [B, K, D] at the positions of `tokens`: keys, values and, if any, log gates."""

    @abstractmethod
    def attend(self, x: Tensor, tokens: Tokens, memory: KeyValues) -> Tensor:
        """Attend from `x` [B, T, D] to the keys and values of `memory`; return [B, T, D]."""

    def forward(self, x: Tensor, tokens: Tokens, state: KeyValues | None = None) -> tuple[Tensor, KeyValues]:
        """Attend from `x` [B, T, D] to itself and the tokens in `state`, or to a memory; see `Mixer.forward`."""
        if self.is_cross:
            if state is None:
                raise ValueError("cross-attention needs a memory: pass the result of `remember` as the state")
            return self.attend(x, tokens, state), state
        state = self.remember(x, tokens) if state is None else state.append(*self.project(x, tokens), real=tokens.real)
        y = self.attend(x, state.restrict(tokens), state)
        return y, state if self.window is None else state.last(self.window - 1)

    def attended(self, query: Tensor, key: Tensor, value: Tensor, tokens: Tokens) -> Tensor:
        """Attend from projected queries [B, H, Q, E] to keys [B, Hkv, K, E] and values [B, Hkv, K, Dv]; return [B, H, Q, Dv]."""
        arguments = {"mask": tokens.mask, "attn_bias": tokens.bias, "first_query": tokens.first}
        heads: Tensor = self.attention(query, key, value, **arguments, projected=True, dropout=self.dropout, backend=self.backend)
        return heads

    def remember(self, memory: Tensor, tokens: Tokens) -> KeyValues:
        """Return the keys and values of the memory [B, K, D], at the positions of `tokens`. Later tokens can be appended."""
        present = KeyValues.of(*self.project(memory, tokens))
        return present if self.window is None else present.numbered(tokens.real)
