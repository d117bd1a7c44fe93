"""Fields of transformers' `config.json` and the equivalent spec options, each with a family and values that show it."""

import math
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any

from published.family import Family, Rename, rename

LAYER, THEIRS = "stack.decoder.layers.{i}", "model.layers.{i}"
SHORT = {"mixer": "multi_head", "norm": "rms_norm", "position": "rotary", "residual": "pre_norm", "head": "linear", "embedding": "token"}
"""The names of components that a spec leaves out."""


@dataclass(frozen=True)
class Field:
    """A field, and its option.

    Args:
        name: The field, and a value if only that one is meant.
        option: The spec option.
        family: The family that shows it.
        config: What changes in its configuration.
        spec: What changes in its spec: values by dotted paths, where None removes an option.
        added: Renames of the parameters that are new.
        dropped: Parts of our names whose renames go.
    """

    name: str
    option: str
    family: str
    config: Mapping[str, Any]
    spec: Mapping[str, Any] = field(default_factory=dict)
    added: tuple[Rename, ...] = ()
    dropped: tuple[str, ...] = ()

    def of(self, family: Family) -> Family:
        """Return the family with this field set."""
        spec = deepcopy(dict(family.spec))
        for path, value in self.spec.items():
            *outer, last = path.split(".")
            place = spec
            for key in outer:
                inner = place.get(key, SHORT.get(key))
                place[key] = {"name": inner} if isinstance(inner, str) else dict(inner)
                place = place[key]
            place[last] = value
            if value is None:
                del place[last]
        kept = tuple(row for row in family.renames if not any(part in name for part in self.dropped for name in row.ours))
        return replace(self.with_config(family), spec=spec, renames=(*kept, *self.added))

    def with_config(self, family: Family) -> Family:
        """Return the family with the field set only in its configuration."""
        return replace(family, config={**family.config, **self.config}, tolerance=max(family.tolerance, 1e-8))  # their GELU is rounded


