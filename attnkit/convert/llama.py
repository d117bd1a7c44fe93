# https://arxiv.org/abs/2302.13971
"""Llama, and the families with its names: Mistral, Qwen2, Qwen3."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from attnkit.convert.family import Family, activation
from attnkit.convert.fields import Fields
from attnkit.convert.renames import Rename, rename
from attnkit.registry import ConfigurationError

LAYER = "stack.decoder.layers.{i}"
PROJECTIONS = ("query", "key", "value", "output")
OUTSIDE = (
    *rename("embedding.weight", "model.embed_tokens.weight"),
    *rename("stack.decoder.final_norm.weight", "model.norm.weight"),
)
HEAD = rename("head.projection.weight", "lm_head.weight")
NORMS = (
    *rename(f"{LAYER}.mixer_residual.norm.weight", "model.layers.{i}.input_layernorm.weight"),
    *rename(f"{LAYER}.feed_forward_residual.norm.weight", "model.layers.{i}.post_attention_layernorm.weight"),
)
QUERY_KEY_NORM = tuple(
    row for x in ("query", "key") for row in rename(f"{LAYER}.mixer.{x}_norm.weight", f"model.layers.{{i}}.self_attn.{x[0]}_norm.weight")
)
GLU = tuple(
    row
    for ours, theirs in (("gate", "gate"), ("input", "up"), ("output", "down"))
    for row in rename(f"{LAYER}.feed_forward.{ours}.weight", f"model.layers.{{i}}.mlp.{theirs}_proj.weight")
)


def projections(kind: str, names: Sequence[str] = PROJECTIONS) -> tuple[Rename, ...]:
    """Return the rows of the weights, or biases, of projections of attention."""
    return tuple(row for x in names for row in rename(f"{LAYER}.mixer.{x}.{kind}", f"model.layers.{{i}}.self_attn.{x[0]}_proj.{kind}"))


ATTENTION, BIASES = projections("weight"), projections("bias", PROJECTIONS[:3])
BODY = (*OUTSIDE, *ATTENTION, *GLU, *NORMS)


def read(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` that all families share."""
    width, heads = fields.read("hidden_size"), fields.read("num_attention_heads")
    head_dim = fields.read("head_dim", None) or width // heads
    fields.require(mlp_bias=False, is_encoder_decoder=False)
    return {
        "stack": "decoder", "d_model": width, "num_layers": fields.read("num_hidden_layers"), "num_heads": heads,
        "num_kv_heads": fields.read("num_key_value_heads", None) or heads, "attention": "scaled_dot_product",
        **({} if head_dim * heads == width else {"head_dim": head_dim}),
        "position": rotary(fields), "norm": {"name": "rms_norm", "eps": fields.read("rms_norm_eps", 1e-6)},
        "feed_forward": {
            "name": "glu", "ffn_dim": fields.read("intermediate_size"), "activation": activation(fields, "hidden_act", "silu"),
        },
        "residual": "pre_norm", "dropout": 0.0, "attention_dropout": fields.read("attention_dropout", 0.0), "bias": False,
        "embedding": {"name": "token", "scale": False}, "vocab_size": fields.read("vocab_size"),
        "tie": "output" if fields.read("tie_word_embeddings", False) else "none",
    }  # fmt: skip


