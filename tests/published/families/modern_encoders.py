"""Encoders of text that are not BERT's layers with other names: local and global layers, gated units, shared layers."""

from typing import Any

from published.family import Family, Rename, Split, rename
from torch import Tensor

SIZES = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
SPEC = {"stack": "encoder", "d_model": 16, "num_heads": 4, "vocab_size": 40}
WORDS = {"name": "token", "scale": False}
FUSED = ("query", "key", "value")
LAYER = "stack.encoder.layers.{i}"
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "o_proj"}
GLU = {"gate": "gate_proj", "input": "up_proj", "output": "down_proj"}


def modern_bert_layer(number: int) -> tuple[Rename, ...]:
    """Return the renames of one layer. The first is two of ours, since its attention has no norm."""
    attention, feed_forward = (f"stack.encoder.layers.{n}" for n in ((0, 1) if number == 0 else (number + 1, number + 1)))
    theirs = f"model.layers.{number}"
    return (
        *rename(tuple(f"{attention}.mixer.{x}.weight" for x in FUSED), f"{theirs}.attn.Wqkv.weight", Split((16, 16, 16))),
        *rename(f"{attention}.mixer.output.weight", f"{theirs}.attn.Wo.weight"),
        *(rename(f"{attention}.mixer_residual.norm.weight", f"{theirs}.attn_norm.weight") if number else ()),
        *rename(tuple(f"{feed_forward}.feed_forward.{x}.weight" for x in ("gate", "input")), f"{theirs}.mlp.Wi.weight", Split((24, 24))),
        *rename(f"{feed_forward}.feed_forward.output.weight", f"{theirs}.mlp.Wo.weight"),
        *rename(f"{feed_forward}.feed_forward_residual.norm.weight", f"{theirs}.mlp_norm.weight"),
    )


LOCAL = {"window": 4, "position": {"name": "rotary", "base": 10_000.0}}


def albert_embeddings(model: Any, tokens: Tensor) -> Tensor:
    embedded: Tensor = model.encoder.embedding_hidden_mapping_in(model.embeddings(tokens))
    return embedded


def fnet_embeddings(model: Any, tokens: Tensor) -> Tensor:
    embedded: Tensor = model.embeddings(tokens)
    return embedded


ALBERT = {
    "mixer.query": "attention.query",
    "mixer.key": "attention.key",
    "mixer.value": "attention.value",
    "mixer.output": "attention.dense",
    "mixer_residual.norm": "attention.LayerNorm",
    "feed_forward.input": "ffn",
    "feed_forward.output": "ffn_output",
    "feed_forward_residual.norm": "full_layer_layer_norm",
}

