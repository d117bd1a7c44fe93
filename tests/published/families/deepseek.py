"""Latent attention, and mixtures after the first layers: DeepSeek-V2 and V3, MiniCPM3, Youtu, GLM-4.5, dots.llm1, ERNIE 4.5."""

import math
from typing import Any

from published.families.mixtral import (
    CORRECTION,
    EPS,
    EXPERTS,
    HEADS,
    LAYER,
    PLAIN,
    QUERY_KEY_NORM,
    SHARED,
    SIZES,
    SPEC,
    TOP,
    attention,
    experts,
    glu,
    mixture,
    norms,
    outside,
    rows,
)
from published.family import Family, Permute, Rename, Reshape, Split, rename
from published.sizes import without

DENSE, LATENT, QUERY, CONTENT, ROTATED, VALUE = 20, 10, 14, 6, 4, 7
WIDTH = CONTENT + ROTATED
OURS, THEIRS = f"{LAYER}.mixer", "model.layers.{i}.self_attn"
ROTATED_FIRST = Permute(tuple(h * WIDTH + j for h in range(HEADS) for j in (*range(CONTENT, WIDTH), *range(CONTENT))))
LATENT_SIZES: dict[str, Any] = {
    "kv_lora_rank": LATENT,
    "q_lora_rank": QUERY,
    "qk_nope_head_dim": CONTENT,
    "qk_rope_head_dim": ROTATED,
    "v_head_dim": VALUE,
    "num_key_value_heads": HEADS,
}
MLA: dict[str, Any] = {
    "name": "latent_attention",
    "latent_dim": LATENT,
    "query_latent_dim": QUERY,
    "content_dim": CONTENT,
    "value_dim": VALUE,
}


def latent_attention(*, direct: bool = False, rotates: bool = True) -> tuple[Rename, ...]:
    """Return the rows of latent attention; `direct` queries are projected from the stream; heads may have no channels that rotate."""
    query = {"query_latent.weight": "q_a_proj.weight", "query_norm.weight": "q_a_layernorm.weight"}
    return (
        *rows(OURS, THEIRS, {"latent_norm.weight": "kv_a_layernorm.weight", "output.weight": "o_proj.weight"} | ({} if direct else query)),
        *rename(f"{OURS}.query.weight", f"{THEIRS}.{'q_proj' if direct else 'q_b_proj'}.weight", *([ROTATED_FIRST] if rotates else [])),
        *rename(
            (f"{OURS}.latent.weight", *([f"{OURS}.shared_key.weight"] if rotates else [])),
            f"{THEIRS}.kv_a_proj_with_mqa.weight",
            *([Split((LATENT, ROTATED))] if rotates else []),
        ),
        *rename((f"{OURS}.key.weight", f"{OURS}.value.weight"), f"{THEIRS}.kv_b_proj.weight", Split((CONTENT, VALUE), HEADS)),
    )


BODY = (*outside(), *latent_attention(), *norms(), *glu("model.layers.{i}.mlp"))
MIXTURE = (*experts(), *SHARED)
LATENT_SPEC: dict[str, Any] = {
    **without(SPEC, "num_kv_heads"),
    "head_dim": ROTATED,
    "mixer": MLA,
    "position": {"name": "rotary", "interleaved": True},
}
FIRST_DENSE = [{"feed_forward": {"name": "glu", "ffn_dim": DENSE}}, {}]
ROUTED: dict[str, Any] = {"moe_intermediate_size": 12, "intermediate_size": DENSE, "num_experts_per_tok": TOP, "n_routed_experts": EXPERTS}
GROUPS_OF_TWO: dict[str, Any] = {"num_experts": 8, "top_k": 3, "num_groups": 4, "top_groups": 2}
GROUPED = {"n_routed_experts": 8, "num_experts_per_tok": 3, "n_group": 4, "topk_group": 2}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
YARN_POSITION: dict[str, Any] = {
    "name": "rotary",
    "interleaved": True,
    "scaling": {"name": "yarn", "factor": 4.0, "original_length": 16, "attention_factor": 1.0},
}
SCALE = "The mixer's `scale` is (1 + 0.1 `mscale_all_dim` ln `factor`)^2."
SIGMOID: dict[str, Any] = {"scores": "sigmoid", "bias_rate": 0.001}

