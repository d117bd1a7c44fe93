"""Models of other hands, of the sizes of a decoder of ours: contestants of `attnkit bench`."""

from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.registry import ConfigurationError


class HandWritten(nn.Module):
    """A pre-norm decoder as one writes it by hand, over torch's fused attention; its output map is the embedding."""

    def __init__(self, *, d_model: int, num_layers: int, num_heads: int, ffn_dim: int, vocab_size: int, max_length: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.tokens, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(max_length, d_model)
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(d_model), "input": nn.Linear(d_model, 3 * d_model), "output": nn.Linear(d_model, d_model),
                    "ffn_norm": nn.LayerNorm(d_model), "up": nn.Linear(d_model, ffn_dim), "down": nn.Linear(ffn_dim, d_model),
                }
            )
            for _ in range(num_layers)
        )  # fmt: skip
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the tokens [B, T]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for layer in self.layers:
            part = cast(nn.ModuleDict, layer)
            packed = part["input"](part["norm"](x)).unflatten(-1, (3, self.num_heads, -1))
            query, key, value = packed.transpose(1, 3).unbind(2)  # [B, H, T, Dh]
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + part["output"](mixed.transpose(1, 2).flatten(-2))
            x = x + part["down"](F.gelu(part["up"](part["ffn_norm"](x)), approximate="tanh"))
        return F.linear(self.norm(x), self.tokens.weight)


class TorchTransformer(nn.Module):
    """torch's `nn.TransformerEncoder` with a causal mask, between an embedding and its transpose."""

    def __init__(self, *, d_model: int, num_layers: int, num_heads: int, ffn_dim: int, vocab_size: int, max_length: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, d_model), nn.Embedding(max_length, d_model)
        layer = nn.TransformerEncoderLayer(d_model, num_heads, ffn_dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.stack = nn.TransformerEncoder(layer, num_layers, norm=nn.LayerNorm(d_model), enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the tokens [B, T]."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return F.linear(self.stack(x, mask=mask, is_causal=True), self.tokens.weight)


class TransformersGPT2(nn.Module):
    """GPT-2 of the package transformers."""

    def __init__(self, *, d_model: int, num_layers: int, num_heads: int, ffn_dim: int, vocab_size: int, max_length: int) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(
            vocab_size=vocab_size, n_positions=max_length, n_embd=d_model, n_layer=num_layers, n_head=num_heads, n_inner=ffn_dim,
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=None, pad_token_id=0,
        )  # fmt: skip
        self.model: Any = GPT2LMHeadModel(config)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the tokens [B, T]."""
        logits: Tensor = self.model(tokens, use_cache=False).logits
        return logits

    def generate(self, tokens: Tensor, *, max_length: int, min_length: int) -> Tensor:
        """Return the new tokens, greedily."""
        length = {"max_new_tokens": max_length, "min_new_tokens": min_length}
        written: Tensor = self.model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False, **length)
        return written[:, tokens.shape[1] :]


PEERS: Mapping[str, Callable[..., nn.Module]] = {"torch": HandWritten, "nn.Transformer": TorchTransformer, "transformers": TransformersGPT2}


def peer(name: str, spec: Mapping[str, Any], *, max_length: int) -> nn.Module:
    """Return another's decoder with the sizes of a spec of `attnkit.compose`; raise if that is no `decoder`, or a package is missing."""
    if spec.get("stack") != "decoder":
        raise ConfigurationError(f"--peers are decoders, but the first model is {spec.get('stack')!r}; leave --peers out")
    sizes = {key: spec[key] for key in ("d_model", "num_layers", "num_heads", "vocab_size")}
    feed_forward = spec.get("feed_forward")
    width = feed_forward.get("ffn_dim") if isinstance(feed_forward, Mapping) else None
    try:
        return PEERS[name](**sizes, ffn_dim=width or 4 * spec["d_model"], max_length=max_length)
    except ImportError as error:
        raise ConfigurationError(f"the peer {name!r} needs the package transformers: pip install 'attnkit[bench]'") from error
