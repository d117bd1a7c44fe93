# https://arxiv.org/abs/2405.04434
"""Multi-head latent attention."""

from typing import Literal

import torch
from torch import Tensor

from attnkit.attention.scaled_dot_product import ScaledDotProduct
from attnkit.linear import Linear, is_plain
from attnkit.mixer.base import Direction, Tokens
from attnkit.mixer.cached_attention import CachedAttention
from attnkit.mixer.heads import gated, head_width, in_heads, joined_heads
from attnkit.mixer.key_values import KeyValues
from attnkit.norm import Norm
from attnkit.registry import NormSpec, check_positive, mixers, norms


@mixers.register("latent_attention")
class LatentAttention(CachedAttention):
    r"""Multi-head latent attention (MLA, DeepSeek-V2 and V3): all keys and values are projections of one small vector per token.

    The cache holds that vector, and one rotated key that all heads share: `latent_dim + head_dim` numbers per token, for any number of
    heads. Each head has `head_dim` channels that positions rotate, and `content_dim` that they leave alone.

    A single query reads the cache directly, with the key and value projections moved to the query and to the output; several queries
    expand the cache first. Both give the same result up to rounding. If one of these projections is not a plain linear map, such as under
    LoRA, single queries expand the cache, too.

    Equation:
        $$c_t = \nu(W_{C} x_t), \quad k_{t,h} = [R_t W_{R} x_t; \; U_{K,h} c_t], \quad v_{t,h} = U_{V,h} c_t$$

    Paper: DeepSeek-AI 2024, https://arxiv.org/abs/2405.04434

    Cost: the projections, and 2 T K (head_dim + content_dim + value_dim) operations per head for T queries and K keys. State: `latent_dim +
    head_dim` numbers for each token (`linear`), or for those in the window. Training keeps the keys and values of all heads, so memory
    grows as with `multi_head`.

    Args:
        head_dim: Channels of a head that positions rotate; all heads share those of the key (default: d_model / num_heads; GLM-5.3: 0).
        latent_dim: Width of c, from which keys and values are projected (default: 4 content_dim, as in the paper).
        query_latent_dim: Width of the vector from which queries are projected (default: they are projected from x).
        content_dim: Channels of a head that positions do not rotate (default: head_dim).
        value_dim: Channels of a head's value (default: content_dim).
        latent_norm: The norm of the latent vectors.
        gate: Whether a sigmoid of a projection of the input multiplies each `channel` or each `head` of the output, before the output
            projection (Ling 3.0: `head`; default: no gate).
        scale: A factor of the logits (YaRN's temperature in DeepSeek-V3).
        attention_dropout: Probability of dropping an attention weight.
        bias: Whether the projections from and to the residual stream have biases (a query projection directly from it never has one).
        window: As in `multi_head`.
        backend: As in `multi_head`.

    Raises:
        ConfigurationError: `num_heads` is missing, or a width is not positive (`head_dim` may be 0 if `content_dim` is given).

    Example:
        >>> import torch
        >>> mixer = LatentAttention(d_model=16, num_heads=4, latent_dim=6)
        >>> y, state = mixer(torch.randn(2, 5, 16), Tokens())
        >>> y.shape, state.value.shape, state.key.shape
        (torch.Size([2, 5, 16]), torch.Size([2, 1, 5, 6]), torch.Size([2, 1, 5, 4]))
    """

    def __init__(
        self,
        *,
        d_model: int,
        num_heads: int | None = None,
        head_dim: int | None = None,
        latent_dim: int | None = None,
        query_latent_dim: int | None = None,
        content_dim: int | None = None,
        value_dim: int | None = None,
        latent_norm: NormSpec = "rms_norm",
        gate: Literal["channel", "head"] | None = None,
        scale: float = 1.0,
        attention_dropout: float = 0.0,
        bias: bool = True,
        window: int | None = None,
        backend: str = "auto",
        direction: Direction = "causal",
    ) -> None:
        super().__init__(direction=direction, window=window)
        num_heads, head_dim = head_width("latent_attention", d_model, num_heads, head_dim, least=0)
        check_positive(latent_dim=latent_dim, query_latent_dim=query_latent_dim, value_dim=value_dim)
        content_dim = head_dim if content_dim is None else content_dim
        check_positive(content_dim=content_dim)
        value_dim = content_dim if value_dim is None else value_dim
        latent_dim = 4 * content_dim if latent_dim is None else latent_dim
        self.num_heads, self.head_dim, self.content_dim, self.latent_dim = num_heads, head_dim, content_dim, latent_dim
        self.dropout, self.backend = attention_dropout, backend
        self.attention = ScaledDotProduct(head_dim=head_dim + content_dim, num_heads=num_heads)
        self.attention.configure(scale=scale).check_backend(backend)
        is_direct = query_latent_dim is None
        self.query_latent = None if query_latent_dim is None else Linear(d_model, query_latent_dim, bias=bias)
        self.query_norm: Norm | None = None if is_direct else norms.build(latent_norm, d_model=query_latent_dim)
        self.query = Linear(query_latent_dim or d_model, num_heads * (head_dim + content_dim), bias=False, fixed_inputs=not is_direct)
        self.latent = Linear(d_model, latent_dim, bias=bias)
        self.latent_norm: Norm = norms.build(latent_norm, d_model=latent_dim)
        self.shared_key = Linear(d_model, head_dim, bias=bias) if head_dim else None
        self.key = Linear(latent_dim, num_heads * content_dim, bias=False, fixed_inputs=True)
        self.value = Linear(latent_dim, num_heads * value_dim, bias=False, fixed_inputs=True)
        gates = {None: 0, "head": num_heads, "channel": num_heads * value_dim}[gate]
        self.gate = Linear(d_model, gates, bias=bias) if gates else None
        self.output = Linear(num_heads * value_dim, d_model, bias=bias)

    def project(self, memory: Tensor, tokens: Tokens) -> tuple[Tensor, Tensor]:
        """Project the memory [B, K, D] to the shared keys [B, 1, K, head_dim] and, as values, the latent vectors [B, 1, K, latent_dim]."""
        latent = self.latent(memory)
        key = latent[:, None, :, :0] if self.shared_key is None else self.shared_key(memory)[:, None]
        latent = self.latent_norm(latent).to(latent.dtype)[:, None]
        return key if tokens.rotation is None else tokens.rotation.key(key), latent

    def attend(self, x: Tensor, tokens: Tokens, memory: KeyValues) -> Tensor:
        """Attend from `x` [B, T, D] to the shared keys and the latent vectors of `memory`."""
        source = x
        if self.query_latent is not None and self.query_norm is not None:
            source = self.query_latent(x)
            source = self.query_norm(source).to(source.dtype)
        query = in_heads(self.query(source), self.num_heads)
        rotated, content = query[..., : self.head_dim], query[..., self.head_dim :]
        rotated = rotated if tokens.rotation is None else tokens.rotation.query(rotated)
        is_single = x.shape[1] == 1 and is_plain(self.key) and is_plain(self.value)
        if is_single:
            content = torch.einsum("bhqc,hcl->bhql", content, self._of_heads(self.key).to(content.dtype))
            key, value = torch.cat([memory.key, memory.value], -1), memory.value  # one head, which all queries share
        else:
            latent = memory.value[:, 0]
            contents, value = (in_heads(f(latent), self.num_heads) for f in (self.key, self.value))
            key = torch.cat([memory.key.expand(-1, self.num_heads, -1, -1), contents], -1)
        heads = self.attended(torch.cat([rotated, content], -1), key, value, tokens)
        if is_single:
            heads = torch.einsum("bhql,hvl->bhqv", heads, self._of_heads(self.value).to(heads.dtype))
        joined = joined_heads(heads)
        y: Tensor = self.output(joined if self.gate is None else gated(joined, self.gate(x)))
        return y

    def _of_heads(self, projection: Linear) -> Tensor:
        """Return the weights of a projection for each head, [H, Dh, latent_dim]."""
        return projection.weight.view(self.num_heads, -1, self.latent_dim)
