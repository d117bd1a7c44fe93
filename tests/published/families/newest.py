"""Decoders of 2025 and 2026: Qwen3.5, DeepSeek-V3.2, GLM-5, Trinity, K-EXAONE, Hy3, Granite Swash, LFM3, Command A+ and others."""

import math
from typing import Any

from published.families.deepseek import (
    BODY,
    DENSE,
    FIRST_DENSE,
    GROUPED,
    GROUPS_OF_TWO,
    LATENT_SIZES,
    LATENT_SPEC,
    MIXTURE,
    MLA,
    ROUTED,
    SCALE,
    SIGMOID,
    YARN,
    YARN_POSITION,
    latent_attention,
)
from published.families.hybrids import DELTA, DELTA_SIZES, GATED_DELTA, LINEAR, MIXER, SHORT, plus_one
from published.families.mamba import GRANITE, GRANITE_MIXTURE, GRANITE_SHARED, GRANITE_SPEC
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
from published.family import Family, Rename, Scale, Split, SplitGroups, columns, rename
from published.sizes import without

ATTENTION, MLP = "model.layers.{i}.self_attn", "model.layers.{i}.mlp"
LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
GLU, NARROW = {"name": "glu", "ffn_dim": DENSE}, {"name": "glu", "ffn_dim": F}
COUNTED: dict[str, Any] = {"num_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": F, "intermediate_size": DENSE}
ROUTER = f"{LAYER}.feed_forward.router.weight"
SINK = rename(f"{MIXER}.attention.normalizer.sink", f"{ATTENTION}.sinks")
GATE = rename(f"{MIXER}.gate.weight", f"{ATTENTION}.gate_proj.weight")
SHARED_EXPERT = glu(f"{MLP}.shared_expert", f"{LAYER}.feed_forward.shared")
INDEXER: dict[str, Any] = {"index_topk": 64, "index_head_dim": 8, "index_n_heads": 2}
INDEXED = (
    "For texts of at most `index_topk` tokens (published: 2048), which read all earlier tokens; for longer ones, the indexer is missing, "
    "which chooses the tokens to read."
)


def default(base: float, **more: Any) -> dict[str, Any]:
    """Return the parameters of a rotation in their words."""
    return {"rope_type": "default", "rope_theta": base, **more}


def sandwich(mixer: tuple[str, str], feed_forward: tuple[str, str]) -> tuple[Rename, ...]:
    """Return the rows of the norms before and after both sublayers."""
    return tuple(
        row
        for kind, names in (("mixer", mixer), ("feed_forward", feed_forward))
        for side, name in zip(("input", "output"), names, strict=True)
        for row in rename(f"{LAYER}.{kind}_residual.{side}_norm.weight", f"model.layers.{{i}}.{name}.weight")
    )


def gate_above(ours: str, theirs: str, width: int) -> tuple[Rename, ...]:
    """Return the rows of a gated linear unit whose gate and input are one matrix there."""
    first = tuple(f"{ours}.{part}.weight" for part in ("gate", "input"))
    return (
        *rename(first, f"{theirs}.gate_up_proj.weight", Split((width, width))),
        *rename(f"{ours}.output.weight", f"{theirs}.down_proj.weight"),
    )


