# https://arxiv.org/abs/2006.16236
"""Linear attention: a product of features replaces the exponential of the softmax."""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.feed_forward.base import make_activation
from attnkit.linear import Linear
from attnkit.mixer.base import Direction, Mixer, Tokens
from attnkit.mixer.heads import head_width, in_heads, joined_heads
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.tokens import Kernel, RecurrentState, WithKernel, in_full_precision, log_decays, reversed_tokens, silent
from attnkit.registry import ConfigurationError, mixers, nearest, refuse_unread, require_at_least


def _elu1(x: Tensor) -> Tensor:
    return F.elu(x) + 1


POSITIVE: dict[str, Callable[[Tensor], Tensor]] = {"elu1": _elu1, "exp": torch.exp, "relu": F.relu, "softmax": partial(F.softmax, dim=-1)}
FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {**POSITIVE, "identity": make_activation("identity"), "silu": F.silu}


@mixers.register("linear_attention")
class LinearAttention(WithKernel, Mixer[RecurrentState]):
    r"""Linear attention: every query reads the same sum over the tokens, so the cost is linear in their number.

    Equation:
        $$y_i = \frac{\phi(q_i)^\top \sum_j \phi(k_j) v_j^\top}{\phi(q_i)^\top \sum_j \phi(k_j) + \epsilon}$$

    The sums are over all $j$, or over $j \le i$ if causal; without `normalized`, the output is the numerator alone.

    Paper: Katharopoulos et al. 2020, https://arxiv.org/abs/2006.16236 (elu1); Kasai et al. 2021, https://arxiv.org/abs/2103.13076 (relu);
    Shen et al. 2018, https://arxiv.org/abs/1812.01243 (softmax over the channels of a head)

    Cost per token and head of width N: $2 N^2$ multiply-adds; if causal, plus $2 N$ for each token of its chunk of 32. State:
    `constant`, $N (N + 1)$ numbers per head. In training, memory grows linearly with the tokens, like that of a projection.

    Args:
        head_dim: Width of a head N (default: D / H).
        bias: Whether the projections have biases.
        feature_map: Name of $\phi$: `elu1` (elu + 1), `exp`, `relu`, `softmax`; `identity` and `silu` only without `normalized`.
        normalized: Whether to divide by the sum of the weights.
        eps: $\epsilon$.

    Raises:
        ConfigurationError: The feature map is unknown, or may be negative although `normalized` divides by its sums.

    Example:
        >>> mixer = LinearAttention(d_model=8, num_heads=2, feature_map="relu")
        >>> y, state = mixer(torch.randn(1, 5, 8), Tokens())
        >>> y.shape, state.memory.shape
        (torch.Size([1, 5, 8]), torch.Size([1, 2, 4, 5]))
    """

    directions = frozenset({"causal", "bidirectional", "cross"})
    growth = "constant"

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        direction: Direction = "causal",
        head_dim: int | None = None,
        bias: bool = True,
        feature_map: str = "elu1",
        normalized: bool = True,
        eps: float = 1e-6,
        kernel: Kernel = "torch",
    ) -> None:
        super().__init__()
        self.kernel: Kernel = kernel
        if feature_map not in FEATURE_MAPS:
            names = sorted(FEATURE_MAPS)
            raise ConfigurationError(f"unknown feature map {feature_map!r}.{nearest(feature_map, names)} Names: {', '.join(names)}.")
        if normalized and feature_map not in POSITIVE:
            raise ConfigurationError(
                f"feature map {feature_map!r} may be negative, so the weights may sum to zero: set normalized to false, or choose one of: "
                f"{', '.join(POSITIVE)}"
            )
        require_at_least(0, eps=eps)
        if not normalized:
            refuse_unread(LinearAttention, "without normalized", eps=eps)
        self.num_heads, width = head_width("linear_attention", d_model, num_heads, head_dim)
        self.direction, self.normalized, self.eps, self.features = direction, normalized, eps, FEATURE_MAPS[feature_map]
        inner = self.num_heads * width
        self.query, self.key, self.value = (Linear(d_model, inner, bias=bias) for _ in range(3))
        self.output = Linear(inner, d_model, bias=bias)

    def forward(self, x: Tensor, tokens: Tokens, state: RecurrentState | None = None) -> tuple[Tensor, RecurrentState | None]:
        """Mix; see `Mixer.forward`."""
        query = self.features(*in_full_precision(in_heads(self.query(x), self.num_heads)))
        if self.direction == "cross":
            if state is None:
                raise ValueError("a mixer that reads a memory needs one: pass the result of `remember` as the state")
            read = _product(query, state.memory)
        elif self.direction == "bidirectional":
            read = _both_ways(query, *self._key_value(x, tokens), tokens, self.kernel_now)
        else:
            key, value = self._key_value(x, tokens)
            memory = None if state is None else state.memory
            read, memory = outer_product(query, key, value, _kept(value, tokens), memory, kernel=self.kernel_now)
            state = RecurrentState(memory)
        if self.normalized:
            read = read[..., :-1] / (read[..., -1:] + self.eps)
        return self.output(joined_heads(read).to(x.dtype)), state

    def remember(self, memory: Tensor, tokens: Tokens) -> RecurrentState:
        """Return the sum over a memory [B, S, D]: its size does not depend on S."""
        key, value = self._key_value(memory, tokens)
        return RecurrentState(_product(key.mT, value))

    def _key_value(self, x: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Return the features of the keys, zero at padding, and the values; with `normalized`, each ends with a one, to sum the weights."""
        key, value = in_full_precision(in_heads(self.key(x), self.num_heads), in_heads(self.value(x), self.num_heads))
        value = torch.cat([value, torch.ones_like(value[..., :1])], -1) if self.normalized else value
        return silent(self.features(key), tokens, dim=2), value


def _product(x: Tensor, y: Tensor) -> Tensor:
    """Multiply in the precision of the factors, even under autocast."""
    with torch.autocast(x.device.type, enabled=False):
        return x @ y


def _kept(value: Tensor, tokens: Tokens) -> Tensor:
    """Return the logarithms of decays, [B or 1, 1, T, 1]: the state is kept except at the start of a document."""
    return log_decays(torch.zeros_like(value[:1, :1, :, :1]), tokens, dim=2)


def _both_ways(query: Tensor, key: Tensor, value: Tensor, tokens: Tokens, kernel: Kernel) -> Tensor:
    """Read all tokens of the same document; in rows with several documents, first those before a token, then those after it."""
    if tokens.starts is None:
        return _product(query, _product(key.mT, value))
    before, _ = outer_product(query, key, value, _kept(value, tokens), kernel=kernel)
    after, _ = outer_product(query.flip(2), key.flip(2), value.flip(2), _kept(value, reversed_tokens(tokens)), kernel=kernel)
    return before + after.flip(2) - (query * key).sum(-1, keepdim=True) * value  # the token itself is in both
