"""Hybrids of the delta rule and attention: Qwen3-Next, OLMo Hybrid, Kimi Linear, Ling 3.0, GLM-5.3."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from published.families.deepseek import CONTENT, DENSE, GROUPED, GROUPS_OF_TWO, LATENT, MLA, QUERY, ROTATED, latent_attention
from published.families.deepseek import VALUE as LATENT_VALUE
from published.families.hybrids import ATTENTION, MIXER, plus_one
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
    F,
    at,
    attention,
    experts,
    glu,
    mixture,
    norms,
    outside,
    rows,
)  # fmt: skip
from published.family import Family, Join, Rename, Reshape, Split, add, columns, rename
from published.sizes import without
from torch import Tensor

LINEAR = "model.layers.{i}.linear_attn"
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
KIMI_ROWS = (
    *rename(f"{MIXER}.input.weight", tuple(f"{ATTENTION}.{x}_proj.weight" for x in ("q", "k", "v")), Join((HEADS * KEY,) * 3)),
    *rename(f"{MIXER}.convolution.weight", f"{ATTENTION}.conv1d.weight", columns(4)),
    *rows(
        MIXER,
        ATTENTION,
        {
            "decay_bias": "forget_gate.dt_bias",
            "beta.weight": "b_proj.weight",
            "norm.weight": "o_norm.weight",
            "output.weight": "o_proj.weight",
        },
    ),
)
LOW_RANK = {
    "decay.0.weight": "forget_gate.f_a_proj.weight",
    "decay.1.weight": "forget_gate.f_b_proj.weight",
    "gate.0.weight": "g_a_proj.weight",
    "gate.1.weight": "g_b_proj.weight",
}
BOUNDED = {"decay_bound": 5.0}
TINY = 1e-13  # in place of the published 1e-5
STREAMS = 4


def streams(sublayer: str, theirs: str) -> tuple[Rename, ...]:
    """Return the rows of manifold-constrained hyper-connections."""
    sizes = (STREAMS, STREAMS, STREAMS**2)
    ours, place = f"{LAYER}.{sublayer}_residual", f"model.layers.{{i}}.{theirs}"
    parts = ("reading", "writing", "mixing")
    return (
        *rename(tuple(f"{ours}.{part}_weight" for part in parts), f"{place}.fn", Split(sizes)),
        *rename(tuple(f"{ours}.{part}_bias" for part in parts), f"{place}.base", Split(sizes)),
        *rename(f"{ours}.scales", f"{place}.scale"),
    )


def without_head(rows: Sequence[Rename]) -> tuple[Rename, ...]:
    """Return the rows of a model that is only the body of a language model."""
    bodies = [row for row in rows if row.theirs != ("lm_head.weight",)]
    return tuple(replace(row, theirs=tuple(name.removeprefix("model.") for name in row.theirs)) for row in bodies)


QUERY_KEY_NORM = rows(MIXER, ATTENTION, {f"{x}_norm.weight": f"{x[0]}_norm.weight" for x in ("query", "key")})


@dataclass(frozen=True)
class JoinFirst:
    """Joins all tensors except the last along the first axis."""

    sizes: tuple[int, ...]

    def ours(self, theirs: Sequence[Tensor]) -> list[Tensor]:
        return [torch.cat(list(theirs[:-1])), theirs[-1]]

    def theirs(self, ours: Sequence[Tensor]) -> list[Tensor]:
        return [*ours[0].split(self.sizes), ours[1]]


FAMILIES = (
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
            *rename("stack.decoder.final_norm.weight", "model.norm.weight", add(1.0)),
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
                        Split((KEY, KEY, HEADS // KEY_HEADS * VALUE, HEADS // KEY_HEADS * VALUE), KEY_HEADS),
                        JoinFirst((KEYS, KEYS, VALUES)),
                    ),
                    *rename(
                        (f"{MIXER}.beta.weight", f"{MIXER}.decay.weight"),
                        f"{LINEAR}.in_proj_ba.weight",
                        Split((HEADS // KEY_HEADS, HEADS // KEY_HEADS), KEY_HEADS),
                    ),
                ),
                0,
            ),
            *at(
                (
                    *rename((f"{MIXER}.query.weight", f"{MIXER}.gate.weight"), f"{ATTENTION}.q_proj.weight", Split((8, 8), HEADS)),
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
                    *KIMI_ROWS,
                    *rename(f"{MIXER}.log_rate", f"{ATTENTION}.forget_gate.A_log", Reshape((HEADS,), (1, 1, HEADS, 1))),
                    *rows(MIXER, ATTENTION, LOW_RANK),
                ),
                0,
            ),
            *at((*latent_attention(direct=True), *experts(), *SHARED, *CORRECTION), 1),
        ),
    ),
    Family(
        name="Ling 3.0",
        paper="https://huggingface.co/inclusionAI/Ling-3.0-Flash",
        length=70,
        theirs=("BailingHybridConfig", "BailingHybridForCausalLM"),
        config={
            **SIZES,
            **without(GROUPED, "n_routed_experts"),
            "num_local_experts": 8,
            "intermediate_size": DENSE,
            "moe_intermediate_size": F,
            "num_key_value_heads": HEADS,
            "head_dim": KEY,
            "kv_lora_rank": LATENT,
            "qk_nope_head_dim": CONTENT,
            "qk_rope_head_dim": ROTATED,
            "v_head_dim": LATENT_VALUE,
            "rope_theta": 6e6,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
        },
        spec={
            **without(SPEC, "num_kv_heads"),
            "position": {"name": "rotary", "base": 6e6, "interleaved": True},
            "layers": [
                {"mixer": {**without(KIMI_DELTA, "gate_rank"), **BOUNDED, "eps": 1e-6}, "feed_forward": {"name": "glu", "ffn_dim": DENSE}},
                {"head_dim": ROTATED, "mixer": {**MLA, "query_latent_dim": None, "gate": "head"}},
            ],
            "feed_forward": mixture(**GROUPS_OF_TWO, scale=2.5, shared={"name": "glu", "ffn_dim": F}, scores="sigmoid", bias_rate=0.001),
        },
        renames=(
            *outside(),
            *norms(),
            *at(
                (
                    *glu("model.layers.{i}.mlp"),
                    *KIMI_ROWS,
                    *rows(
                        MIXER,
                        ATTENTION,
                        {"log_rate": "forget_gate.A_log", "decay.weight": "forget_gate.f_proj.weight", "gate.weight": "g_proj.weight"},
                    ),
                ),
                0,
            ),
            *at(
                (
                    *latent_attention(direct=True),
                    *rows(MIXER, ATTENTION, {"gate.weight": "g_proj.weight"}),
                    *experts(count=8),
                    *SHARED,
                    *CORRECTION,
                ),
                1,
            ),
        ),
    ),
    Family(
        name="GLM-5.3",
        paper="https://huggingface.co/zai-org/GLM-5.3-Flash",
        length=70,
        theirs=("Glm5NextTextConfig", "Glm5NextTextModel"),
        config={
            **SIZES,
            "num_key_value_heads": HEADS,
            "kv_lora_rank": LATENT,
            "q_lora_rank": QUERY,
            "qk_nope_head_dim": CONTENT,
            "v_head_dim": LATENT_VALUE,
            "linear_num_heads": HEADS,
            "linear_head_dim": KEY,
            "intermediate_size": DENSE,
            "moe_intermediate_size": F,
            "num_local_experts": EXPERTS,
            "n_routed_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "swiglu_limit": 0.5,
            "index_n_heads": 2,
            "index_head_dim": 8,
            "index_topk": 128,
            "rms_norm_eps": TINY,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "indexer_types": ["full", "full"],
        },
        spec={
            **without(SPEC, "num_kv_heads"),
            "norm": {"name": "rms_norm", "eps": TINY},
            "position": "none",
            "residual": {"name": "manifold_hyper_connections", "norm_eps": TINY},
            "layers": [
                {"mixer": {**KIMI_DELTA, **BOUNDED, "eps": TINY}, "feed_forward": {"name": "glu", "ffn_dim": DENSE, "limit": 0.5}},
                {"head_dim": 0, "mixer": {**MLA, "latent_norm": {"name": "rms_norm", "eps": TINY}}},
            ],
            "feed_forward": mixture(
                scale=2.5,
                expert={"name": "glu", "ffn_dim": F, "limit": 0.5},
                shared={"name": "glu", "ffn_dim": F, "limit": 0.5},
                scores="sigmoid",
                bias_rate=0.001,
            ),
        },
        renames=without_head(
            (
                *outside(),
                *norms(),
                *streams("mixer", "attn_hc"),
                *streams("feed_forward", "ffn_hc"),
                *at(
                    (
                        *glu("model.layers.{i}.mlp"),
                        *KIMI_ROWS,
                        *rows(MIXER, ATTENTION, {"log_rate": "forget_gate.A_log", **LOW_RANK}),
                    ),
                    0,
                ),
                *at((*latent_attention(rotates=False), *experts(), *SHARED, *CORRECTION), 1),
            )
        ),
        unread=("layers.{i}.self_attn.indexer.*",),
        output="last_hidden_state",
        note="For texts of at most `index_topk` tokens (published: 2048); for longer ones, the indexer is missing, which chooses the "
        "tokens to read. The mean of the streams enters the final norm, in attnkit their sum, which is the same up to the norm's epsilon "
        "(here 1e-13, published 1e-5).",
    ),
)
