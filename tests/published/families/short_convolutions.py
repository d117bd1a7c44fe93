"""Hybrids of short convolutions and attention: LFM2."""

from published.families.hybrids import ATTENTION, MIXER
from published.families.mixtral import (
    EPS,
    EXPERTS,
    LAYER,
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
from published.family import Family, columns, rename

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
)
