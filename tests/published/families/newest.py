"""Decoders of 2025 and 2026: Qwen3.5, DeepSeek-V3.2, GLM-5, MiniMax-M3, A.X K1, Hy3, Solar Open."""

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
from published.families.delta import DELTA, DELTA_SIZES, GATED_DELTA, LINEAR
from published.families.hybrids import MIXER, plus_one
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
from published.family import Family, Rename, Split, rename
from published.sizes import without

ATTENTION, MLP = "model.layers.{i}.self_attn", "model.layers.{i}.mlp"
GLU, NARROW = {"name": "glu", "ffn_dim": DENSE}, {"name": "glu", "ffn_dim": F}
COUNTED: dict[str, Any] = {"num_experts": EXPERTS, "num_experts_per_tok": TOP, "moe_intermediate_size": F, "intermediate_size": DENSE}
SHARED_EXPERT = glu(f"{MLP}.shared_expert", f"{LAYER}.feed_forward.shared")
INDEXER: dict[str, Any] = {"index_topk": 64, "index_head_dim": 8, "index_n_heads": 2}
INDEXED = (
    "For texts of at most `index_topk` tokens (published: 2048), which read all earlier tokens; for longer ones, the indexer is missing, "
    "which chooses the tokens to read."
)


def default(base: float, **more: Any) -> dict[str, Any]:
    """Return the parameters of a rotation under their names."""
    return {"rope_type": "default", "rope_theta": base, **more}


def gate_above(ours: str, theirs: str, width: int) -> tuple[Rename, ...]:
    """Return the rows of a gated linear unit whose gate and input are one matrix there."""
    first = tuple(f"{ours}.{part}.weight" for part in ("gate", "input"))
    return (
        *rename(first, f"{theirs}.gate_up_proj.weight", Split((width, width))),
        *rename(f"{ours}.output.weight", f"{theirs}.down_proj.weight"),
    )


SWIGLU_OAI: dict[str, Any] = {"activation": "quick_gelu", "limit": 0.5, "offset": 1.0}
WIDE = 16  # of a head's channels, so that two pairs rotate
QWEN3_5_SIZES: dict[str, Any] = {
    **SIZES,
    **DELTA_SIZES,
    "head_dim": WIDE,
    "rope_parameters": default(1e7, partial_rotary_factor=0.25),
}
QWEN3_5_SPEC: dict[str, Any] = {
    **SPEC,
    "head_dim": WIDE,
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
            *rename((f"{MIXER}.query.weight", f"{MIXER}.gate.weight"), f"{ATTENTION}.q_proj.weight", Split((WIDE, WIDE), HEADS)),
            *rows(MIXER, ATTENTION, {"key.weight": "k_proj.weight", "value.weight": "v_proj.weight", "output.weight": "o_proj.weight"}),
            *plus_one(QUERY_KEY_NORM),
        ),
        1,
    ),
)

MISSING = {
    "Gemma 3n": (
        "https://huggingface.co/google/gemma-3n-E4B",
        "several streams of which a layer computes one and predicts the others, low-rank maps beside each attention, embeddings in every "
        "layer, layers that reuse earlier keys and values, and sparse hidden units",
    ),
    "Gemma 4": (
        "https://huggingface.co/google/gemma-4-e2b-it",
        "norms of values, keys that are values too, and a fixed factor for each layer; in the small ones embeddings in every layer, and "
        "layers that reuse earlier keys and values; in the mixture, a dense network with its own norms next to the experts",
    ),
    "Qwen4-Exp": (
        "https://huggingface.co/Qwen/Qwen4-Exp",
        "four residual streams that learned maps of low rank mix, embeddings of hashed n-grams in some layers, and an indexer that chooses "
        "the tokens to read",
    ),
    "DeepSeek-V4": (
        "https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash-Base",
        "attention to compressed blocks of tokens beside a window, some of which an indexer chooses; keys that are values too; and, in the "
        "first layers, experts that the token alone determines",
    ),
    "JetMoE": ("https://arxiv.org/abs/2404.07413", "a mixture of query and output projections in attention"),
    "ZAYA1": (
        "https://huggingface.co/Zyphra/ZAYA1-8B",
        "convolutions of queries and keys in attention, values that come half from the token before, and a router with a state over layers",
    ),
    "Doge": (
        "https://huggingface.co/SmallDoge/Doge-320M",
        "a bias of each key that depends on its value, by which attention also drops keys",
    ),
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
        note="Text only: its three sections of positions are then equal.",
    ),
    Family(
        name="Qwen3.5 (mixture of experts)",
        paper="https://huggingface.co/Qwen/Qwen3.5-35B-A3B",
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
        note="Text only, as for Qwen3.5.",
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
        note="The output of a mixture is normalised, that of attention is not, so such a layer is written as two.",
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
    *(Family(name=name, paper=paper, missing=missing) for name, (paper, missing) in MISSING.items()),
)
