"""Encoder-decoders that are not attnkit's, with the sizes and the dropout of one that is: contestants of `attnkit bench`.

All apply dropout where attnkit's does, to the embedded tokens and to the output of each sublayer. The output map is the embedding of the
target.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, Unpack, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.registry import ConfigurationError

Activation = Literal["relu", "gelu"]


class PairSizes(TypedDict):
    """The arguments of a peer; `dropout` is a probability."""

    d_model: int
    num_layers: int
    num_decoder_layers: int
    num_heads: int
    ffn_dim: int
    activation: Activation
    is_post_norm: bool
    src_vocab_size: int
    tgt_vocab_size: int
    is_shared: bool  # whether source and target have one embedding
    max_length: int
    dropout: float


class Embedded(nn.Module):
    """A peer with embeddings of its own and learned positions."""

    def __init__(self, sizes: PairSizes) -> None:
        super().__init__()
        self.tgt = nn.Embedding(sizes["tgt_vocab_size"], sizes["d_model"])
        self.src = self.tgt if sizes["is_shared"] else nn.Embedding(sizes["src_vocab_size"], sizes["d_model"])
        self.src_positions, self.tgt_positions = (nn.Embedding(sizes["max_length"], sizes["d_model"]) for _ in range(2))
        self.dropout = nn.Dropout(sizes["dropout"])

    def embed(self, src: Tensor, tgt: Tensor) -> tuple[Tensor, Tensor]:
        """Return the inputs [B, S, D] and [B, T, D] of encoder and decoder."""
        x = self.dropout(self.src(src) + self.src_positions.weight[: src.shape[1]])
        return x, self.dropout(self.tgt(tgt) + self.tgt_positions.weight[: tgt.shape[1]])


class Layer(nn.Module):
    """A pre-norm layer, with cross-attention if `reads_memory`; maps of the same input are joined."""

    def __init__(self, sizes: PairSizes, *, reads_memory: bool) -> None:
        super().__init__()
        d_model, self.num_heads, self.activation = sizes["d_model"], sizes["num_heads"], getattr(F, sizes["activation"])
        self.dropout = nn.Dropout(sizes["dropout"])
        self.norm, self.input, self.output = nn.LayerNorm(d_model), nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)
        if reads_memory:
            self.cross_norm, self.query, self.cross_output = nn.LayerNorm(d_model), nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)
            self.key_value = nn.Linear(d_model, 2 * d_model)
        self.ffn_norm, self.up, self.down = (
            nn.LayerNorm(d_model),
            nn.Linear(d_model, sizes["ffn_dim"]),
            nn.Linear(sizes["ffn_dim"], d_model),
        )

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Transform `x` [B, T, D]; a layer with a memory [B, S, D] is causal."""
        query, key, value = self._heads(self.input(self.norm(x)), 3)
        x = x + self.dropout(self.output(self._mixed(query, key, value, is_causal=memory is not None)))
        if memory is not None:
            (query,), (key, value) = self._heads(self.query(self.cross_norm(x)), 1), self._heads(self.key_value(memory), 2)
            x = x + self.dropout(self.cross_output(self._mixed(query, key, value, is_causal=False)))
        x = x + self.dropout(self.down(self.activation(self.up(self.ffn_norm(x)))))
        return x

    def _heads(self, joined: Tensor, count: int) -> tuple[Tensor, ...]:
        return joined.view(*joined.shape[:2], count, self.num_heads, -1).transpose(1, 3).unbind(2)  # each [B, H, T, Dh]

    def _mixed(self, query: Tensor, key: Tensor, value: Tensor, *, is_causal: bool) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=is_causal).transpose(1, 2).flatten(-2)


