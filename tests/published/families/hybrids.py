"""Recurrent models and hybrids with recurrences other than state spaces and the delta rule: RWKV-4, RecurrentGemma, MiniMax-01, xLSTM."""

import math
from typing import Any

from published.families.mixtral import (
    EPS,
    EXPERTS,
    HEADS,
    LAYER,
    SIZES,
    SPEC,
    D,
    F,
    at,
    attention,
    experts,
    glu,
    mixture,
    norms,
    rows,
)
from published.family import Family, Rename, Reshape, Split, add, columns, rename
from published.sizes import without

MIXER = f"{LAYER}.mixer"
ATTENTION = "model.layers.{i}.self_attn"


def plus_one(table: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return rows of norms whose weights they store minus one."""
    return tuple(row for old in table for row in rename(old.ours, old.theirs, add(1.0)))


RWKV = "rwkv.blocks.{i}"


def _rwkv(ours: str, theirs: str, mixes: tuple[str, ...], projections: tuple[str, ...]) -> tuple[Rename, ...]:
    return (
        *rows(ours, theirs, {f"{x}.weight": f"{x}.weight" for x in projections}),
        *(row for x in mixes for row in rename(f"{ours}.mix_{x}", f"{theirs}.time_mix_{x}", Reshape((D,), (1, 1, D)))),
    )


RWKV_TIME = (
    *_rwkv(MIXER, f"{RWKV}.attention", ("key", "value", "receptance"), ("key", "value", "receptance", "output")),
    *rows(MIXER, f"{RWKV}.attention", {"log_rate": "time_decay", "bonus": "time_first"}),
    *rename(f"{LAYER}.mixer_residual.norm.*", f"{RWKV}.ln1.*"),
)
RWKV_CHANNEL = (
    *_rwkv(MIXER, f"{RWKV}.feed_forward", ("key", "receptance"), ("key", "value", "receptance")),
    *rename(f"{LAYER}.mixer_residual.norm.*", f"{RWKV}.ln2.*"),
)

GRIFFIN = "model.layers.{i}.temporal_block"
RG_LRU = (
    *(
        row
        for ours, theirs in (("input", "x"), ("gate", "y"), ("output", "out"))
        for row in rename(f"{MIXER}.{ours}.*", f"{GRIFFIN}.linear_{theirs}.*")
    ),
    *rename(f"{MIXER}.convolution.weight", f"{GRIFFIN}.conv_1d.weight", columns(4)),
    *rows(MIXER, GRIFFIN, {"convolution.bias": "conv_1d.bias", "rate": "rg_lru.recurrent_param"}),
    *rows(MIXER, f"{GRIFFIN}.rg_lru", {f"input_gate.{k}": f"input_gate_{k}" for k in ("weight", "bias")}),
    *rows(MIXER, f"{GRIFFIN}.rg_lru", {f"recurrence_gate.{k}": f"recurrent_gate_{k}" for k in ("weight", "bias")}),
)
GRIFFIN_FEED_FORWARD = tuple(
    row
    for ours, theirs in (("gate", "gate"), ("input", "up"), ("output", "down"))
    for row in rename(f"{LAYER}.feed_forward.{ours}.*", f"model.layers.{{i}}.mlp_block.{theirs}_proj.*")
)

WIDE = 8  # head width of MiniMax
SLOPES = [2.0 ** -(2 * (h + 1)) * (1 + 1e-5) for h in range(HEADS)]  # 2^(-8 (h + 1) / H), in the first of two layers
LIGHTNING: dict[str, Any] = {
    "name": "retention",
    "value_dim": HEADS * WIDE,
    "decays": [math.exp(-slope) for slope in SLOPES],
    "activation": "silu",
    "gate_activation": "sigmoid",
    "norm_over": "all",
    "scale": 1.0,
}
WIDE_STREAM = 128  # transformers' cache of xLSTM has heads of multiples of 64 / H channels

FAMILIES = (
    Family(
        name="RWKV-4",
        paper="https://arxiv.org/abs/2305.13048",
        length=70,
        theirs=("RwkvConfig", "RwkvForCausalLM"),
        config={
            "hidden_size": D,
            "vocab_size": 40,
            "num_hidden_layers": 2,
            "intermediate_size": 24,
            "rescale_every": 0,
        },
        spec={
            "stack": "decoder",
            "d_model": D,
            "num_layers": 4,
            "vocab_size": 40,
            "position": "none",
            "embedding": {"name": "token", "scale": False},
            "embedding_norm": True,
            "feed_forward": "none",
            "layers": [{"mixer": "rwkv"}, {"mixer": {"name": "rwkv_channel", "inner_dim": 24}}],
        },
        renames=(
            *rename("embedding.weight", "rwkv.embeddings.weight"),
            *rename("stack.decoder.embedding_norm.*", "rwkv.blocks.0.pre_ln.*"),
            *at(RWKV_TIME, (0, 0), (2, 1)),
            *at(RWKV_CHANNEL, (1, 0), (3, 1)),
            *rename("stack.decoder.final_norm.*", "rwkv.ln_out.*"),
            *rename("head.projection.weight", "head.weight"),
        ),
        cache="state",
        rows=1,
        padding=None,
        note="transformers decodes one row at a time: in a batch, each row would read the states of all.",
    ),
    Family(
        name="RecurrentGemma",
        paper="https://arxiv.org/abs/2404.07839",
        length=70,
        theirs=("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM"),
        config={
            **without(SIZES, "max_position_embeddings"),
            "num_key_value_heads": 1,
            "lru_width": 12,
            "intermediate_size": 2 * F,
            "attention_window_size": 4,
            "block_types": ["recurrent", "attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
        },
        spec={
            **without(SPEC, "bias"),
            "num_kv_heads": 1,
            "position": {"name": "rotary", "fraction": 0.5},
            "layers": [
                {"mixer": {"name": "rg_lru", "inner_dim": 12}},
                {"window": 4, "mixer": {"name": "multi_head", "biases": ["output"]}},
            ],
            "feed_forward": {"name": "glu", "ffn_dim": F, "activation": "gelu_tanh", "bias": True},
            "embedding": {"name": "token", "scale": 4.0},
            "head": {"name": "linear", "softcap": 30.0},
            "tie": "output",
        },
        renames=(
            *rename("embedding.weight", "model.embed_tokens.weight"),
            *rename("stack.decoder.final_norm.weight", "model.final_norm.weight", add(1.0)),
            *plus_one(norms("model.layers.{i}.temporal_pre_norm", "model.layers.{i}.channel_pre_norm")),
            *GRIFFIN_FEED_FORWARD,
            *at(RG_LRU, 0),
            *at((*attention(GRIFFIN), *rename(f"{MIXER}.output.bias", f"{GRIFFIN}.o_proj.bias")), 1),
        ),
        cache="",
        padding=None,
    ),
    Family(
        name="MiniMax-01",
        paper="https://arxiv.org/abs/2501.08313",
        length=70,
        theirs=("MiniMaxConfig", "MiniMaxForCausalLM"),
        config={
            **SIZES,
            "head_dim": WIDE,
            "num_local_experts": EXPERTS,
            "block_size": 4,
            "layer_types": ["linear_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e7},
            **{f"{part}_alpha_factor": 4**0.25 for part in ("full_attn", "linear_attn", "mlp")},
        },
        spec={
            **SPEC,
            "head_dim": WIDE,
            "norm": EPS,
            "position": {"name": "rotary", "base": 1e7},
            "residual": "deep_norm",
            "embedding_norm": True,
            "layers": [{"mixer": LIGHTNING, "position": "none"}, {}],
            "feed_forward": mixture(),
        },
        renames=(
            *rename("embedding.weight", "model.embed_tokens.weight"),
            *rename("head.projection.weight", "lm_head.weight"),
            *rename("stack.decoder.embedding_norm.weight", "model.layers.0.input_layernorm.weight"),
            *rename(f"{LAYER}.mixer_residual.norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
            *rename("stack.decoder.layers.0.feed_forward_residual.norm.weight", "model.layers.1.input_layernorm.weight"),
            *rename("stack.decoder.layers.1.feed_forward_residual.norm.weight", "model.norm.weight"),
            *experts(),
            *at(attention(), 1),
            *at(
                (
                    *rename(
                        (f"{MIXER}.query.weight", f"{MIXER}.key.weight", f"{MIXER}.value.weight"),
                        f"{ATTENTION}.qkv_proj.weight",
                        Split((WIDE, WIDE, WIDE), HEADS),
                    ),
                    *rows(
                        MIXER,
                        ATTENTION,
                        {"gate.weight": "output_gate.weight", "norm.weight": "norm.weight", "output.weight": "out_proj.weight"},
                    ),
                ),
                0,
            ),
        ),
        unread=tuple(f"{ATTENTION}.{name}" for name in ("slope_rate", "query_decay", "key_decay", "diagonal_decay")),
        note="The published factors of the stream are those of DeepNorm. transformers rotates all channels, not the published half.",
    ),
    Family(
        name="Zamba2",
        paper="https://arxiv.org/abs/2411.15242",
        missing="layers that share a block that also reads the embedding, each with its own adapters",
    ),
    Family(
        name="xLSTM 7B",
        paper="https://arxiv.org/abs/2503.13427",
        length=70,
        theirs=("xLSTMConfig", "xLSTMForCausalLM"),
        config={
            "hidden_size": WIDE_STREAM,
            "num_hidden_layers": 2,
            "num_heads": HEADS,
            "vocab_size": 40,
            "ffn_proj_factor": 0.5,
            "eps": 0.0,
        },
        spec={
            **without(SPEC, "num_kv_heads", "position", "bias"),
            "d_model": WIDE_STREAM,
            "position": "none",
            "mixer": "mlstm",
            "norm": {"name": "rms_norm", "eps": 1e-6},
            "feed_forward": {"name": "glu", "ffn_dim": 64},
            "head": {"name": "linear", "softcap": 30.0},
        },
        renames=(
            *rename("embedding.weight", "backbone.embeddings.weight"),
            *rename("stack.decoder.final_norm.weight", "backbone.out_norm.weight"),
            *rename("head.projection.weight", "lm_head.weight"),
            *norms("backbone.blocks.{i}.norm_mlstm", "backbone.blocks.{i}.norm_ffn"),
            *glu("backbone.blocks.{i}.ffn", names=("proj_up_gate", "proj_up", "proj_down")),
            *rows(
                MIXER,
                "backbone.blocks.{i}.mlstm_layer",
                {
                    "query.weight": "q.weight",
                    "key.weight": "k.weight",
                    "value.weight": "v.weight",
                    "gate.weight": "ogate_preact.weight",
                    "input_gate.weight": "igate_preact.weight",
                    "input_gate.bias": "igate_preact.bias",
                    "forget_gate.weight": "fgate_preact.weight",
                    "forget_gate.bias": "fgate_preact.bias",
                    "norm.weight": "multihead_norm.weight",
                    "output.weight": "out_proj.weight",
                },
            ),
        ),
        cache="cache_params",
        padding=None,
        note="Without the 1e-6 that transformers adds to the denominators, relative to the largest input gate; the norm that follows "
        "removes nearly all of it. The first xLSTM's blocks around an mLSTM are not covered: they have a convolution and a skip inside.",
    ),
)
