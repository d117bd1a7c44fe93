"""Recurrent models and hybrids that are not state-space models, from RWKV-4 to Kimi Linear and xLSTM."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from published.families.deepseek import CONTENT, DENSE, LATENT, MLA, ROTATED, latent_attention
from published.families.deepseek import VALUE as LATENT_VALUE
from published.families.mixtral import (
    CORRECTION,
    EPS,
    EXPERTS,
    HEADS,
    LAYER,
    SHARED,
    SIZES,
    SPEC,
    TOP,
    D,
    F,
    at,
    attention,
    experts,
    glu,
    mixture,
    norms,
    outside,
    rows,
)
from published.family import Add, Family, Join, Rename, Reshape, SplitGroups, columns, rename
from published.sizes import without
from torch import Tensor

MIXER = f"{LAYER}.mixer"
LINEAR, ATTENTION = "model.layers.{i}.linear_attn", "model.layers.{i}.self_attn"
KEY_HEADS, KEY, VALUE = 2, 6, 5  # of the gated delta rule
KEYS, VALUES = KEY_HEADS * KEY, HEADS * VALUE
GATED_DELTA: dict[str, Any] = {"name": "gated_delta", "num_key_heads": KEY_HEADS, "key_dim": KEYS, "value_dim": VALUES}
KIMI_DELTA: dict[str, Any] = {
    "name": "gated_delta",
    "key_dim": HEADS * KEY,
    "value_dim": HEADS * KEY,
    "decay": "channel",
    "gate_rank": KEY,
    "gate_activation": "sigmoid",
    "eps": 1e-5,
}
DELTA_SIZES: dict[str, Any] = {
    "linear_num_key_heads": KEY_HEADS,
    "linear_num_value_heads": HEADS,
    "linear_key_head_dim": KEY,
    "linear_value_head_dim": VALUE,
    "layer_types": ["linear_attention", "full_attention"],
}
DELTA = (
    *rows(MIXER, LINEAR, {"log_rate": "A_log", "decay_bias": "dt_bias"}),
    *rename(f"{MIXER}.convolution.weight", f"{LINEAR}.conv1d.weight", columns(4)),
)
QUERY_KEY_NORM = rows(MIXER, ATTENTION, {f"{x}_norm.weight": f"{x[0]}_norm.weight" for x in ("query", "key")})


def plus_one(table: tuple[Rename, ...]) -> tuple[Rename, ...]:
    """Return rows of norms whose weights theirs stores minus one."""
    return tuple(row for old in table for row in rename(old.ours, old.theirs, Add(1.0)))


@dataclass(frozen=True)
class JoinFirst:
    """All tensors but the last are joined along the first axis."""

    sizes: tuple[int, ...]

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(theirs[:-1])), theirs[-1]]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [*ours[0].split(self.sizes), ours[1]]


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
SHORT = "model.layers.{i}.conv"
LFM2_SIZES = {
    **SIZES,
    "layer_types": ["conv", "full_attention"],
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
LFM2_SPEC = {**SPEC, "norm": EPS, "position": {"name": "rotary", "base": 1e6}, "tie": "output"}
LFM2 = (
    *outside(norm="embedding_norm", head=None),
    *norms("model.layers.{i}.operator_norm", "model.layers.{i}.ffn_norm"),
    *at(
        (
            *rows(MIXER, SHORT, {"input.weight": "in_proj.weight", "output.weight": "out_proj.weight"}),
            *rename(f"{MIXER}.convolution.weight", f"{SHORT}.conv.weight", columns(3)),
        ),
        0,
    ),
    *at(
        (
            *attention(output="out_proj"),
            *rows(MIXER, ATTENTION, {f"{x}_norm.weight": f"{x[0]}_layernorm.weight" for x in ("query", "key")}),
        ),
        1,
    ),
)

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
            *rename("stack.decoder.final_norm.weight", "model.final_norm.weight", Add(1.0)),
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
                        SplitGroups(HEADS, (WIDE, WIDE, WIDE)),
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
        name="Qwen3-Next",
        paper="https://huggingface.co/Qwen/Qwen3-Next-80B-A3B-Instruct",
        length=70,
        theirs=("Qwen3NextConfig", "Qwen3NextForCausalLM"),
        config={
            **SIZES,
            **DELTA_SIZES,
            "head_dim": 8,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "moe_intermediate_size": F,
            "shared_expert_intermediate_size": 20,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "position": {"name": "rotary", "fraction": 0.25},
            "layers": [{"mixer": GATED_DELTA}, {"query_key_norm": "rms_norm", "mixer": {"name": "multi_head", "gate": "channel"}}],
            "feed_forward": mixture(shared={"name": "glu", "ffn_dim": 20}, shared_gate=True),
        },
        renames=(
            *rename("embedding.weight", "model.embed_tokens.weight"),
            *rename("stack.decoder.final_norm.weight", "model.norm.weight", Add(1.0)),
            *rename("head.projection.weight", "lm_head.weight"),
            *plus_one(norms()),
            *experts(),
            *glu("model.layers.{i}.mlp.shared_expert", f"{LAYER}.feed_forward.shared"),
            *rename(f"{LAYER}.feed_forward.shared_gate.weight", "model.layers.{i}.mlp.shared_expert_gate.weight"),
            *at(
                (
                    *DELTA,
                    *rows(MIXER, LINEAR, {"norm.weight": "norm.weight", "output.weight": "out_proj.weight"}),
                    *rename(
                        (f"{MIXER}.input.weight", f"{MIXER}.gate.weight"),
                        f"{LINEAR}.in_proj_qkvz.weight",
                        SplitGroups(KEY_HEADS, (KEY, KEY, HEADS // KEY_HEADS * VALUE, HEADS // KEY_HEADS * VALUE)),
                        JoinFirst((KEYS, KEYS, VALUES)),
                    ),
                    *rename(
                        (f"{MIXER}.beta.weight", f"{MIXER}.decay.weight"),
                        f"{LINEAR}.in_proj_ba.weight",
                        SplitGroups(KEY_HEADS, (HEADS // KEY_HEADS, HEADS // KEY_HEADS)),
                    ),
                ),
                0,
            ),
            *at(
                (
                    *rename((f"{MIXER}.query.weight", f"{MIXER}.gate.weight"), f"{ATTENTION}.q_proj.weight", SplitGroups(HEADS, (8, 8))),
                    *rows(
                        MIXER, ATTENTION, {"key.weight": "k_proj.weight", "value.weight": "v_proj.weight", "output.weight": "o_proj.weight"}
                    ),
                    *plus_one(QUERY_KEY_NORM),
                ),
                1,
            ),
        ),
    ),
    Family(
        name="OLMo Hybrid",
        paper="https://allenai.org/papers/olmo-hybrid",
        length=70,
        theirs=("OlmoHybridConfig", "OlmoHybridForCausalLM"),
        config={**SIZES, **DELTA_SIZES, "rope_parameters": {"rope_type": "default", "rope_theta": None}},
        spec={
            **SPEC,
            "position": "none",
            "layers": [
                {"mixer": {**GATED_DELTA, "negative_eigenvalues": True, "eps": 1e-5}},
                {"residual": "output_norm", "query_key_norm": "rms_norm", "mixer": {"name": "multi_head", "query_key_norm_over": "all"}},
            ],
            "feed_forward": {"name": "glu", "ffn_dim": F},
        },
        renames=(
            *outside(),
            *glu("model.layers.{i}.mlp"),
            *at(
                (
                    *norms(),
                    *DELTA,
                    *rename(
                        f"{MIXER}.input.weight",
                        tuple(f"{LINEAR}.{x}_proj.weight" for x in ("q", "k", "v")),
                        Join((KEYS, KEYS, VALUES)),
                    ),
                    *rows(
                        MIXER,
                        LINEAR,
                        {
                            "beta.weight": "b_proj.weight",
                            "decay.weight": "a_proj.weight",
                            "gate.weight": "g_proj.weight",
                            "norm.weight": "o_norm.weight",
                            "output.weight": "o_proj.weight",
                        },
                    ),
                ),
                0,
            ),
            *at(
                (
                    *norms("model.layers.{i}.post_attention_layernorm", "model.layers.{i}.post_feedforward_layernorm"),
                    *attention(),
                    *QUERY_KEY_NORM,
                ),
                1,
            ),
        ),
    ),
    Family(
        name="LFM2",
        paper="https://arxiv.org/abs/2511.23404",
        theirs=("Lfm2Config", "Lfm2ForCausalLM"),
        config={**LFM2_SIZES, "block_auto_adjust_ff_dim": False},
        spec={
            **LFM2_SPEC,
            "layers": [{"mixer": "convolution"}, {"query_key_norm": EPS}],
            "feed_forward": {"name": "glu", "ffn_dim": F},
        },
        renames=(*LFM2, *glu("model.layers.{i}.feed_forward", names=("w1", "w3", "w2"))),
    ),
    Family(
        name="LFM2-MoE",
        paper="https://arxiv.org/abs/2511.23404",
        theirs=("Lfm2MoeConfig", "Lfm2MoeForCausalLM"),
        config={**LFM2_SIZES, "moe_intermediate_size": F, "num_dense_layers": 1, "num_experts": EXPERTS, "num_experts_per_tok": TOP},
        spec={
            **LFM2_SPEC,
            "layers": [{"mixer": "convolution", "feed_forward": {"name": "glu", "ffn_dim": F}}, {"query_key_norm": EPS}],
            "feed_forward": mixture(scores="sigmoid", eps=1e-6, bias_rate=0.001),
        },
        renames=(
            *LFM2,
            *at(glu("model.layers.{i}.feed_forward", names=("w1", "w3", "w2")), 0),
            *experts("model.layers.{i}.feed_forward"),
            *rename(f"{LAYER}.feed_forward.bias", "model.layers.{i}.feed_forward.expert_bias"),
        ),
    ),
    Family(
        name="Phi-3.5-MoE",
        paper="https://arxiv.org/abs/2404.14219",
        missing="a router that leaves out experts far below the best, and weighs each chosen one against the rest (SparseMixer)",
    ),
    Family(
        name="Llama 4",
        paper="https://huggingface.co/meta-llama/Llama-4-Scout-17B-16E",
        missing="experts whose weight scales their input, attention in chunks, and a temperature whose positions count from one",
    ),
    Family(
        name="Kimi Linear",
        paper="https://arxiv.org/abs/2510.26692",
        length=70,
        theirs=("KimiLinearConfig", "KimiLinearForCausalLM"),
        config={
            **SIZES,
            "num_key_value_heads": HEADS,
            "kv_lora_rank": LATENT,
            "qk_nope_head_dim": CONTENT,
            "qk_rope_head_dim": ROTATED,
            "v_head_dim": LATENT_VALUE,
            "linear_num_heads": HEADS,
            "linear_head_dim": KEY,
            "intermediate_size": DENSE,
            "moe_intermediate_size": F,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "n_shared_experts": 1,
            "routed_scaling_factor": 2.446,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
        },
        spec={
            **without(SPEC, "num_kv_heads"),
            "norm": EPS,
            "position": "none",
            "layers": [
                {"mixer": KIMI_DELTA, "feed_forward": {"name": "glu", "ffn_dim": DENSE}},
                {"head_dim": ROTATED, "mixer": {**MLA, "query_latent_dim": None}},
            ],
            "feed_forward": mixture(scale=2.446, shared={"name": "glu", "ffn_dim": F}, scores="sigmoid", bias_rate=0.001),
        },
        renames=(
            *outside(),
            *norms(),
            *at(
                (
                    *glu("model.layers.{i}.mlp"),
                    *rename(
                        f"{MIXER}.input.weight", tuple(f"{ATTENTION}.{x}_proj.weight" for x in ("q", "k", "v")), Join((HEADS * KEY,) * 3)
                    ),
                    *rename(f"{MIXER}.convolution.weight", f"{ATTENTION}.conv1d.weight", columns(4)),
                    *rename(f"{MIXER}.log_rate", f"{ATTENTION}.forget_gate.A_log", Reshape((HEADS,), (1, 1, HEADS, 1))),
                    *rows(
                        MIXER,
                        ATTENTION,
                        {
                            "decay_bias": "forget_gate.dt_bias",
                            "decay.0.weight": "forget_gate.f_a_proj.weight",
                            "decay.1.weight": "forget_gate.f_b_proj.weight",
                            "beta.weight": "b_proj.weight",
                            "gate.0.weight": "g_a_proj.weight",
                            "gate.1.weight": "g_b_proj.weight",
                            "norm.weight": "o_norm.weight",
                            "output.weight": "o_proj.weight",
                        },
                    ),
                ),
                0,
            ),
            *at((*latent_attention(direct=True), *experts(), *SHARED, *CORRECTION), 1),
        ),
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
    Family(
        name="LongCat-Flash",
        paper="https://arxiv.org/abs/2509.01322",
        missing="two attentions in a layer around one mixture, and experts that compute nothing",
    ),
)
