"""Decoders that are not attnkit's, with the sizes and the dropout of one that is: contestants of `attnkit bench`.

All apply dropout where attnkit's does, to the embedded tokens and to the output of each sublayer, except litgpt's, which has none.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypedDict, Unpack, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.profile.pair_peers import PAIR_PEERS, pair_sizes
from attnkit.registry import ConfigurationError


class Sizes(TypedDict):
    """The arguments of a peer; `dropout` is a probability."""

    d_model: int
    num_layers: int
    num_heads: int
    ffn_dim: int
    vocab_size: int
    max_length: int
    dropout: float


class HandWritten(nn.Module):
    """A typical hand-written pre-norm decoder with torch's fused attention; its output map is the embedding."""

    def __init__(self, **sizes: Unpack[Sizes]) -> None:
        super().__init__()
        d_model, ffn_dim, self.num_heads = sizes["d_model"], sizes["ffn_dim"], sizes["num_heads"]
        self.tokens, self.positions = nn.Embedding(sizes["vocab_size"], d_model), nn.Embedding(sizes["max_length"], d_model)
        self.dropout = nn.Dropout(sizes["dropout"])
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "norm": nn.LayerNorm(d_model), "input": nn.Linear(d_model, 3 * d_model), "output": nn.Linear(d_model, d_model),
                    "ffn_norm": nn.LayerNorm(d_model), "up": nn.Linear(d_model, ffn_dim), "down": nn.Linear(ffn_dim, d_model),
                }
            )
            for _ in range(sizes["num_layers"])
        )  # fmt: skip
        self.norm = nn.LayerNorm(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the tokens [B, T]."""
        x = self.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        for layer in self.layers:
            part = cast(nn.ModuleDict, layer)
            packed = part["input"](part["norm"](x)).unflatten(-1, (3, self.num_heads, -1))
            query, key, value = packed.transpose(1, 3).unbind(2)  # [B, H, T, Dh]
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            x = x + self.dropout(part["output"](mixed.transpose(1, 2).flatten(-2)))
            x = x + self.dropout(part["down"](F.gelu(part["up"](part["ffn_norm"](x)), approximate="tanh")))
        return F.linear(self.norm(x), self.tokens.weight)


class TorchTransformer(nn.Module):
    """torch's `nn.TransformerEncoder` with a causal mask, between an embedding and its transpose."""

    def __init__(self, **sizes: Unpack[Sizes]) -> None:
        super().__init__()
        d_model, p = sizes["d_model"], sizes["dropout"]
        self.tokens, self.positions = nn.Embedding(sizes["vocab_size"], d_model), nn.Embedding(sizes["max_length"], d_model)
        self.dropout = nn.Dropout(p)
        layer = nn.TransformerEncoderLayer(
            d_model, sizes["num_heads"], sizes["ffn_dim"], dropout=p, activation="gelu", batch_first=True, norm_first=True
        )
        layer.self_attn.dropout = layer.dropout.p = 0.0  # of attention weights, and between the two maps of the feed-forward network
        self.stack = nn.TransformerEncoder(layer, sizes["num_layers"], norm=nn.LayerNorm(d_model), enable_nested_tensor=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the tokens [B, T]."""
        x = self.dropout(self.tokens(tokens) + self.positions.weight[: tokens.shape[1]])
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        return F.linear(self.stack(x, mask=mask, is_causal=True), self.tokens.weight)


class TransformersGPT2(nn.Module):
    """GPT-2 from the package transformers."""

    def __init__(self, **sizes: Unpack[Sizes]) -> None:
        super().__init__()
        from transformers import GPT2Config, GPT2LMHeadModel

        p = sizes["dropout"]
        config = GPT2Config(
            vocab_size=sizes["vocab_size"], n_positions=sizes["max_length"], n_embd=sizes["d_model"], n_layer=sizes["num_layers"],
            n_head=sizes["num_heads"], n_inner=sizes["ffn_dim"], resid_pdrop=p, embd_pdrop=p, attn_pdrop=0.0,
            bos_token_id=1, eos_token_id=None, pad_token_id=0,
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


class XTransformers(nn.Module):
    """The decoder of the package x-transformers, with its own choices: no biases in attention, scaled positions."""

    def __init__(self, **sizes: Unpack[Sizes]) -> None:
        super().__init__()
        from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

        d_model, num_heads, p = sizes["d_model"], sizes["num_heads"], sizes["dropout"]
        layers = Decoder(
            dim=d_model, depth=sizes["num_layers"], heads=num_heads, attn_dim_head=d_model // num_heads, attn_flash=True,
            ff_mult=(sizes["ffn_dim"] + 0.5) / d_model, attn_sublayer_dropout=p, ff_sublayer_dropout=p,
        )  # fmt: skip
        self.model: Any = TransformerWrapper(
            num_tokens=sizes["vocab_size"], max_seq_len=sizes["max_length"], attn_layers=layers, emb_dropout=p, tie_embedding=True
        )
        self.writer: Any = AutoregressiveWrapper(self.model)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the tokens [B, T]."""
        logits: Tensor = self.model(tokens)
        return logits

    def generate(self, tokens: Tensor, *, max_length: int, min_length: int) -> Tensor:
        """Return the new tokens, greedily; there are `max_length`, because the model has no end token."""
        written: Tensor = self.writer.generate(tokens, max_length, temperature=0.0)
        return written


class LitGPT(nn.Module):
    """The `GPT` of the package litgpt, with the composition of GPT-2 but rotary positions, since it has no others."""

    def __init__(self, **sizes: Unpack[Sizes]) -> None:
        super().__init__()
        from litgpt.config import Config
        from litgpt.model import GPT

        if sizes["dropout"]:
            raise ConfigurationError(
                f"the peer 'litgpt' has no dropout, but the first model's is {sizes['dropout']}; compare a model whose dropout is 0"
            )
        config = Config(
            block_size=sizes["max_length"], n_layer=sizes["num_layers"], n_embd=sizes["d_model"], n_head=sizes["num_heads"],
            intermediate_size=sizes["ffn_dim"], padded_vocab_size=sizes["vocab_size"], rotary_percentage=1.0, parallel_residual=False,
            gelu_approximate="tanh",
        )  # fmt: skip
        self.model: Any = GPT(config)
        self.model.lm_head.weight = self.model.transformer.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits [B, T, V] of the tokens [B, T]."""
        logits: Tensor = self.model(tokens)
        return logits

    def generate(self, tokens: Tensor, *, max_length: int, min_length: int) -> Tensor:
        """Return the new tokens, greedily; there are `max_length`, because the model has no end token."""
        (rows, start), device = tokens.shape, tokens.device
        dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else None
        self.model.set_kv_cache(rows, max_seq_length=start + max_length, device=device, dtype=dtype)
        new, read = tokens, 0
        written: list[Tensor] = []
        for stop in range(start, start + max_length):
            new = self.model(new, torch.arange(read, stop, device=device), input_pos_maxp1=stop)[:, -1:].argmax(-1)
            written, read = [*written, new], stop
        self.model.clear_kv_cache()
        return torch.cat(written, 1)


PEERS: Mapping[str, Callable[..., nn.Module]] = {
    "torch": HandWritten, "nn.Transformer": TorchTransformer, "transformers": TransformersGPT2, "x-transformers": XTransformers,
    "litgpt": LitGPT,
}  # fmt: skip


def peer(name: str, spec: Mapping[str, Any], *, max_length: int) -> nn.Module:
    """Return a peer, by name, with the sizes and the dropout of a spec of `attnkit.compose`: that of a `decoder` or `encoder_decoder`."""
    stack, feed_forward = spec.get("stack"), spec.get("feed_forward") or {"name": "mlp"}
    if stack not in ("decoder", "encoder_decoder"):
        raise ConfigurationError(f"--peers are decoders or encoder-decoders, but the first model is {stack!r}; leave --peers out")
    if feed_forward.get("name", "mlp") != "mlp":
        raise ConfigurationError(
            f"--peers have the feed-forward network 'mlp', but the first model's is {feed_forward['name']!r}; leave --peers out"
        )
    if missing := [key for key in ("num_layers", "num_heads") if spec.get(key) is None]:
        raise ConfigurationError(f"--peers need {missing[0]}, which the first model lacks; leave --peers out")
    sizes = {key: spec[key] for key in ("d_model", "num_layers", "num_heads")}
    sizes |= {"ffn_dim": feed_forward.get("ffn_dim") or 4 * spec["d_model"], "max_length": max_length, "dropout": spec.get("dropout", 0.0)}
    kinds = PEERS
    if stack == "decoder":
        sizes["vocab_size"] = spec["vocab_size"]
    else:
        kinds, sizes = PAIR_PEERS, {**sizes, **pair_sizes(spec)}
    if name not in kinds:
        raise ConfigurationError(f"the peer {name!r} is no encoder-decoder; choose among: {', '.join(kinds)}")
    try:
        return kinds[name](**sizes)
    except ImportError as error:
        command = "--no-deps litgpt psutil" if name == "litgpt" else "'attnkit[bench]'"
        raise ConfigurationError(f"the peer {name!r} needs the package {name}: pip install {command}") from error
