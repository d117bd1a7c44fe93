"""Decoders of 2025 and 2026 with local layers: Trinity, K-EXAONE, Granite Swash, Mellum 2, Command A+, Flint, LFM3,
Laguna, MiMo-V2-Flash, Kolibri; and an encoder."""

from collections.abc import Sequence
from typing import Any

from published.families.deepseek import DENSE, MIXTURE, ROUTED, SIGMOID, YARN
from published.families.hybrids import MIXER
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
from published.families.newest import ATTENTION, COUNTED, GLU, MLP, NARROW, SHARED_EXPERT, default
from published.families.short_convolutions import SHORT
from published.family import Family, Rename, Reshape, Scale, Split, columns, rename, transpose
from published.sizes import without

LOCAL = {"sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
SINK = rename(f"{MIXER}.attention.normalizer.sink", f"{ATTENTION}.sinks")


def sandwich(mixer: tuple[str, str], feed_forward: tuple[str, str]) -> tuple[Rename, ...]:
    """Return the rows of the norms before and after both sublayers."""
    return tuple(
        row
        for kind, names in (("mixer", mixer), ("feed_forward", feed_forward))
        for side, name in zip(("input", "output"), names, strict=True)
        for row in rename(f"{LAYER}.{kind}_residual.{side}_norm.weight", f"model.layers.{{i}}.{name}.weight")
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


def fused(ours: Sequence[str], theirs: str, inputs: int, outputs: int) -> tuple[Rename, ...]:
    """Return the rows of the weights and biases of maps of experts, which are transposed and one tensor there."""
    height = len(ours) // EXPERTS * outputs
    stacked, split = Reshape((-1, inputs), (EXPERTS, height, inputs)), Split((outputs,) * len(ours))
    return (
        *rename(tuple(f"{name}.weight" for name in ours), theirs, transpose(1, 2), stacked, split),
        *rename(tuple(f"{name}.bias" for name in ours), f"{theirs}_bias", Reshape((-1,), (EXPERTS, height)), split),
    )


ENCODER = "stack.encoder.layers.{i}"
FUSED = tuple(f"{ENCODER}.feed_forward.experts.{e}.{part}" for e in range(EXPERTS) for part in ("gate", "input"))
DOWN = tuple(f"{ENCODER}.feed_forward.experts.{e}.output" for e in range(EXPERTS))
FILTER = (
    *rename("embedding.weight", "embed_tokens.weight"),
    *rename("stack.encoder.final_norm.weight", "norm.weight"),
    *(
        row
        for x in ("query", "key", "value", "output")
        for row in rename(f"{ENCODER}.mixer.{x}.*", f"layers.{{i}}.self_attn.{x[0]}_proj.*")
    ),
    *rename(f"{ENCODER}.mixer.attention.normalizer.sink", "layers.{i}.self_attn.sinks"),
    *rename(f"{ENCODER}.mixer_residual.norm.weight", "layers.{i}.input_layernorm.weight"),
    *rename(f"{ENCODER}.feed_forward_residual.norm.weight", "layers.{i}.post_attention_layernorm.weight"),
    *rename(f"{ENCODER}.feed_forward.router.*", "layers.{i}.mlp.router.*"),
    *fused(FUSED, "layers.{i}.mlp.experts.gate_up_proj", D, F),
    *fused(DOWN, "layers.{i}.mlp.experts.down_proj", F, D),
)

FAMILIES = (
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
            *rename(f"{MIXER}.gate.weight", f"{ATTENTION}.gate_proj.weight"),
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
        name="Mellum 2",
        paper="https://huggingface.co/JetBrains/Mellum2-12B-A2.5B-Base",
        theirs=("MellumConfig", "MellumForCausalLM"),
        config={
            **SIZES,
            **COUNTED,
            **LOCAL,
            "head_dim": 8,
            "rope_parameters": {
                "sliding_attention": default(1e4),
                "full_attention": {**YARN, "rope_theta": 5e5, "original_max_position_embeddings": 4096},
            },
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "query_key_norm": "rms_norm",
            "layers": [
                {"window": 4},
                {"position": {"name": "rotary", "base": 5e5, "scaling": {"name": "yarn", "factor": 4.0, "original_length": 4096}}},
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
    Family(
        name="Laguna",
        paper="https://huggingface.co/poolside/laguna-XS.2",
        theirs=("LagunaConfig", "LagunaForCausalLM"),
        config={
            **SIZES,
            **COUNTED,
            "head_dim": 8,
            "shared_expert_intermediate_size": F,
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"],
            "num_attention_heads_per_layer": [HEADS, 2 * HEADS],
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {"full_attention": default(5e5, partial_rotary_factor=0.5), "sliding_attention": default(1e4)},
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "query_key_norm": "rms_norm",
            "mixer": {"name": "multi_head", "gate": "head", "gate_activation": "softplus"},
            "layers": [
                {"position": {"name": "rotary", "base": 5e5, "fraction": 0.5}, "feed_forward": GLU},
                {"position": {"name": "rotary", "base": 1e4}, "num_heads": 2 * HEADS, "window": 4},
            ],
            "feed_forward": mixture(shared=NARROW, **SIGMOID),
        },
        renames=(
            *PLAIN,
            *QUERY_KEY_NORM,
            *rows(MIXER, ATTENTION, {"gate.weight": "g_proj.weight"}),
            *at(glu(MLP), 0),
            *at((*experts(), *SHARED, *CORRECTION), 1),
        ),
    ),
    Family(
        name="MiMo-V2-Flash",
        paper="https://huggingface.co/XiaomiMiMo/MiMo-V2-Flash",
        theirs=("MiMoV2FlashConfig", "MiMoV2FlashForCausalLM"),
        config={
            **SIZES,
            **without(ROUTED, "n_routed_experts"),
            "num_local_experts": EXPERTS,
            "num_key_value_heads": 2,
            "head_dim": 12,
            "v_head_dim": 8,
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {
                "full_attention": default(5e6, partial_rotary_factor=0.334),
                "sliding_attention": default(1e4, partial_rotary_factor=0.334),
            },
        },
        spec={
            **SPEC,
            "head_dim": 12,
            "num_kv_heads": 2,
            "norm": EPS,
            "position": {"name": "rotary", "base": 5e6, "fraction": 0.334},
            "mixer": {"name": "multi_head", "value_dim": 8},
            "layers": [
                {"feed_forward": GLU},
                {
                    "position": {"name": "rotary", "base": 1e4, "fraction": 0.334},
                    "mixer": {"name": "multi_head", "value_dim": 8, "normalizer": "softmax_with_sink"},
                    "num_kv_heads": HEADS,
                    "window": 4,
                },
            ],
            "feed_forward": mixture(**SIGMOID),
        },
        renames=(
            *outside(),
            *norms(),
            *rows(MIXER, ATTENTION, {f"{x}.weight": f"{x[0]}_proj.weight" for x in ("query", "key", "output")}),
            *rename(f"{MIXER}.value.weight", f"{ATTENTION}.v_proj.weight", Scale(0.707)),
            *at(glu(MLP), 0),
            *at(
                (*rows(MIXER, ATTENTION, {"attention.normalizer.sink": "sinks"}), *experts(), *CORRECTION),
                1,
            ),
        ),
        note="The fixed factor of values, 0.707, becomes part of their weights.",
    ),
    Family(
        name="Kolibri 1",
        paper="https://huggingface.co/Aleph-Alpha/Kolibri-1",
        theirs=("Kolibri1Config", "Kolibri1ForCausalLM"),
        config={
            **without(SIZES, "intermediate_size"),
            **without(COUNTED, "intermediate_size"),
            "head_dim": 8,
            "shared_expert_intermediate_size": F,
            "sliding_window": 4,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": default(1e4),
        },
        spec={
            **SPEC,
            "head_dim": 8,
            "residual": "sandwich_norm",
            "query_key_norm": "rms_norm",
            "layers": [{"window": 4}, {"position": "none"}],
            "feed_forward": mixture(shared=NARROW, normalize=False, **SIGMOID, bias_to="logits"),
        },
        renames=(
            *outside(),
            *attention(),
            *QUERY_KEY_NORM,
            *sandwich(("input_layernorm", "post_self_attn_layernorm"), ("post_attention_layernorm", "post_mlp_layernorm")),
            *experts(),
            *SHARED,
            *CORRECTION,
        ),
    ),
    Family(
        name="OpenAI Privacy Filter",
        paper="https://huggingface.co/openai/privacy-filter",
        theirs=("OpenAIPrivacyFilterConfig", "OpenAIPrivacyFilterModel"),
        config={
            **SIZES,
            "head_dim": 8,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOP,
            "sliding_window": 4,
            "attention_bias": True,
            "swiglu_limit": 0.5,
            "rope_parameters": {**YARN, "rope_theta": 150_000.0, "truncate": False},
        },
        spec={
            **without(SPEC, "bias"),
            "stack": "encoder",
            "head_dim": 8,
            "norm": EPS,
            "window": 5,
            "position": {
                "name": "rotary",
                "interleaved": True,
                "base": 150_000.0,
                "scaling": {"name": "yarn", "factor": 4.0, "original_length": 16, "truncate": False},
            },
            "mixer": {"name": "multi_head", "normalizer": "softmax_with_sink"},
            "feed_forward": mixture(
                router_bias=True,
                expert={**NARROW, "bias": True, "activation": "quick_gelu", "limit": 0.5, "offset": 1.0},
            ),
        },
        renames=FILTER,
        output="last_hidden_state",
        padding="right",
        note="gpt-oss as an encoder, without its head. `window` is `sliding_window` + 1. The limit is smaller than the published 7.",
    ),
)