FAMILIES = (
    Family(
        name="DeepSeek-V2",
        paper="https://arxiv.org/abs/2405.04434",
        theirs=("DeepseekV2Config", "DeepseekV2ForCausalLM"),
        config={
            **SIZES,
            **LATENT_SIZES,
            **ROUTED,
            "first_k_dense_replace": 1,
            "topk_method": "group_limited_greedy",
            **GROUPED,
            "n_shared_experts": 2,
            "routed_scaling_factor": 16.0,
            "rope_parameters": {**YARN, "mscale": 0.707, "mscale_all_dim": 0.707},
        },
        spec={
            **LATENT_SPEC,
            "position": YARN_POSITION,
            "mixer": {**MLA, "scale": (1 + 0.0707 * math.log(4)) ** 2},
            "layers": FIRST_DENSE,
            "feed_forward": mixture(
                num_experts=8,
                top_k=3,
                num_groups=4,
                top_groups=2,
                group_best=1,
                normalize=False,
                scale=16.0,
                shared={"name": "glu", "ffn_dim": 24},
            ),
        },
        renames=(*BODY, *experts(count=8), *SHARED),
        note=SCALE,
    ),
    Family(
        name="DeepSeek-V2-Lite",
        paper="https://arxiv.org/abs/2405.04434",
        theirs=("DeepseekV2Config", "DeepseekV2ForCausalLM"),
        config={**SIZES, **LATENT_SIZES, **ROUTED, "q_lora_rank": None, "first_k_dense_replace": 1, "n_shared_experts": 2},
        spec={
            **LATENT_SPEC,
            "mixer": {**MLA, "query_latent_dim": None},
            "layers": FIRST_DENSE,
            "feed_forward": mixture(normalize=False, shared={"name": "glu", "ffn_dim": 24}),
        },
        renames=(*outside(), *latent_attention(direct=True), *norms(), *glu("model.layers.{i}.mlp"), *MIXTURE),
    ),
    Family(
        name="DeepSeek-V3",
        paper="https://arxiv.org/abs/2412.19437",
        theirs=("DeepseekV3Config", "DeepseekV3ForCausalLM"),
        config={
            **SIZES,
            **LATENT_SIZES,
            **ROUTED,
            "first_k_dense_replace": 1,
            **GROUPED,
            "num_mtp_layers": 0,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        spec={
            **LATENT_SPEC,
            "position": YARN_POSITION,
            "mixer": {**MLA, "scale": (1 + 0.1 * math.log(4)) ** 2},
            "layers": FIRST_DENSE,
            "feed_forward": mixture(**GROUPS_OF_TWO, scale=2.5, shared={"name": "glu", "ffn_dim": 12}, **SIGMOID),
        },
        renames=(*BODY, *experts(count=8), *SHARED, *CORRECTION),
        note=f"{SCALE} Its modules that predict further tokens are `multi_token: sequential`, also equal "
        "(`tests/published/test_further_tokens.py`)",
    ),
    Family(
        name="GLM-4.7-Flash",
        paper="https://huggingface.co/zai-org/GLM-4.7-Flash",
        theirs=("Glm4MoeLiteConfig", "Glm4MoeLiteForCausalLM"),
        config={**SIZES, **LATENT_SIZES, **ROUTED, "mlp_layer_types": ["dense", "sparse"]},
        spec={
            **LATENT_SPEC,
            "norm": EPS,
            "layers": FIRST_DENSE,
            "feed_forward": mixture(scale=1.8, shared={"name": "glu", "ffn_dim": 12}, **SIGMOID),
        },
        renames=(*BODY, *MIXTURE, *CORRECTION),
    ),
    Family(
        name="Youtu-LLM",
        paper="https://arxiv.org/abs/2512.24618",
        theirs=("YoutuConfig", "YoutuForCausalLM"),
        config={**SIZES, **LATENT_SIZES, "intermediate_size": DENSE, "tie_word_embeddings": True},
        spec={**LATENT_SPEC, "feed_forward": {"name": "glu", "ffn_dim": DENSE}, "tie": "output"},
        renames=(*outside(head=None), *latent_attention(), *norms(), *glu("model.layers.{i}.mlp")),
    ),
    Family(
        name="MiniCPM3",
        paper="https://arxiv.org/abs/2404.06395",
        theirs=("MiniCPM3Config", "MiniCPM3ForCausalLM"),
        config={
            **SIZES,
            **LATENT_SIZES,
            "intermediate_size": DENSE,
            "tie_word_embeddings": True,
            "scale_emb": 12,
            "scale_depth": 1.4,
            "dim_model_base": 4,
        },
        spec={
            **LATENT_SPEC,
            "norm": EPS,
            "position": "rotary",
            "residual": {"name": "pre_norm", "scale": 1.4 / 2**0.5},
            "embedding": {"name": "token", "scale": 12.0},
            "feed_forward": {"name": "glu", "ffn_dim": DENSE},
            "head": {"name": "linear", "scale": 0.25},
            "tie": "output",
        },
        renames=(*outside(head=None), *latent_attention(), *norms(), *glu("model.layers.{i}.mlp")),
        note="`scale` is `scale_depth` / sqrt(layers) in the residual, `dim_model_base` / `hidden_size` in the head.",
    ),
    Family(
        name="GLM-4.5",
        paper="https://arxiv.org/abs/2508.06471",
        theirs=("Glm4MoeConfig", "Glm4MoeForCausalLM"),
        config={
            **SIZES,
            **ROUTED,
            "head_dim": 8,
            "first_k_dense_replace": 1,
            "attention_bias": True,
            "use_qk_norm": True,
            "num_mtp_layers": 0,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5},
        },
        spec={
            **without(SPEC, "bias"),
            "head_dim": 8,
            "norm": EPS,
            "query_key_norm": EPS,
            "position": {"name": "rotary", "base": 1e6, "fraction": 0.5},
            "mixer": {"name": "multi_head", "biases": ["query", "key", "value"]},
            "layers": FIRST_DENSE,
            "feed_forward": mixture(shared={"name": "glu", "ffn_dim": 12}, **SIGMOID),
        },
        renames=(
            *PLAIN,
            *QUERY_KEY_NORM,
            *rows(OURS, THEIRS, {f"{x}.bias": f"{x[0]}_proj.bias" for x in ("query", "key", "value")}),
            *glu("model.layers.{i}.mlp"),
            *MIXTURE,
            *CORRECTION,
        ),
        note="Its layers that predict further tokens are not compared.",
    ),
    Family(
        name="dots.llm1",
        paper="https://arxiv.org/abs/2506.05767",
        theirs=("Dots1Config", "Dots1ForCausalLM"),
        config={
            **SIZES,
            **ROUTED,
            "n_shared_experts": 2,
            "first_k_dense_replace": 1,
            "norm_topk_prob": True,
            "routed_scaling_factor": 2.5,
        },
        spec={
            **SPEC,
            "query_key_norm": "rms_norm",
            "layers": FIRST_DENSE,
            "feed_forward": mixture(scale=2.5, shared={"name": "glu", "ffn_dim": 24}, **SIGMOID),
        },
        renames=(*PLAIN, *QUERY_KEY_NORM, *glu("model.layers.{i}.mlp"), *MIXTURE, *CORRECTION),
    ),
    Family(
        name="ERNIE 4.5 (mixture of experts)",
        paper="https://yiyan.baidu.com/blog/publication/ERNIE_Technical_Report.pdf",
        theirs=("Ernie4_5_MoeConfig", "Ernie4_5_MoeForCausalLM"),
        config={
            **SIZES,
            "intermediate_size": DENSE,
            "moe_intermediate_size": 12,
            "moe_num_experts": EXPERTS,
            "moe_k": TOP,
            "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
            "tie_word_embeddings": True,
        },
        spec={
            **SPEC,
            "norm": EPS,
            "position": {"name": "rotary", "base": 5e5, "interleaved": True},
            "layers": FIRST_DENSE,
            "feed_forward": mixture(bias_rate=0.001, shared={"name": "glu", "ffn_dim": 24}),
            "tie": "output",
        },
        renames=(
            *outside(head=None),
            *attention(),
            *norms(),
            *glu("model.layers.{i}.mlp"),
            *MIXTURE,
            *rename(
                f"{LAYER}.feed_forward.bias",
                "model.layers.{i}.mlp.gate.moe_statics.e_score_correction_bias",
                Reshape((EXPERTS,), (1, EXPERTS)),
            ),
        ),
    ),
)
