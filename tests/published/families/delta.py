"""Hybrids of the delta rule and attention: Qwen3-Next, OLMo Hybrid, Kimi Linear."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from published.families.deepseek import CONTENT, DENSE, LATENT, MLA, ROTATED, latent_attention
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
from published.family import Add, Family, Join, Reshape, SplitGroups, columns, rename
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
QUERY_KEY_NORM = rows(MIXER, ATTENTION, {f"{x}_norm.weight": f"{x[0]}_norm.weight" for x in ("query", "key")})


@dataclass(frozen=True)
class JoinFirst:
    """All tensors but the last are joined along the first axis."""

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
)