SWIGLU_OAI: dict[str, Any] = {"activation": "quick_gelu", "limit": 0.5, "offset": 1.0}
QWEN3_5_SIZES: dict[str, Any] = {
    **SIZES,
    **DELTA_SIZES,
    "head_dim": 8,
    "rope_parameters": default(1e7, partial_rotary_factor=0.25),
}
QWEN3_5_SPEC: dict[str, Any] = {
    **SPEC,
    "head_dim": 8,
    "position": {"name": "rotary", "base": 1e7, "fraction": 0.25},
    "layers": [{"mixer": GATED_DELTA}, {"query_key_norm": "rms_norm", "mixer": {"name": "multi_head", "gate": "channel"}}],
}
QWEN3_5 = (
    *rename("embedding.weight", "model.embed_tokens.weight"),
    *rename("head.projection.weight", "lm_head.weight"),
    *plus_one((*rename("stack.decoder.final_norm.weight", "model.norm.weight"), *norms())),
    *at(
        (
            *DELTA,
            *rows(
                MIXER,
                LINEAR,
                {
                    "input.weight": "in_proj_qkv.weight",
                    "gate.weight": "in_proj_z.weight",
                    "beta.weight": "in_proj_b.weight",
                    "decay.weight": "in_proj_a.weight",
                    "norm.weight": "norm.weight",
                    "output.weight": "out_proj.weight",
                },
            ),
        ),
        0,
    ),
    *at(
        (
            *rename((f"{MIXER}.query.weight", f"{MIXER}.gate.weight"), f"{ATTENTION}.q_proj.weight", SplitGroups(HEADS, (8, 8))),
            *rows(MIXER, ATTENTION, {"key.weight": "k_proj.weight", "value.weight": "v_proj.weight", "output.weight": "o_proj.weight"}),
            *plus_one(QUERY_KEY_NORM),
        ),
        1,
    ),
)
SWASH: dict[str, Any] = {
    **SIZES,
    **GRANITE,
    "sliding_window": 4,
    "layer_types": ["full_attention", "sliding_attention"],
    "layer_rope_theta": [0, 500.0],
    "tie_word_embeddings": True,
}
SWASH_SPEC: dict[str, Any] = {
    **SPEC,
    **GRANITE_SPEC,
    "attention": "dot_product",
    "mixer": {"name": "multi_head", "scale": 0.125, "normalizer": "softmax_with_sink"},
    "position": {"name": "rotary", "base": 500.0},
    "layers": [{"position": "none"}, {"window": 4}],
    "tie": "output",
}

