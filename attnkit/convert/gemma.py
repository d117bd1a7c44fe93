# https://arxiv.org/abs/2408.00118
"""Gemma 2 and 3."""

from typing import Any

from attnkit.convert import llama
from attnkit.convert.family import Family, feed_forward_fields
from attnkit.convert.fields import Fields
from attnkit.convert.renames import Rename, add
from attnkit.convert.rotation import rotary, rotary_fields, rotations

SANDWICH = llama.rows("", "", {
    "mixer_residual.input_norm.weight": "input_layernorm.weight", "mixer_residual.output_norm.weight": "post_attention_layernorm.weight",
    "feed_forward_residual.input_norm.weight": "pre_feedforward_layernorm.weight",
    "feed_forward_residual.output_norm.weight": "post_feedforward_layernorm.weight",
})  # fmt: skip


def offset_by_one(*rows: Rename) -> tuple[Rename, ...]:
    """Return the renames, for norms whose weights are stored minus one."""
    return tuple(Rename(row.ours, row.theirs, (add(1.0),)) if any("norm.weight" in name for name in row.ours) else row for row in rows)


def read(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` that are read alike for both families."""
    spec = {
        **llama.sizes(fields), "norm": {"name": "rms_norm", "eps": fields.read("rms_norm_eps", float, 1e-6)}, "residual": "sandwich_norm",
        "attention": "dot_product", "feed_forward": llama.glu(fields, "intermediate_size", "hidden_activation", "gelu_pytorch_tanh"),
        "embedding": {"name": "token"}, "tie": llama.tie(fields, True),
    }  # fmt: skip
    fields.require(use_bidirectional_attention=False)
    biases = llama.PROJECTIONS if fields.read("attention_bias", bool, False) else ()
    return llama.with_mixer(llama.with_biases(spec, biases), scale=fields.positive("query_pre_attn_scalar", 256.0) ** -0.5)


def capped(spec: dict[str, Any], cap: float | None) -> dict[str, Any]:
    """Add a soft cap on logits to a spec."""
    return spec if cap is None else {**spec, "head": {"name": "linear", "softcap": cap}}


def gemma2(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Gemma 2 model."""
    spec = capped({**read(fields), "position": rotary(fields)}, fields.optional("final_logit_softcapping", float, 30.0))
    fields.ignore("hidden_act", "sliding_window_size")
    if (cap := fields.optional("attn_logit_softcapping", float, 50.0)) is not None:
        spec = llama.with_mixer(spec, softcap=cap)
    window = fields.optional("sliding_window", int, 4096)
    return llama.with_layers(spec, llama.windows(fields, spec["num_layers"], window, lambda i: i % 2 == 0))


def gemma3_text(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Gemma 3 model, whose layers with and without a window use different rotary bases."""
    spec = capped(read(fields), fields.optional("final_logit_softcapping", float))
    fields.require(attn_logit_softcapping=None)
    local, far = rotations(fields, 1e6, "rope_theta", "rope_local_base_freq", "rope_scaling")
    fields.ignore("_sliding_window_pattern")
    window, every = fields.optional("sliding_window", int, 4096), fields.read("sliding_window_pattern", int, 6)
    kinds = llama.windows(fields, spec["num_layers"], window, lambda i: (i + 1) % every != 0)
    spec = {**spec, "position": local, "query_key_norm": spec["norm"]}
    return llama.with_layers(spec, [kind or {"position": far} for kind in kinds])


def config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that are written alike for both families."""
    layer, kinds = architecture["layers"][0], llama.windows_fields(architecture)
    return {
        **llama.sizes_fields(architecture), **feed_forward_fields(layer, name="hidden_activation"),
        "rms_norm_eps": layer["norm"].get("eps", 1e-6), "attention_bias": bool(layer["biases"]),
        "query_pre_attn_scalar": round(layer["mixer"]["scale"] ** -2),  # transformers accepts only integers
        "final_logit_softcapping": architecture["head"].get("softcap"),
        "layer_types": kinds["layer_types"],
        **({"sliding_window": kinds["sliding_window"]} if kinds["sliding_window"] else {}),  # transformers requires a number, never null
    }  # fmt: skip


def gemma2_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Gemma 2 model."""
    return {**config(architecture), "attn_logit_softcapping": architecture["layers"][0]["mixer"]["softcap"]}


def gemma3_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of a Gemma 3 model."""
    local, far = ([layer for layer in architecture["layers"] if bool(layer["window"]) is is_local] for is_local in (True, False))
    rotation = rotary_fields(far[0]["position"]) if far else {}
    base = rotary_fields(local[0]["position"], "rope_local_base_freq")["rope_local_base_freq"] if local else 1e4
    return {**config(architecture), "rope_theta": 1e6, **rotation, "rope_local_base_freq": base}


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    return offset_by_one(*llama.body(spec), *llama.GLU, *SANDWICH)


FAMILIES = {
    "gemma2": Family(gemma2, gemma2_fields, renames, "Gemma2ForCausalLM", "model.", llama.UNREAD),
    "gemma3_text": Family(gemma3_text, gemma3_fields, renames, "Gemma3ForCausalLM", "model.", llama.UNREAD),
}
