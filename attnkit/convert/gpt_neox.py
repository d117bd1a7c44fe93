# https://arxiv.org/abs/2204.06745
"""GPT-NeoX and Pythia."""

from typing import Any

from attnkit.convert.family import Family, activation, feed_forward_fields
from attnkit.convert.fields import Fields
from attnkit.convert.gpt2 import FUSED
from attnkit.convert.llama import HEAD, tie
from attnkit.convert.renames import LAYER, Rename, Split, rename
from attnkit.convert.rotation import rotary_fields, rotation
from attnkit.registry import ConfigurationError

THEIRS = "gpt_neox.layers.{i}"


def spec(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose`."""
    fields.ignore("is_decoder", "attention_probs_dropout_prob", "hidden_dropout_prob")
    fields.require(is_encoder_decoder=False)
    is_parallel = fields.read("use_parallel_residual", bool, True)
    return {
        "stack": "decoder", "d_model": fields.read("hidden_size", int), "num_layers": fields.read("num_hidden_layers", int),
        "num_heads": fields.read("num_attention_heads", int), "attention": "scaled_dot_product", "position": position(fields),
        "norm": {"name": "layer_norm", "eps": fields.read("layer_norm_eps", float, 1e-5)},
        "feed_forward": {
            "name": "mlp", "ffn_dim": fields.read("intermediate_size", int), "activation": activation(fields, "hidden_act", "gelu"),
        },
        "residual": {"name": "parallel", "shared_norm": False} if is_parallel else "pre_norm",
        "dropout": fields.read("hidden_dropout", float, 0.0), "attention_dropout": fields.read("attention_dropout", float, 0.0),
        "bias": fields.read("attention_bias", bool, True), "embedding": {"name": "token", "scale": False},
        "tie": tie(fields, False), "vocab_size": fields.read("vocab_size", int),
    }  # fmt: skip


def position(fields: Fields) -> dict[str, Any]:
    """Return the spec of the positions, from `rope_parameters`, or `rotary_emb_base` and `rotary_pct` in older files."""
    rope, base, fraction = fields.section("rope_parameters"), *(fields.optional(x, float) for x in ("rotary_emb_base", "rotary_pct"))
    if rope and (base is not None or fraction is not None):
        raise ConfigurationError(f"{fields.source} has both rope_parameters and rotary_emb_base or rotary_pct: remove one of the two")
    fields.require(rope_scaling=None)
    return rotation(rope, base or 1e4, 0.25 if fraction is None else fraction)


def config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture."""
    layer = architecture["layers"][0]
    return {
        "hidden_size": architecture["d_model"], "num_hidden_layers": len(architecture["layers"]), "num_attention_heads": layer["num_heads"],
        **{name: value for name, value in rotary_fields(layer["position"], "rotary_emb_base").items() if name != "rope_scaling"},
        "rotary_pct": layer["position"].get("fraction", 1.0), "layer_norm_eps": layer["norm"].get("eps", 1e-5),
        **feed_forward_fields(layer), "use_parallel_residual": layer["residual"]["name"] == "parallel",
        "hidden_dropout": architecture["dropout"], "attention_dropout": layer["attention_dropout"],
        "attention_bias": bool(layer["biases"]), "tie_word_embeddings": architecture["tie"] == "output",
    }  # fmt: skip


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    heads, width = spec["num_heads"], spec["d_model"] // spec["num_heads"]
    attention = (
        *rename(FUSED, f"{THEIRS}.attention.query_key_value.*", Split((width,) * 3, heads)),
        *rename(f"{LAYER}.mixer.output.*", f"{THEIRS}.attention.dense.*"),
    )
    return (
        *rename("embedding.weight", "gpt_neox.embed_in.weight"),
        *rename("stack.decoder.final_norm.*", "gpt_neox.final_layer_norm.*"),
        *(row for row in attention if spec.get("bias", True) or row.ours[0].endswith("weight")),
        *rename(f"{LAYER}.feed_forward.input.*", f"{THEIRS}.mlp.dense_h_to_4h.*"),
        *rename(f"{LAYER}.feed_forward.output.*", f"{THEIRS}.mlp.dense_4h_to_h.*"),
        *rename(f"{LAYER}.mixer_residual.norm.*", f"{THEIRS}.input_layernorm.*"),
        *rename(f"{LAYER}.feed_forward_residual.norm.*", f"{THEIRS}.post_attention_layernorm.*"),
        *(HEAD if spec.get("tie", "none") == "none" else ()),
    )


UNREAD = ("*.attention.bias", "*.attention.masked_bias", "*.rotary_emb.inv_freq")
FAMILIES = {"gpt_neox": Family(spec, config, renames, "GPTNeoXForCausalLM", "gpt_neox.", UNREAD, {"embed_out.weight": "lm_head.weight"})}