def rope(kind: str, base: float = 1e4, **more: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": base, **more}}


def yarn(**more: Any) -> dict[str, Any]:
    return rope("yarn", factor=4.0, original_max_position_embeddings=64, **more)


def biases(**names: str) -> tuple[Rename, ...]:
    """Return the rows of biases, ours by the sublayer and the part."""
    return tuple(
        row for ours, theirs in names.items() for row in rename(f"{LAYER}.{ours.replace('__', '.')}.bias", f"{THEIRS}.{theirs}_proj.bias")
    )


YARN = {"name": "yarn", "factor": 4.0, "original_length": 64}
TEMPERATURE = {x: 1 + 0.1 * x * math.log(4.0) for x in (0.7, 1.2)}
WINDOW, SCALE = "`window: w`", "`attention: dot_product`, `mixer.scale:"
ATTENTION_BIASES = biases(mixer__query="self_attn.q", mixer__key="self_attn.k", mixer__value="self_attn.v", mixer__output="self_attn.o")

FIELDS = (
    *(
        Field(
            f"`hidden_act: {theirs}`",
            f"`feed_forward.activation: {ours}`",
            "Llama 2",
            {"hidden_act": theirs},
            {"feed_forward.activation": ours},
        )
        for theirs, ours in (
            ("gelu_new", "gelu_tanh"),
            ("gelu_pytorch_tanh", "gelu_tanh"),
            ("relu2", "relu_squared"),
            ("linear", "identity"),
        )
    ),
    Field(
        "`rms_norm_eps: e`",
        "`norm.eps: e`; also of `query_key_norm`",
        "OLMo 2",
        {"rms_norm_eps": 0.01},
        {"norm.eps": 0.01, "query_key_norm.eps": 0.01},
    ),
    Field(
        "`layer_norm_eps: e`, `layer_norm_epsilon`, `norm_epsilon`",
        "`norm.eps: e`",
        "StarCoder2",
        {"norm_epsilon": 0.01},
        {"norm": {"name": "layer_norm", "eps": 0.01}},
    ),
    Field("`num_key_value_heads: n`", "`num_kv_heads: n`", "Llama 2", {"num_key_value_heads": 4}, {"num_kv_heads": 4}),
    Field("`head_dim: n`", "`head_dim: n`", "Llama 2", {"head_dim": 8}, {"head_dim": 8}),
    Field("`attention_bias: true`", "`bias: true`", "Llama 2", {"attention_bias": True}, {"bias": True}, ATTENTION_BIASES),
    Field(
        "`mlp_bias: true`",
        "`feed_forward.bias: true`",
        "Llama 2",
        {"mlp_bias": True},
        {"feed_forward.bias": True},
        biases(feed_forward__gate="mlp.gate", feed_forward__input="mlp.up", feed_forward__output="mlp.down"),
    ),
    Field("`tie_word_embeddings: true`", "`tie: output`", "Llama 2", {"tie_word_embeddings": True}, {"tie": "output"}, dropped=("head.",)),
    Field("`rope_theta: b`", "`position.base: b`", "Llama 2", rope("default", 500.0), {"position.base": 500.0}),
    Field(
        "`partial_rotary_factor: f`, `rotary_pct`; `rotary_dim` (divided by the head's width)",
        "`position.fraction: f`",
        "Phi-3",
        rope("default", partial_rotary_factor=0.5),
        {"position.fraction": 0.5},
    ),
    Field(
        "`rope_type: linear`",
        "`position.scaling: {name: linear, factor: ...}`",
        "Llama 2",
        rope("linear", factor=3.0),
        {"position.scaling": {"name": "linear", "factor": 3.0}},
    ),
    Field(
        "`rope_type: llama3`",
        "`{name: llama3}` with `factor`, `original_length`, `low_turns` (`low_freq_factor`), `high_turns` (`high_freq_factor`)",
        "Llama 2",
        rope("llama3", factor=3.0, low_freq_factor=2.0, high_freq_factor=5.0, original_max_position_embeddings=64),
        {"position.scaling": {"name": "llama3", "factor": 3.0, "original_length": 64, "low_turns": 2.0, "high_turns": 5.0}},
    ),
    Field(
        "`rope_type: yarn`",
        "`{name: yarn}` with `factor`, `original_length`, `beta_fast`, `beta_slow`, `attention_factor`, `truncate`",
        "Llama 2",
        yarn(beta_fast=3, beta_slow=0.5, attention_factor=0.7, truncate=False),
        {"position.scaling": {**YARN, "beta_fast": 3.0, "beta_slow": 0.5, "attention_factor": 0.7, "truncate": False}},
    ),
    Field(
        "`mscale: m` and `mscale_all_dim: n` of YaRN",
        "`attention_factor:` (1 + 0.1 m ln factor) / (1 + 0.1 n ln factor)",
        "Llama 2",
        yarn(mscale=0.7, mscale_all_dim=1.2),
        {"position.scaling": {**YARN, "attention_factor": TEMPERATURE[0.7] / TEMPERATURE[1.2]}},
    ),
    Field(
        "`mscale_all_dim: n` of YaRN, in DeepSeek-V2 and V3",
        "also `mixer.scale:` (1 + 0.1 n ln factor)^2",
        "DeepSeek-V2",
        yarn(mscale=0.7, mscale_all_dim=1.2),
        {"position.scaling": {**YARN, "attention_factor": TEMPERATURE[0.7] / TEMPERATURE[1.2]}, "mixer.scale": TEMPERATURE[1.2] ** 2},
    ),
    Field(
        "`rope_type: longrope`",
        "`{name: longrope}` with `factors` (`short_factor`, or `long_factor` for longer texts), `original_length`, and as `factor`, "
        "`max_position_embeddings` divided by it",
        "Phi-3",
        {
            **rope("longrope", short_factor=[1.5, 2.5], long_factor=[3.0, 4.0], original_max_position_embeddings=32),
            "original_max_position_embeddings": 32,
        },
        {"position.scaling": {"name": "longrope", "factors": [1.5, 2.5], "factor": 2.0, "original_length": 32}},
    ),
    Field(
        "`rope_interleave: false`",
        "`position.interleaved: false`",
        "DeepSeek-V3",
        {"rope_interleave": False},
        {"position.interleaved": False},
    ),
    Field("`sliding_window: w`", WINDOW, "Mixtral", {"sliding_window": 4}, {"window": 4}),
    Field(
        "`use_sliding_window: true`, `max_window_layers: n`",
        "`window: w` in `layers`, after the first n",
        "Qwen2",
        {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
        {"layers": [{}, {"window": 4}]},
    ),
    Field(
        "`layer_types`",
        "`layers`, with `window: w` for `sliding_attention`",
        "Qwen3",
        {"use_sliding_window": True, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
        {"layers": [{"window": 4}, {}]},
    ),
    Field(
        "`layer_rope_theta`",
        "`position.base` in `layers`, with `position: none` for 0",
        "Granite Swash",
        {"layer_rope_theta": [500.0, 0]},
        {"layers": [{}, {"window": 4, "position": "none"}]},
    ),
    Field(
        "`local_attention: n` (ModernBERT)",
        "`window:` n / 2 + 1",
        "ModernBERT",
        {"local_attention": 8},
        {
            "layers": [
                {"norm": "none", "feed_forward": "none"},
                {"mixer": "none"},
                *[{"window": 5, "position": {"name": "rotary", "base": 10_000.0}}] * 2,
                {},
            ]
        },
    ),
    Field("`query_pre_attn_scalar: s`", f"{SCALE}` 1 / sqrt(s)", "Gemma 2", {"query_pre_attn_scalar": 7}, {"mixer.scale": 7**-0.5}),
    Field("`attention_multiplier: s`", f"{SCALE} s`", "Granite 3", {"attention_multiplier": 0.7}, {"mixer.scale": 0.7}),
    Field("`scale_attn_weights: false`", "`attention: dot_product`", "GPT-2", {"scale_attn_weights": False}, {"attention": "dot_product"}),
    Field(
        "`scale_attn_by_inverse_layer_idx: true`",
        "`mixer.scale:` 1 / n in layer n of `layers`, from 1",
        "GPT-2",
        {"scale_attn_by_inverse_layer_idx": True},
        {"layers": [{}, {"mixer": {"name": "multi_head", "scale": 0.5}}]},
    ),
    Field("`attn_logit_softcapping: c`", "`mixer.softcap: c`", "Gemma 2", {"attn_logit_softcapping": 2.0}, {"mixer.softcap": 2.0}),
    Field(
        "`final_logit_softcapping: c`, `logits_soft_cap`",
        "`head.softcap: c`",
        "Gemma 3",
        {"final_logit_softcapping": 1.0},
        {"head.softcap": 1.0},
    ),
    Field("`logits_scaling: s`", "`head.scale:` 1 / s", "Granite 3", {"logits_scaling": 3.0}, {"head.scale": 1 / 3}),
    Field("`logit_scale: s`", "`head.scale: s`", "Cohere Command R", {"logit_scale": 0.5}, {"head.scale": 0.5}),
    Field("`mup_enabled: true` (Trinity)", "`embedding.scale: true`", "Trinity", {"mup_enabled": False}, {"embedding.scale": False}),
    Field("`embedding_multiplier: s`", "`embedding.scale: s`", "Granite 3", {"embedding_multiplier": 3.0}, {"embedding.scale": 3.0}),
    Field("`scale_embedding: true`", "`embedding.scale: true`", "BART", {"scale_embedding": True}, {"embedding": "token"}),
    Field("`residual_multiplier: s`", "`residual.scale: s`", "Granite 3", {"residual_multiplier": 0.5}, {"residual.scale": 0.5}),
    Field(
        "`use_parallel_residual: true`, `parallel_attn`",
        "`residual: parallel`; with two norms, `shared_norm: false`",
        "StableLM",
        {"use_parallel_residual": True},
        {"residual": "parallel"},
        dropped=("feed_forward_residual",),
    ),
    Field(
        "`num_ln_in_parallel_attn: 1` (Falcon 2)",
        "`residual: parallel`",
        "Falcon 40B",
        {"num_ln_in_parallel_attn": 1},
        {"residual": "parallel"},
        rename(f"{LAYER}.mixer_residual.norm.*", "transformer.h.{i}.input_layernorm.*"),
        ("residual.norm",),
    ),
    Field(
        "`do_layer_norm_before: false`",
        "`residual: post_norm`",
        "OPT",
        {"do_layer_norm_before": False},
        {"residual": "post_norm"},
        dropped=("final_norm",),
    ),
    Field(
        "`qk_layernorm: true` (Phi)",
        "`query_key_norm: layer_norm`",
        "Phi-2",
        {"qk_layernorm": True},
        {"query_key_norm": "layer_norm"},
        tuple(row for x in ("query", "key") for row in rename(f"{LAYER}.mixer.{x}_norm.*", f"{THEIRS}.self_attn.{x[0]}_layernorm.*")),
    ),
    Field(
        "`llama_4_scaling_beta: b`, with `original_max_position_embeddings: n`",
        "`mixer.scale_growth: b`, `mixer.scale_growth_length: n`",
        "Ministral 3",
        rope("yarn", 1e6, factor=16.0, original_max_position_embeddings=2, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.3),
        {"mixer.scale_growth": 0.3, "mixer.scale_growth_length": 2, "position.scaling.original_length": 2},
    ),
    Field("`clip_qkv: c`", "`mixer.clip: c`", "OLMoE", {"clip_qkv": 0.5}, {"mixer.clip": 0.5}),
    Field(
        "`expert_selection_fn`",
        "`feed_forward.scores`",
        "Cohere Command A+",
        {"expert_selection_fn": "softmax"},
        {"feed_forward.scores": "softmax"},
    ),
    Field("`num_experts_per_tok: k`", "`feed_forward.top_k: k`", "Mixtral", {"num_experts_per_tok": 3}, {"feed_forward.top_k": 3}),
    Field("`norm_topk_prob`", "`feed_forward.normalize`", "Qwen3-MoE", {"norm_topk_prob": False}, {"feed_forward.normalize": False}),
    Field(
        "`routed_scaling_factor: s`", "`feed_forward.scale: s`", "DeepSeek-V3", {"routed_scaling_factor": 1.5}, {"feed_forward.scale": 1.5}
    ),
    Field(
        "`n_group: g`, `topk_group: t`",
        "`feed_forward.num_groups: g`, `top_groups: t`; neither if they are equal",
        "dots.llm1",
        {"n_group": 2, "topk_group": 1},
        {"feed_forward.num_groups": 2, "feed_forward.top_groups": 1},
    ),
    Field(
        "`rope_type: dynamic`, with `alpha: s` (HunYuan)",
        "`position.scaling: {name: ntk, factor: s}`",
        "HunYuan dense",
        rope("dynamic", factor=1.0, alpha=4.0),
        {"position.scaling.factor": 4.0},
    ),
    Field("`swiglu_limit: c`", "`limit: c` of the expert", "gpt-oss", {"swiglu_limit": 1.0}, {"feed_forward.expert.limit": 1.0}),
    Field(
        "`relative_attention_num_buckets: n`, `relative_attention_max_distance: d`",
        "`position.num_buckets: n`, `max_distance: d`",
        "T5",
        {"relative_attention_num_buckets": 4, "relative_attention_max_distance": 20},
        {"position.num_buckets": 4, "position.max_distance": 20},
    ),
)

NO_OPTION = {
    "`rope_type: dynamic` without `alpha`": (
        "`{name: ntk}` has a fixed factor; up to `max_position_embeddings`, the rotation is the plain one"
    ),
    "`apply_residual_connection_post_layernorm: true` (BLOOM)": "the stream that joins a sublayer is that before its norm",
    "`time_step_limit` (Mamba-2)": "steps have no bounds",
    "`use_bidirectional_attention: true` (Gemma 3)": "a decoder is causal",
    "`token_dropout: true` (ESM-2)": "mask tokens do not change the scale of embeddings",
    "positions of BERT's relatives, of BART and of Whisper in rows that are padded on the left": (
        "transformers numbers their padding too, unless it is told otherwise; attnkit numbers real tokens"
    ),
}
