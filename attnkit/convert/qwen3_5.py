# https://huggingface.co/Qwen/Qwen3.5-27B
"""Dense Qwen3.5: layers with the gated delta rule, and some with gated attention."""

from dataclasses import replace
from typing import Any

from attnkit.convert.family import Family
from attnkit.convert.fields import Fields
from attnkit.convert.gemma import offset_by_one
from attnkit.convert.llama import FULL, GLU, NORMS, OUTSIDE, QUERY_KEY_NORM, THEIRS, UNREAD, glu, head, rows, sizes, tie, with_layers
from attnkit.convert.renames import LAYER, Rename, Split, rename, squeeze
from attnkit.convert.rotation import rotation
from attnkit.registry import ConfigurationError

LINEAR = "linear_attention"
DELTA = (
    *rows("mixer.", "linear_attn.", {
        "log_rate": "A_log", "decay_bias": "dt_bias", "input.weight": "in_proj_qkv.weight", "gate.weight": "in_proj_z.weight",
        "beta.weight": "in_proj_b.weight", "decay.weight": "in_proj_a.weight", "norm.weight": "norm.weight",
        "output.weight": "out_proj.weight",
    }),
    *rename(f"{LAYER}.mixer.convolution.weight", f"{THEIRS}.linear_attn.conv1d.weight", squeeze()),
)  # fmt: skip
ATTENTION = rows("mixer.", "self_attn.", {f"{x}.weight": f"{x[0]}_proj.weight" for x in ("key", "value", "output")})


def spec(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose`."""
    rope, every = fields.section("rope_parameters"), fields.read("full_attention_interval", int, 4)
    rope.ignore("mrope_section", "mrope_interleaved")  # sections of positions, which coincide for text
    fields.require(attention_bias=False, attn_output_gate=True, hidden_act="silu", mlp_only_layers=[])
    fields.ignore("mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype")
    norm = {"name": "rms_norm", "eps": fields.read("rms_norm_eps", float, 1e-6)}
    found = {
        **sizes(fields), "position": rotation(rope, 1e4, fields.read("partial_rotary_factor", float, 0.25)), "norm": norm,
        "feed_forward": glu(fields, "intermediate_size"), "tie": tie(fields, False),
    }  # fmt: skip
    kinds = fields.optional("layer_types", list) or [FULL if (i + 1) % every == 0 else LINEAR for i in range(found["num_layers"])]
    if len(kinds) != found["num_layers"] or any(kind not in (LINEAR, FULL) for kind in kinds):
        raise ConfigurationError(f"{fields.source}: layer_types must have {LINEAR} or {FULL} for each of {found['num_layers']} layers")
    key_heads, heads = fields.read("linear_num_key_heads", int, 16), fields.read("linear_num_value_heads", int, 32)
    delta = {
        "name": "gated_delta", "num_key_heads": key_heads, "key_dim": key_heads * fields.read("linear_key_head_dim", int, 128),
        "value_dim": heads * fields.read("linear_value_head_dim", int, 128),
        "kernel_size": fields.read("linear_conv_kernel_dim", int, 4), "eps": norm["eps"],
    }  # fmt: skip
    attention = {"query_key_norm": norm, "mixer": {"name": "multi_head", "gate": "channel"}}
    found = {"head_dim": found["d_model"] // found["num_heads"], **found}
    return with_layers(found, [{"num_heads": heads, "mixer": delta} if kind == LINEAR else attention for kind in kinds])


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    entries = spec.get("layers", [{**spec, "repeat": spec["num_layers"]}])
    mixers = [entry["mixer"]["name"] for entry in entries for _ in range(entry["repeat"])]
    names = tuple(f"{LAYER}.mixer.{x}.weight" for x in ("query", "gate"))
    gated = rename(names, f"{THEIRS}.self_attn.q_proj.weight", Split((spec["head_dim"],) * 2, spec["num_heads"]))
    kinds = {"gated_delta": DELTA, "multi_head": (*gated, *ATTENTION, *offset_by_one(*QUERY_KEY_NORM))}
    layers = (row.at(i) for i, mixer in enumerate(mixers) for row in kinds[mixer])
    return (*offset_by_one(*OUTSIDE, *NORMS), *GLU, *head(spec), *layers)


def within(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames of the text model inside a model that also reads images."""
    inside = "model.language_model."
    return tuple(replace(row, theirs=tuple(name.replace("model.", inside, 1) for name in row.theirs)) for row in renames(spec))


FAMILIES = {
    "qwen3_5_text": Family(spec, None, renames, "Qwen3_5ForCausalLM", "model.", (*UNREAD, "mtp.*")),
    "qwen3_5": Family(
        spec, None, within, "Qwen3_5ForConditionalGeneration", "model.", (*UNREAD, "mtp.*", "model.visual.*"), part="text_config",
        others=("vision_config", "image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    ),
}  # fmt: skip