FAMILIES = (
    Family(
        name="Qwen3.5",
        paper="https://huggingface.co/Qwen/Qwen3.5-27B",
        length=70,
        theirs=("Qwen3_5TextConfig", "Qwen3_5ForCausalLM"),
        config=QWEN3_5_SIZES,
        spec={**QWEN3_5_SPEC, "feed_forward": NARROW},
        renames=(*QWEN3_5, *glu(MLP)),
        note="Text alone: its three sections of positions are then equal.",
    ),
    Family(
        name="Qwen3.5 (mixture of experts)",
        paper="https://huggingface.co/Qwen/Qwen3.5-35B-A3B",
        length=70,
        theirs=("Qwen3_5MoeTextConfig", "Qwen3_5MoeForCausalLM"),
        config={
            **without(QWEN3_5_SIZES, "intermediate_size"),
            **without(COUNTED, "intermediate_size"),
            "shared_expert_intermediate_size": 20,
        },
        spec={**QWEN3_5_SPEC, "feed_forward": mixture(shared=GLU, shared_gate=True)},
        renames=(
            *QWEN3_5,
            *experts(),
            *SHARED_EXPERT,
            *rename(f"{LAYER}.feed_forward.shared_gate.weight", f"{MLP}.shared_expert_gate.weight"),
        ),
        note="Text alone, as for Qwen3.5.",
    ),
    Family(
        name="DeepSeek-V3.2",
        paper="https://arxiv.org/abs/2512.02556",
        theirs=("DeepseekV32Config", "DeepseekV32ForCausalLM"),
        config={
            **SIZES,
            **LATENT_SIZES,
            **ROUTED,
            **GROUPED,
            **INDEXER,
            "first_k_dense_replace": 1,
            "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 1.0},
        },
        spec={
            **LATENT_SPEC,
            "position": YARN_POSITION,
            "mixer": {**MLA, "scale": (1 + 0.1 * math.log(4)) ** 2},
            "layers": FIRST_DENSE,
            "feed_forward": mixture(**GROUPS_OF_TWO, scale=2.5, shared=NARROW, **SIGMOID),
        },
        renames=(*BODY, *experts(count=8), *SHARED, *CORRECTION),
        unread=(f"{ATTENTION}.indexer.*",),
        note=f"{INDEXED} {SCALE}",
    ),
    Family(
        name="GLM-5",
        paper="https://huggingface.co/zai-org/GLM-5",
        theirs=("GlmMoeDsaConfig", "GlmMoeDsaForCausalLM"),
        config={**SIZES, **LATENT_SIZES, **ROUTED, **INDEXER, "first_k_dense_replace": 1, "indexer_types": ["full", "shared"]},
        spec={
            **LATENT_SPEC,
            "norm": EPS,
            "layers": FIRST_DENSE,
            "feed_forward": mixture(scale=2.5, shared=NARROW, **SIGMOID),
        },
        renames=(*BODY, *MIXTURE, *CORRECTION),
        unread=(f"{ATTENTION}.indexer.*",),
        note=INDEXED,
    ),
    Family(
        name="MiniMax-M3",
        paper="https://huggingface.co/MiniMaxAI/MiniMax-M3",
        theirs=("MiniMaxM3VLTextConfig", "MiniMaxM3VLForCausalLM"),
        config={
            **without(SIZES, "intermediate_size"),
            "head_dim": 8,
            "rotary_dim": 4,
            "intermediate_size": F,
            "dense_intermediate_size": DENSE,
            "shared_intermediate_size": F,
            "swiglu_limit": 0.5,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "mlp_layer_types": ["dense", "sparse"],
            "layer_types": ["full_attention", "minimax_m3_sparse"],
            "index_n_heads": 2,
            "index_head_dim": 8,
            "rope_parameters": default(5e6, partial_rotary_factor=0.5),
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "position": {"name": "rotary", "base": 5e6, "fraction": 0.5},
            "query_key_norm": "rms_norm",
            "layers": [{"feed_forward": {**GLU, **SWIGLU_OAI}}, {}],
            "feed_forward": mixture(scale=2.0, expert={**NARROW, **SWIGLU_OAI}, shared={**NARROW, **SWIGLU_OAI}, **SIGMOID),
        },
        renames=(
            *rename("embedding.weight", "model.embed_tokens.weight"),
            *rename("head.projection.weight", "lm_head.weight"),
            *plus_one((*rename("stack.decoder.final_norm.weight", "model.norm.weight"), *norms(), *QUERY_KEY_NORM)),
            *attention(),
            *experts(),
            *CORRECTION,
            *at(gate_above(f"{LAYER}.feed_forward", MLP, DENSE), 0),
            *gate_above(f"{LAYER}.feed_forward.shared", f"{MLP}.shared_experts", F),
        ),
        unread=(f"{ATTENTION}.indexer.*",),
        note="For texts of at most `index_block_size` `index_topk_blocks` tokens (published: 2048), as for DeepSeek-V3.2. The limit is "
        "smaller than the published 7, so that it takes effect.",
    ),
    Family(
        name="A.X K1",
        paper="https://huggingface.co/skt/A.X-K1",
        theirs=("AXK1Config", "AXK1ForCausalLM"),
        config={**SIZES, **LATENT_SIZES, **ROUTED, **GROUPED, "first_k_dense_replace": 1},
        spec={
            **without(LATENT_SPEC, "num_layers"),
            "layers": [FIRST_DENSE[0], {"feed_forward": "none"}, {"mixer": "none", "residual": "sandwich_norm"}],
            "feed_forward": mixture(**GROUPS_OF_TWO, scale=2.5, shared=NARROW, **SIGMOID),
        },
        renames=(
            *outside(),
            *at((*latent_attention(), *norms()[:1]), 0, 1),
            *at((*norms()[1:], *glu(MLP)), 0),
            *at(
                (
                    *experts(count=8),
                    *SHARED,
                    *CORRECTION,
                    *rename(f"{LAYER}.feed_forward_residual.input_norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
                    *rename(f"{LAYER}.feed_forward_residual.output_norm.weight", f"{MLP}.post_mlp_layernorm.weight"),
                ),
                (2, 1),
            ),
        ),
        note="The output of a mixture is normalised, that of attention is not, so such a layer stands as two.",
    ),
    Family(
        name="Trinity",
        paper="https://huggingface.co/arcee-ai/Trinity-Mini",
        theirs=("AfmoeConfig", "AfmoeForCausalLM"),
        config={
            **SIZES,
            **COUNTED,
            **LOCAL,
            "head_dim": 8,
            "num_dense_layers": 1,
            "num_shared_experts": 2,
            "route_scale": 2.826,
            "mup_enabled": True,
        },
        spec={
            **SPEC,
            "embedding": "token",
            "head_dim": 8,
            "norm": EPS,
            "residual": "sandwich_norm",
            "query_key_norm": EPS,
            "mixer": {"name": "multi_head", "gate": "channel"},
            "layers": [{"window": 4, "feed_forward": GLU}, {"position": "none"}],
            "feed_forward": mixture(scale=2.826, shared={"name": "glu", "ffn_dim": 2 * F}, **SIGMOID),
        },
        renames=(
            *outside(),
            *attention(),
            *GATE,
            *QUERY_KEY_NORM,
            *sandwich(("input_layernorm", "post_attention_layernorm"), ("pre_mlp_layernorm", "post_mlp_layernorm")),
            *glu(MLP),
            *experts(router="router.gate.weight"),
            *SHARED,
            *rename(f"{LAYER}.feed_forward.bias", f"{MLP}.expert_bias"),
        ),
    ),
    Family(
        name="K-EXAONE",
        paper="https://huggingface.co/LGAI-EXAONE/K-EXAONE-236B-A23B",
        theirs=("ExaoneMoeConfig", "ExaoneMoeForCausalLM"),
        config={**SIZES, **COUNTED, **LOCAL},
        spec={
            **SPEC,
            "norm": EPS,
            "query_key_norm": EPS,
            "layers": [{"window": 4, "feed_forward": GLU}, {"position": "none"}],
            "feed_forward": mixture(scale=2.5, shared=NARROW, **SIGMOID),
        },
        renames=(*PLAIN, *QUERY_KEY_NORM, *glu(MLP), *MIXTURE, *CORRECTION),
    ),
    Family(
        name="Hy3",
        paper="https://huggingface.co/tencent/Hy3-preview",
        theirs=("HYV3Config", "HYV3ForCausalLM"),
        config={**SIZES, **COUNTED, "head_dim": 8, "rope_parameters": default(11158840.0)},
        spec={
            **SPEC,
            "head_dim": 8,
            "norm": EPS,
            "query_key_norm": EPS,
            "position": {"name": "rotary", "base": 11158840.0},
            "layers": FIRST_DENSE,
            "feed_forward": mixture(scale=2.826, shared=NARROW, **SIGMOID),
        },
        renames=(
            *PLAIN,
            *QUERY_KEY_NORM,
            *glu(MLP),
            *MIXTURE,
            *rename(f"{LAYER}.feed_forward.bias", f"{MLP}.e_score_correction_bias"),
        ),
    ),
    Family(
        name="Granite Swash",
        paper="https://huggingface.co/ibm-granite/granite-swash-2b",
        theirs=("GraniteSWAConfig", "GraniteSWAForCausalLM"),
        config=SWASH,
        spec={**SWASH_SPEC, "norm": EPS, "feed_forward": NARROW},
        renames=(*outside(head=None), *attention(), *norms(), *SINK, *glu(MLP)),
    ),
    Family(
        name="Granite Swash (mixture of experts)",
        paper="https://huggingface.co/ibm-granite/granite-swash-3b-a600m",
        theirs=("GraniteMoeSWAConfig", "GraniteMoeSWAForCausalLM"),
        config={**SWASH, "num_local_experts": EXPERTS, "shared_intermediate_size": 20},
        spec={**SWASH_SPEC, "feed_forward": mixture(shared=GLU)},
        renames=(*outside(head=None), *attention(), *norms(), *SINK, *GRANITE_MIXTURE, *GRANITE_SHARED),
    ),
    Family(
        name="Solar Open",
        paper="https://huggingface.co/upstage/Solar-Open-100B",
        theirs=("SolarOpenConfig", "SolarOpenForCausalLM"),
        config={**without(SIZES, "intermediate_size"), **without(ROUTED, "intermediate_size"), "head_dim": 8},
        spec={
            **SPEC,
            "head_dim": 8,
            "norm": EPS,
            "position": {"name": "rotary", "base": 1e6},
            "feed_forward": mixture(shared=NARROW, **SIGMOID),
        },
        renames=(*PLAIN, *MIXTURE, *CORRECTION),
    ),
    Family(
        name="Mellum 2",
        paper="https://huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base",
        theirs=("MellumConfig", "MellumForCausalLM"),
        config={
            **SIZES,
            **COUNTED,
            **LOCAL,
            "head_dim": 8,
            "rope_parameters": {"sliding_attention": default(1e4), "full_attention": {**YARN, "rope_theta": 5e5}},
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "query_key_norm": "rms_norm",
            "layers": [
                {"window": 4},
                {"position": {"name": "rotary", "base": 5e5, "scaling": {"name": "yarn", "factor": 4.0, "original_length": 16}}},
            ],
            "feed_forward": mixture(),
        },
        renames=(*PLAIN, *QUERY_KEY_NORM, *experts()),
    ),
    Family(
        name="Cohere Command A+",
        paper="https://huggingface.co/CohereLabs/command-a-plus-05-2026",
        theirs=("Cohere2MoeConfig", "Cohere2MoeForCausalLM"),
        config={
            **SIZES,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 4,
            "sliding_window_pattern": 2,
            "first_k_dense_replace": 1,
            "prefix_dense_intermediate_size": DENSE,
            "num_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "num_shared_experts": 2,
            "expert_selection_fn": "sigmoid",
        },
        spec={
            **SPEC,
            "num_layers": 3,
            "head_dim": 8,
            "norm": {"name": "layer_norm", "bias": False},
            "residual": "parallel",
            "position": {"name": "rotary", "interleaved": True},
            "layers": [{"feed_forward": GLU}, {"window": 4}, {"position": "none"}],
            "feed_forward": mixture(scores="sigmoid", scale=0.5, shared={"name": "glu", "ffn_dim": 2 * F}),
            "head": {"name": "linear", "scale": 0.0625},
            "tie": "output",
        },
        renames=(
            *outside(head=None),
            *attention(),
            *norms()[:1],
            *glu(MLP),
            *experts(),
            *(row for row in SHARED if "output" not in row.ours[0]),
            *rename(f"{LAYER}.feed_forward.shared.output.weight", f"{MLP}.shared_experts.down_proj.weight", Scale(0.5)),
        ),
        note="The mean of the experts and the shared one is a `scale` of 0.5, and half the output weights of the latter.",
    ),
    Family(
        name="Flint",
        paper="https://huggingface.co/RecursiveSI/flint",
        theirs=("FlintConfig", "FlintForCausalLM"),
        config={
            **SIZES,
            **COUNTED,
            "head_dim": 8,
            "shared_expert_intermediate_size": 2 * F,
            "mlp_only_layers": [0],
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "query_key_norm": "rms_norm",
            "mixer": {"name": "multi_head", "normalizer": "softmax_with_sink"},
            "layers": [{"position": "none", "feed_forward": GLU}, {"window": 4}],
            "feed_forward": mixture(scores="sigmoid", shared={"name": "glu", "ffn_dim": 2 * F}),
        },
        renames=(*PLAIN, *QUERY_KEY_NORM, *SINK, *glu(MLP), *experts(), *SHARED_EXPERT),
    ),
    Family(
        name="LFM3",
        paper="https://huggingface.co/LiquidAI/LFM3-1.7B",
        theirs=("Lfm3Config", "Lfm3ForCausalLM"),
        config={
            **SIZES,
            "num_hidden_layers": 3,
            "head_dim": 8,
            "sliding_window": 4,
            "layer_types": ["conv", "sliding_attention", "full_attention"],
        },
        spec={
            **SPEC,
            "num_layers": 3,
            "head_dim": 8,
            "norm": EPS,
            "residual": "sandwich_norm",
            "query_key_norm": EPS,
            "mixer": {"name": "multi_head", "gate": "head"},
            "layers": [
                {"mixer": {"name": "convolution", "kernel_size": 7}},
                {"window": 4},
                {"position": {"name": "rotary", "base": 1e6, "scaling": {"name": "proportional", "proportion": 0.5}}},
            ],
            "feed_forward": NARROW,
            "tie": "output",
        },
        renames=(
            *outside(norm="embedding_norm", head=None),
            *sandwich(("operator_norm", "post_operator_norm"), ("ffn_norm", "post_ffn_norm")),
            *glu("model.layers.{i}.feed_forward", names=("w1", "w3", "w2")),
            *at(
                (
                    *rows(MIXER, SHORT, {"input.weight": "in_proj.weight", "output.weight": "out_proj.weight"}),
                    *rename(f"{MIXER}.convolution.weight", f"{SHORT}.conv.weight", columns(7)),
                ),
                0,
            ),
            *at((*attention(), *QUERY_KEY_NORM, *rename(f"{MIXER}.gate.weight", f"{ATTENTION}.g_proj.weight")), 1, 2),
        ),
    ),
)