FAMILIES = (
    Family(
        name="ModernBERT",
        paper="https://arxiv.org/abs/2412.13663",
        theirs=("ModernBertConfig", "ModernBertForMaskedLM"),
        config={**SIZES, "local_attention": 6, "global_attn_every_n_layers": 3},
        spec={
            **SPEC,
            "bias": False,
            "position": {"name": "rotary", "base": 160_000.0},
            "norm": {"name": "layer_norm", "bias": False},
            "feed_forward": {"name": "glu", "ffn_dim": 24, "activation": "gelu"},
            "layers": [{"norm": "none", "feed_forward": "none"}, {"mixer": "none"}, LOCAL, LOCAL, {}],
            "embedding_norm": True,
            "embedding": WORDS,
            "tie": "output",
            "head": {"name": "bert", "dense_bias": False},
        },
        renames=(
            *rename("embedding.weight", "model.embeddings.tok_embeddings.weight"),
            *rename("stack.encoder.embedding_norm.weight", "model.embeddings.norm.weight"),
            *rename("stack.encoder.final_norm.weight", "model.final_norm.weight"),
            *(row for number in range(4) for row in modern_bert_layer(number)),
            *rename("head.dense.weight", "head.dense.weight"),
            *rename("head.norm.weight", "head.norm.weight"),
            *rename("head.bias", "decoder.bias"),
        ),
        padding="right",
        note="The first layer has no norm before attention, so it is written as two: attention alone, then the feed-forward network alone. "
        "`window` is `local_attention` / 2 + 1.",
    ),
    Family(
        name="NomicBERT",
        paper="https://arxiv.org/abs/2402.01613",
        theirs=("NomicBertConfig", "NomicBertForMaskedLM"),
        config=SIZES,
        spec={
            **SPEC,
            "num_layers": 4,
            "bias": False,
            "position": {"name": "rotary", "base": 1000.0},
            "norm": {"name": "layer_norm", "eps": 1e-12},
            "residual": "post_norm",
            "feed_forward": {"name": "glu", "ffn_dim": 24},
            "embedding_norm": True,
            "embedding": {**WORDS, "num_segments": 2},
            "tie": "output",
            "head": {"name": "bert", "activation": "silu"},
        },
        renames=(
            *rename("embedding.weight", "nomic_bert.embeddings.word_embeddings.weight"),
            *rename("embedding.segment", "nomic_bert.embeddings.token_type_embeddings.weight"),
            *rename("stack.encoder.embedding_norm.*", "nomic_bert.embeddings.LayerNorm.*"),
            *(
                row
                for ours, theirs in PROJECTIONS.items()
                for row in rename(f"{LAYER}.mixer.{ours}.weight", f"nomic_bert.layers.{{i}}.self_attn.{theirs}.weight")
            ),
            *(
                row
                for ours, theirs in GLU.items()
                for row in rename(f"{LAYER}.feed_forward.{ours}.weight", f"nomic_bert.layers.{{i}}.mlp.{theirs}.weight")
            ),
            *rename(f"{LAYER}.mixer_residual.norm.*", "nomic_bert.layers.{i}.post_attention_layernorm.*"),
            *rename(f"{LAYER}.feed_forward_residual.norm.*", "nomic_bert.layers.{i}.post_mlp_layernorm.*"),
            *rename("head.dense.*", "cls.predictions.transform.dense.*"),
            *rename("head.norm.*", "cls.predictions.transform.layer_norm.*"),
            *rename("head.bias", "cls.predictions.bias"),
        ),
        padding="right",
    ),
    Family(
        name="ALBERT",
        paper="https://arxiv.org/abs/1909.11942",
        theirs=("AlbertConfig", "AlbertModel"),
        config={**SIZES, "embedding_size": 6, "hidden_act": "gelu_new"},
        spec={
            **SPEC,
            "num_layers": 4,
            "position": "none",
            "norm": {"name": "layer_norm", "eps": 1e-12},
            "residual": "post_norm",
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu_tanh"},
            "layers": [{"share": True}],
        },
        renames=tuple(
            row
            for ours, theirs in ALBERT.items()
            for row in rename(f"stack.encoder.layers.0.{ours}.*", f"encoder.albert_layer_groups.0.albert_layers.0.{theirs}.*")
        ),
        padding="right",
        unread=("embeddings.*", "encoder.embedding_hidden_mapping_in.*", "pooler.*"),
        front=albert_embeddings,
        output="last_hidden_state",
        note="Only the stack, on embedded tokens: attnkit has no narrower embeddings that are normalised before the map to d_model.",
    ),
    Family(
        name="FNet",
        paper="https://arxiv.org/abs/2105.03824",
        theirs=("FNetConfig", "FNetModel"),
        config={key: value for key, value in SIZES.items() if key != "num_attention_heads"},
        spec={
            "stack": "encoder",
            "d_model": 16,
            "num_layers": 4,
            "vocab_size": 40,
            "mixer": "fourier",
            "position": "none",
            "norm": {"name": "layer_norm", "eps": 1e-12},
            "residual": "post_norm",
            "feed_forward": {"name": "mlp", "ffn_dim": 24, "activation": "gelu_tanh"},
        },
        renames=(
            *rename(f"{LAYER}.mixer_residual.norm.*", "encoder.layer.{i}.fourier.output.LayerNorm.*"),
            *rename(f"{LAYER}.feed_forward.input.*", "encoder.layer.{i}.intermediate.dense.*"),
            *rename(f"{LAYER}.feed_forward.output.*", "encoder.layer.{i}.output.dense.*"),
            *rename(f"{LAYER}.feed_forward_residual.norm.*", "encoder.layer.{i}.output.LayerNorm.*"),
        ),
        padding=None,
        unread=("embeddings.*", "pooler.*"),
        front=fnet_embeddings,
        output="last_hidden_state",
        note="Only the stack, on embedded tokens, without padding, which FNet mixes with real tokens; it maps its normalised embeddings.",
    ),
    Family(
        name="DeBERTa",
        paper="https://arxiv.org/abs/2006.03654",
        missing="disentangled attention: products of contents with projected relative positions, from both sides",
    ),
    Family(
        name="BigBird",
        paper="https://arxiv.org/abs/2007.14062",
        missing="attention by blocks to random and global tokens",
    ),
    Family(
        name="Longformer, LED",
        paper="https://arxiv.org/abs/2004.05150",
        missing="global tokens with separate projections, in addition to the window",
    ),
    Family(
        name="XLNet",
        paper="https://arxiv.org/abs/1906.08237",
        missing="two streams, and biases of the queries that differ for contents and relative positions",
    ),
)
