"""Options of x-transformers, and the spec options that compute the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

D, DEPTH, HEADS, HEAD_DIM, LENGTH = 16, 2, 4, 8, 11
THEIRS: dict[str, Any] = {"dim": D, "depth": DEPTH, "heads": HEADS, "attn_dim_head": HEAD_DIM}
OURS: dict[str, Any] = {
    **{"d_model": D, "num_layers": DEPTH, "num_heads": HEADS, "head_dim": HEAD_DIM, "bias": False, "position": "none"},
    **{"norm": {"name": "layer_norm", "bias": False}, "feed_forward": {"name": "mlp", "activation": "gelu"}},
}
"""What x-transformers does by default, without its absolute positions."""
WRAPPER = ("use_abs_pos_emb", "post_emb_norm", "tie_embedding")
"""The arguments of `TransformerWrapper`; the others are those of `Decoder` and `Encoder`."""


@dataclass(frozen=True)
class Option:
    """Options of x-transformers and of a spec that compute the same, given the same weights.

    Args:
        theirs: What is set there.
        ours: What is set here.
        note: What differs in convention, for readers.
        hidden: Options of ours that the table does not show.
        stack: The stack of both.
    """

    theirs: Mapping[str, Any]
    ours: Mapping[str, Any]
    note: str = ""
    hidden: Mapping[str, Any] | None = None
    stack: str = "decoder"

    @property
    def name(self) -> str:
        """Their options as code."""
        return ", ".join(f"{name}={value!r}" for name, value in self.theirs.items())

    @property
    def here(self) -> str:
        """Our options as YAML."""
        return yaml.safe_dump(dict(self.ours), sort_keys=False, default_flow_style=True, width=1000).strip()[1:-1]


def mixer(**options: Any) -> dict[str, Any]:
    return {"mixer": {"name": "multi_head", **options}}


def glu(**options: Any) -> dict[str, Any]:
    return {"feed_forward": {"name": "glu", "ffn_dim": 4 * D, **options}}


ROTARY = {"rotary_pos_emb": True, "rotary_emb_dim": HEAD_DIM}
INTERLEAVED = {"name": "rotary", "interleaved": True}
HALF = {"name": "pre_norm", "scale": 0.5}
OPTIONS = [
    Option(
        {"use_abs_pos_emb": True},
        {"position": {"name": "learned", "max_length": 64}},
        "the default there, where the table is multiplied by `dim`^-0.5; it stays on with `alibi_pos_bias` or `attn_use_cope`, where "
        "a model has one position encoding here",
    ),
    Option(
        {"rotary_pos_emb": True},
        {"position": {**INTERLEAVED, "fraction": 0.5}},
        "by default, half of a head's channels rotate there, as neighbouring pairs; here all do, in pairs of the two halves",
    ),
    Option(ROTARY, {"position": INTERLEAVED}, "all channels: `rotary_emb_dim` is `attn_dim_head`"),
    Option(
        {**ROTARY, "rotary_xpos": True, "rotary_xpos_scale_base": 16},
        {"position": {"name": "xpos", "interleaved": True, "scale_base": 16.0, "max_length": 64}},
        "all channels; with `attn_num_mem_kv`, scores of memory keys depend there on the length, here they are refused",
    ),
    Option({**ROTARY, "rotary_interpolation_factor": 4.0}, {"position": {**INTERLEAVED, "scaling": {"name": "linear", "factor": 4.0}}}),
    Option({**ROTARY, "rotary_base_rescale_factor": 4.0}, {"position": {**INTERLEAVED, "scaling": {"name": "ntk", "factor": 4.0}}}),
    Option({"alibi_pos_bias": True}, {"position": "alibi"}),
    Option(
        {"rel_pos_bias": True, "rel_pos_num_buckets": 8, "rel_pos_max_distance": 10},
        {"position": {"name": "relative", "num_buckets": 8, "max_distance": 10}},
        "there the table is multiplied by the square root of `attn_dim_head`",
    ),
    Option(
        {"attn_use_cope": True, "attn_cope_max_pos": 6},
        {"position": {"name": "cope", "max_count": 6}, "shared_positions": False},
        "there each layer has its own vectors",
    ),
    Option(
        {"attn_qk_norm": True}, {"attention": {"name": "cosine", "initial_scale": 10.0}}, "there the scale is fixed, here learned per head"
    ),
    Option(
        {"attn_qk_rmsnorm": True},
        {"query_key_norm": {"name": "rms_norm", "eps": 0.0}},
        "there each head has its own weights, here all heads share them; equal if those are",
    ),
    Option(
        {"attn_softclamp_logits": True, "attn_logit_softclamp_value": 2.0}, mixer(softcap=2.0), "there after position biases, here before"
    ),
    Option(
        {"attn_pre_talking_heads": True, "attn_post_talking_heads": True},
        mixer(talking_heads=True),
        "there the mixed scores are added to the unmixed ones, so scores are initially twice as large",
    ),
    Option({"attn_gate_values": True}, mixer(gate="channel")),
    Option({"attn_gate_values": True, "attn_gate_values_headwise": True}, mixer(gate="head")),
    Option(
        {"attn_gate_value_heads": True}, mixer(gate="head", biases=["gate"]), "there the bias starts at 10: open", hidden={"bias": None}
    ),
    Option({"attn_data_dependent_alibi": True}, mixer(forget_gate=True), "there the bias starts at 5: little is forgotten"),
    Option({"attn_num_mem_kv": 3}, mixer(memory_keys=3)),
    Option({"attn_add_zero_kv": True}, mixer(normalizer="softmax_off_by_one")),
    Option({"attn_head_learned_sink": True}, mixer(normalizer="softmax_with_sink")),
    Option(
        {"attn_sigmoid": True}, mixer(normalizer={"name": "sigmoid", "bias": 0.0}), "without `bias: 0`, here -log(keys), as in the paper"
    ),
    Option(
        {"add_value_residual": True, "learned_value_residual_mix": False},
        mixer(value_residual=0.5),
        "here the factor is learned per layer; with `learned_value_residual_mix`, the default there, per token and head",
    ),
    Option(
        {"attn_kv_heads": 2},
        {"num_kv_heads": 2},
        "there query head h reads key head h mod 2, here floor(h / 2), as in Llama: ALiBi's slopes belong to other heads",
    ),
    Option({"attn_one_kv_head": True}, {"num_kv_heads": 1}),
    Option({"attn_max_attend_past": 3}, {"window": 4}, "there the token itself does not count; in an encoder, it bounds only the past"),
    Option({"ff_swish": True}, {"feed_forward": {"name": "mlp", "activation": "silu"}}),
    Option({"ff_relu_squared": True}, {"feed_forward": {"name": "mlp", "activation": "relu_squared"}}),
    Option({"ff_no_bias": True}, {"feed_forward": {"name": "mlp", "activation": "gelu", "bias": False}}),
    Option({"ff_glu": True}, glu(activation="gelu", bias=True), "there `ff_no_bias` leaves the biases of the first map"),
    Option({"ff_glu": True, "ff_swish": True}, glu(activation="silu", bias=True)),
    Option({"use_rmsnorm": True}, {"norm": {"name": "rms_norm", "eps": 0.0}}),
    Option({"use_simple_rmsnorm": True}, {"norm": {"name": "rms_norm", "eps": 0.0, "learned": False}}),
    Option(
        {"use_dynamic_tanh": True}, {"norm": {"name": "dynamic_tanh", "alpha": 1.0}}, "there it starts at 1, here at 0.5, as in the paper"
    ),
    Option({"post_emb_norm": True}, {"embedding_norm": True}),
    Option({"pre_norm": False}, {"residual": "post_norm"}),
    Option({"pre_norm_has_final_norm": False}, {"final_norm": False}),
    Option({"sandwich_norm": True}, {"residual": "sandwich_norm"}, "not `sandwich_coef`, which reorders layers"),
    Option({"use_layerscale": True, "layerscale_init_value": 0.1}, {"residual": "layer_scale"}, "there it starts at 0 by default"),
    Option({"depth_scale_residual": 0.5}, {"residual": HALF}),
    Option(
        {"pre_norm": False, "scale_residual_constant": (2 * DEPTH) ** 0.25},
        {"residual": "deep_norm"},
        "(2 `depth`)^0.25; here (3 `num_layers`)^0.25 in a decoder with a memory",
    ),
    Option(
        {"macaron": True},
        {"layers": [{"mixer": "none", "residual": {**HALF}}, {"feed_forward": "none"}, {"mixer": "none", "residual": {**HALF}}]},
        "here `num_layers` counts all three",
        hidden={"num_layers": 3 * DEPTH},
    ),
    Option(
        {"sandwich_coef": 1},
        {"layers": [{"feed_forward": "none"}, {}, {"mixer": "none"}]},
        "here `num_layers` is `depth` + 1",
        hidden={"num_layers": DEPTH + 1},
    ),
    Option({"weight_tie_layers": True}, {"layers": [{"share": True}]}),
    Option({"only_attn": True}, {"feed_forward": "none"}),
    Option(
        {"tie_embedding": True},
        {"tie": "output", "head": {"name": "linear", "scale": D**-0.5}},
        "`scale` is `dim`^-0.5; none with `tie_embedding_scale=1`",
    ),
    Option({}, {}, stack="encoder"),
    Option({}, {}, stack="encoder_decoder"),
]

"""The rows of the page."""

TOGETHER = [
    Option(
        {**ROTARY, "attn_kv_heads": 2, "attn_num_mem_kv": 3, "attn_qk_norm": True, "attn_gate_values": True, "attn_max_attend_past": 3},
        {"position": INTERLEAVED, "num_kv_heads": 2, "attention": "cosine", "window": 4, **mixer(memory_keys=3, gate="channel")},
    ),
    Option(
        {"attn_kv_heads": 2, "attn_head_learned_sink": True, "attn_softclamp_logits": True, "attn_logit_softclamp_value": 2.0, **ROTARY},
        {"num_kv_heads": 2, "position": INTERLEAVED, **mixer(normalizer="softmax_with_sink", softcap=2.0)},
    ),
    Option(
        {
            "alibi_pos_bias": True,
            "attn_num_mem_kv": 3,
            "attn_add_zero_kv": True,
            "attn_pre_talking_heads": True,
            "attn_post_talking_heads": True,
        },
        {"position": "alibi", **mixer(memory_keys=3, normalizer="softmax_off_by_one", talking_heads=True)},
    ),
    Option(
        {"rel_pos_bias": True, "rel_pos_num_buckets": 8, "rel_pos_max_distance": 10, "attn_head_learned_sink": True, "attn_num_mem_kv": 3},
        {
            **{"position": {"name": "relative", "num_buckets": 8, "max_distance": 10}},
            **{"mixer": {"name": "multi_head", "normalizer": "softmax_with_sink", "memory_keys": 3}},
        },
        stack="encoder",
    ),
    Option(
        {"rotary_pos_emb": True, "attn_num_mem_kv": 3, "attn_softclamp_logits": True, "attn_logit_softclamp_value": 2.0},
        {
            **{"position": {**INTERLEAVED, "fraction": 0.5}, **mixer(memory_keys=3, softcap=2.0)},
            **{"cross_mixer": {"name": "multi_head", "memory_keys": 3, "softcap": 2.0}},
        },
        stack="encoder_decoder",
    ),
]
"""Options that meet in one attention; not on the page."""

DIFFERENT = {
    "attn_hybrid_module": "averages normed outputs inside attention; `parallel` adds the outputs of whole mixers",
    "attn_use_latent_kv": "no norms of latent vectors, and whole heads rotate; `latent_attention` is DeepSeek's",
    "learned_value_residual_mix": "a factor for each token and head; that of `value_residual` is one per layer",
    "num_residual_streams": "weights of each stream, as in `hyper_connections`, but bounded as in `manifold_hyper_connections`",
    "scaled_sinu_pos_emb": "a learned factor of all positions; `sinusoidal` has none",
    "softclamp_output": "bounds the stream before the final norm; Gemma 2's bound of logits is `head: {name: linear, softcap: 30.0}`",
    "unet_skips": "a linear map of both streams; `skips` adds one, times a learned number",
}
"""Options for which there is a similar one that computes something else."""
ABSENT = (
    *("alibi_num_heads", "attn_aggregated_residuals", "attn_cog_signed", "attn_gumbel_softmax", "attn_hard"),
    *("attn_head_scale", "attn_k_rmsnorm", "attn_l2_distance", "attn_laser", "attn_on_attn", "attn_orthog_projected_values"),
    *("attn_output_gate", "attn_pre_scale_post_talking_heads", "attn_qk_norm_dim_scale", "attn_qk_norm_groups", "attn_selective"),
    *("attn_sparse_topk", "attn_swiglu_values", "attn_use_rel_proj_pos_bias", "attn_value_dim_head", "attn_value_rmsnorm"),
    *("dynamic_pos_bias", "emb_dim", "ff_glu_softclamp", "ff_post_act_ln", "ff_solu", "gate_residual", "gated_multi_residual"),
    *("integrate_layers", "l2norm_embed", "layer_dropout", "looped", "max_mem_len", "mixture_of_softmax", "mv_split_residual"),
    *("num_memory_tokens", "orthog_residual", "polar_pos_emb", "pre_and_post_norm", "recycling", "reinject_input", "residual_attn"),
    *("scale_residual", "shift_tokens", "use_adaptive_layernorm", "use_derf", "use_scalenorm"),
)
"""Options without a counterpart."""