class HandWrittenPair(Embedded):
    """A typical hand-written encoder-decoder with torch's fused attention; it is pre-norm, whatever the first model is."""

    def __init__(self, **sizes: Unpack[PairSizes]) -> None:
        super().__init__(sizes)
        self.encoder = nn.ModuleList(Layer(sizes, reads_memory=False) for _ in range(sizes["num_layers"]))
        self.decoder = nn.ModuleList(Layer(sizes, reads_memory=True) for _ in range(sizes["num_decoder_layers"]))
        self.encoder_norm, self.decoder_norm = nn.LayerNorm(sizes["d_model"]), nn.LayerNorm(sizes["d_model"])

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits [B, T, V] of source [B, S] and target [B, T]."""
        memory, x = self.embed(src, tgt)
        for layer in self.encoder:
            memory = layer(memory)
        memory = self.encoder_norm(memory)
        for layer in self.decoder:
            x = layer(x, memory)
        return F.linear(self.decoder_norm(x), self.tgt.weight)


class TorchTransformerPair(Embedded):
    """torch's `nn.TransformerEncoder` and `nn.TransformerDecoder`, of which `nn.Transformer` consists; final norms only if pre-norm."""

    def __init__(self, **sizes: Unpack[PairSizes]) -> None:
        super().__init__(sizes)
        first = not sizes["is_post_norm"]
        options: Any = {"dropout": sizes["dropout"], "activation": sizes["activation"], "batch_first": True, "norm_first": first}
        arguments = sizes["d_model"], sizes["num_heads"], sizes["ffn_dim"]
        encoder, decoder = nn.TransformerEncoderLayer(*arguments, **options), nn.TransformerDecoderLayer(*arguments, **options)
        for layer in (encoder, decoder):
            layer.self_attn.dropout = layer.dropout.p = 0.0  # of attention weights, and between the two maps of the feed-forward network
        decoder.multihead_attn.dropout = 0.0
        norms = [nn.LayerNorm(sizes["d_model"]) if first else None for _ in range(2)]
        self.encoder = nn.TransformerEncoder(encoder, sizes["num_layers"], norm=norms[0], enable_nested_tensor=False)
        self.decoder = nn.TransformerDecoder(decoder, sizes["num_decoder_layers"], norm=norms[1])

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits [B, T, V] of source [B, S] and target [B, T]."""
        x, y = self.embed(src, tgt)
        mask = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        return F.linear(self.decoder(y, self.encoder(x), tgt_mask=mask, tgt_is_causal=True), self.tgt.weight)


class TransformersMarian(nn.Module):
    """MarianMT from the package transformers: sinusoidal positions, scaled embeddings, and post-norm, whatever the first model is."""

    def __init__(self, **sizes: Unpack[PairSizes]) -> None:
        super().__init__()
        from transformers import MarianConfig, MarianMTModel

        config = MarianConfig(
            vocab_size=sizes["src_vocab_size"], decoder_vocab_size=sizes["tgt_vocab_size"],
            share_encoder_decoder_embeddings=sizes["is_shared"], max_position_embeddings=sizes["max_length"], d_model=sizes["d_model"],
            encoder_layers=sizes["num_layers"], decoder_layers=sizes["num_decoder_layers"], encoder_ffn_dim=sizes["ffn_dim"],
            decoder_ffn_dim=sizes["ffn_dim"], encoder_attention_heads=sizes["num_heads"], decoder_attention_heads=sizes["num_heads"],
            activation_function=sizes["activation"], dropout=sizes["dropout"], scale_embedding=True, pad_token_id=0,
            decoder_start_token_id=1, eos_token_id=None, forced_eos_token_id=None,
        )  # fmt: skip
        self.model: Any = MarianMTModel(config)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits [B, T, V] of source [B, S] and target [B, T]."""
        logits: Tensor = self.model(src, decoder_input_ids=tgt, use_cache=False).logits
        return logits

    def generate(self, src: Tensor, *, max_length: int, min_length: int) -> Tensor:
        """Return the new tokens, greedily."""
        length = {"max_new_tokens": max_length, "min_new_tokens": min_length}
        written: Tensor = self.model.generate(src, attention_mask=torch.ones_like(src), do_sample=False, num_beams=1, **length)
        return written[:, 1:]


class XTransformersPair(nn.Module):
    """An encoder and a decoder of x-transformers, with its own choices: no biases in attention and norms, scaled learned positions."""

    def __init__(self, **sizes: Unpack[PairSizes]) -> None:
        super().__init__()
        from x_transformers import AutoregressiveWrapper, Decoder, Encoder, TransformerWrapper

        d_model, num_heads, p = sizes["d_model"], sizes["num_heads"], sizes["dropout"]
        activations = {"relu": nn.ReLU(), "gelu": nn.GELU()}
        options: Any = {
            "dim": d_model, "heads": num_heads, "attn_dim_head": d_model // num_heads, "attn_flash": True,
            "ff_mult": (sizes["ffn_dim"] + 0.5) / d_model, "ff_custom_activation": activations[sizes["activation"]],
            "attn_sublayer_dropout": p, "ff_sublayer_dropout": p, "pre_norm": not sizes["is_post_norm"],
        }  # fmt: skip
        ends: Any = {"max_seq_len": sizes["max_length"], "emb_dropout": p}
        self.encoder: Any = TransformerWrapper(
            num_tokens=sizes["src_vocab_size"], attn_layers=Encoder(depth=sizes["num_layers"], **options), return_only_embed=True, **ends
        )
        decoder = Decoder(depth=sizes["num_decoder_layers"], cross_attend=True, **options)
        self.decoder: Any = TransformerWrapper(num_tokens=sizes["tgt_vocab_size"], attn_layers=decoder, tie_embedding=True, **ends)
        if sizes["is_shared"]:
            self.encoder.token_emb = self.decoder.token_emb
        self.writer: Any = AutoregressiveWrapper(self.decoder)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        """Return the logits [B, T, V] of source [B, S] and target [B, T]."""
        logits: Tensor = self.decoder(tgt, context=self.encoder(src))
        return logits

    def generate(self, src: Tensor, *, max_length: int, min_length: int) -> Tensor:
        """Return the new tokens, greedily; there are `max_length`, because the model has no end token."""
        start = torch.ones_like(src[:, :1])
        written: Tensor = self.writer.generate(start, max_length, context=self.encoder(src), temperature=0.0)
        return written


PAIR_PEERS: Mapping[str, Callable[..., nn.Module]] = {
    "torch": HandWrittenPair, "nn.Transformer": TorchTransformerPair, "transformers": TransformersMarian,
    "x-transformers": XTransformersPair,
}  # fmt: skip


def pair_sizes(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that only encoder-decoders have, of a spec of `attnkit.compose`."""
    tie, activation = spec.get("tie"), (spec.get("feed_forward") or {}).get("activation", "relu")
    if tie not in ("output", "all"):
        raise ConfigurationError(
            f"--peers tie the output to the target embedding, but the first model's tie is {tie!r}: set it to 'output'"
        )
    if activation not in get_args(Activation):
        raise ConfigurationError(
            f"--peers compute {' or '.join(get_args(Activation))}, but the first model {activation}; leave --peers out"
        )
    if spec.get("encoder") is not None or spec.get("src_vocab_size") is None:
        raise ConfigurationError(
            "--peers have an encoder of tokens with the decoder's options, but the first model's is another; leave --peers out"
        )
    return {
        "num_decoder_layers": spec.get("num_decoder_layers") or spec["num_layers"], "activation": activation,
        "is_post_norm": (spec.get("residual") or {}).get("name") == "post_norm", "is_shared": tie == "all",
        "src_vocab_size": spec["src_vocab_size"], "tgt_vocab_size": spec["tgt_vocab_size"],
    }  # fmt: skip