def rotary(fields: Fields) -> dict[str, Any]:
    """Return the spec of the positions: `rope_parameters`, or `rope_theta` and `rope_scaling` in older files."""
    rope, base, scaling = fields.section("rope_parameters"), fields.read("rope_theta", None), fields.section("rope_scaling")
    if rope and (base is not None or scaling):
        raise ConfigurationError(f"{fields.source} has rope_parameters, and rope_theta or rope_scaling, too: leave one of the two")
    rope = rope or scaling
    older = rope.read("type", None)
    kind, base = rope.read("rope_type", older or "default"), rope.read("rope_theta", base or 10000.0)
    if older not in (None, kind):
        raise ConfigurationError(f"{rope.source}: rope_type is {kind!r}, and type {older!r}")
    rope.require(partial_rotary_factor=1.0)
    position: dict[str, Any] = {"name": "rotary", "base": float(base)}
    if kind in SCALINGS:
        position["scaling"] = {"name": kind, **{ours: rope.read(theirs, *default) for theirs, ours, *default in SCALINGS[kind]}}
    elif kind != "default":
        raise ConfigurationError(f"{rope.source}: attnkit cannot import rope_type {kind!r}; known: default, {', '.join(SCALINGS)}")
    rope.finish()
    return position


SCALINGS: dict[str, tuple[tuple[Any, ...], ...]] = {  # their fields, our arguments, and defaults
    "linear": (("factor", "factor"),),
    "llama3": (
        ("factor", "factor"), ("original_max_position_embeddings", "original_length"), ("low_freq_factor", "low_turns"),
        ("high_freq_factor", "high_turns"),
    ),
    "yarn": (
        ("factor", "factor"), ("original_max_position_embeddings", "original_length"), ("beta_fast", "beta_fast", 32.0),
        ("beta_slow", "beta_slow", 1.0), ("attention_factor", "attention_factor", None), ("truncate", "truncate", True),
    ),
}  # fmt: skip


def with_biases(spec: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a spec in which these projections of attention have biases."""
    others = {option: value for option, value in spec.items() if option != "bias"}
    return {**others, "mixer": {"name": "multi_head", "biases": list(names)}} if names else spec


def with_windows(spec: dict[str, Any], fields: Fields) -> dict[str, Any]:
    """Return a spec in which the layers of `layer_types`, or from `max_window_layers` on, have a window."""
    window, is_used = fields.read("sliding_window", None), fields.read("use_sliding_window", False)
    first, count = fields.read("max_window_layers", 28), spec["num_layers"]
    kinds = fields.read("layer_types", None) or [SLIDING if is_used and i >= first else FULL for i in range(count)]
    if wrong := [kind for kind in kinds if kind not in (SLIDING, FULL)]:
        raise ConfigurationError(f"{fields.source}: layer_types has {wrong[0]!r}; known: {SLIDING}, {FULL}")
    if len(kinds) != count or (SLIDING in kinds and not (is_used and window)):
        raise ConfigurationError(f"{fields.source}: layer_types does not fit num_hidden_layers, use_sliding_window and sliding_window")
    if SLIDING not in kinds:
        return spec
    runs = [(kind, len(list(run))) for kind, run in groupby(kinds)]
    return {**spec, "layers": [{**({"window": window} if kind == SLIDING else {}), "repeat": n} for kind, n in runs]}


SLIDING, FULL = "sliding_attention", "full_attention"


def llama(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Llama."""
    return with_biases(read(fields), PROJECTIONS if fields.read("attention_bias", False) else ())


def mistral(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Mistral."""
    return {**read(fields), "window": fields.read("sliding_window", None)}


def qwen2(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Qwen2."""
    return with_windows(with_biases(read(fields), PROJECTIONS[:3]), fields)


def qwen3(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Qwen3."""
    spec = with_windows(llama(fields), fields)
    return {**spec, "query_key_norm": spec["norm"]}


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    return (
        *BODY,
        *(HEAD if spec["tie"] == "none" else ()),
        *projections("bias", spec.get("mixer", {}).get("biases", ())),
        *(QUERY_KEY_NORM if "query_key_norm" in spec else ()),
    )


def family(spec: Callable[[Fields], dict[str, Any]]) -> Family:
    """Return a family with Llama's names."""
    return Family(spec, renames, "model.", ("*.rotary_emb.inv_freq",))


FAMILIES = {"llama": family(llama), "mistral": family(mistral), "qwen2": family(qwen2), "qwen3": family(qwen3)}
