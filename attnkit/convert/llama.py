# https://arxiv.org/abs/2302.13971
"""Llama, and the families that use its names: Mistral, Qwen2, Qwen3, SmolLM3, OLMo 2, Granite."""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from attnkit.convert.family import Family, activation, feed_forward_fields, joined
from attnkit.convert.fields import Fields
from attnkit.convert.renames import LAYER, Rename, rename
from attnkit.convert.rotation import rotary, rotary_fields
from attnkit.registry import ConfigurationError

THEIRS = "model.layers.{i}"
PROJECTIONS = ("query", "key", "value", "output")


def rows(ours: str, theirs: str, names: dict[str, str]) -> tuple[Rename, ...]:
    """Return the renames of parts of a layer: of the weights and, if the names end in `.*`, the biases."""
    return tuple(row for left, right in names.items() for row in rename(f"{LAYER}.{ours}{left}", f"{THEIRS}.{theirs}{right}"))


def projections(kind: str, names: Sequence[str] = PROJECTIONS) -> tuple[Rename, ...]:
    """Return the renames of the weights or biases (`kind`) of attention projections."""
    return rows("mixer.", "self_attn.", {f"{x}.{kind}": f"{x[0]}_proj.{kind}" for x in names})


EMBEDDING = rename("embedding.weight", "model.embed_tokens.weight")
OUTSIDE = (*EMBEDDING, *rename("stack.decoder.final_norm.weight", "model.norm.weight"))
HEAD = rename("head.projection.weight", "lm_head.weight")
NORMS = rows("", "", {
    "mixer_residual.norm.weight": "input_layernorm.weight", "feed_forward_residual.norm.weight": "post_attention_layernorm.weight",
})  # fmt: skip
OUTPUT_NORMS = rows("", "", {
    "mixer_residual.norm.weight": "post_attention_layernorm.weight",
    "feed_forward_residual.norm.weight": "post_feedforward_layernorm.weight",
})  # fmt: skip
QUERY_KEY_NORM = rows("mixer.", "self_attn.", {f"{x}_norm.weight": f"{x[0]}_norm.weight" for x in ("query", "key")})
PARTS = {"gate.weight": "gate_proj.weight", "input.weight": "up_proj.weight", "output.weight": "down_proj.weight"}
GLU = rows("feed_forward.", "mlp.", PARTS)
ATTENTION, BIASES = projections("weight"), projections("bias", PROJECTIONS[:3])
BODY = (*OUTSIDE, *ATTENTION, *GLU, *NORMS)


def sizes(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` that do not depend on norms, positions and the feed-forward network."""
    width, heads = fields.read("hidden_size", int), fields.read("num_attention_heads", int)
    head_dim = fields.optional("head_dim", int) or width // heads
    fields.require(is_encoder_decoder=False)
    return {
        "stack": "decoder", "d_model": width, "num_layers": fields.read("num_hidden_layers", int), "num_heads": heads,
        "num_kv_heads": fields.optional("num_key_value_heads", int) or heads, "attention": "scaled_dot_product",
        **({} if head_dim * heads == width else {"head_dim": head_dim}),
        "residual": "pre_norm", "dropout": 0.0, "attention_dropout": fields.read("attention_dropout", float, 0.0), "bias": False,
        "embedding": {"name": "token", "scale": False}, "vocab_size": fields.read("vocab_size", int),
    }  # fmt: skip


def read(
    fields: Fields, *, eps: float = 1e-6, base: float = 10000.0, fraction: float | None = None, is_tied: bool = False
) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for fields with Llama's names, with these defaults."""
    fields.require(mlp_bias=False)
    return {
        **sizes(fields), "position": rotary(fields, base, fraction),
        "norm": {"name": "rms_norm", "eps": fields.read("rms_norm_eps", float, eps)}, "feed_forward": glu(fields, "intermediate_size"),
        "tie": tie(fields, is_tied),
    }  # fmt: skip


def glu(fields: Fields, width: str, field: str = "hidden_act", default: str = "silu") -> dict[str, Any]:
    """Return the spec of a gated linear unit."""
    return {"name": "glu", "ffn_dim": fields.read(width, int), "activation": activation(fields, field, default)}


def tie(fields: Fields, default: bool) -> str:
    """Return the argument `tie`."""
    return "output" if fields.read("tie_word_embeddings", bool, default) else "none"


def with_mixer(spec: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Add options of the mixer to a spec."""
    return {**spec, "mixer": {"name": "multi_head", **spec.get("mixer", {}), **options}}


def with_biases(spec: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Add biases of these attention projections to a spec."""
    others = {option: value for option, value in spec.items() if option != "bias"}
    return with_mixer(others, biases=list(names)) if names else spec


def with_layers(spec: dict[str, Any], options: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Add options of the individual layers to a spec; options that all layers share go to the stack."""
    if all(each == options[0] for each in options):
        return {**spec, **options[0]}
    return {**spec, "layers": [{**each, "repeat": len(list(run))} for each, run in groupby(options)]}


def windows(fields: Fields, count: int, window: int | None, is_sliding: Callable[[int], bool]) -> list[dict[str, Any]]:
    """Return the windows of the layers, from `layer_types` or else by the rule `is_sliding`."""
    kinds = fields.optional("layer_types", list)
    if kinds is None:
        kinds = [SLIDING if is_sliding(i) else FULL for i in range(count)]
    if wrong := [kind for kind in kinds if kind not in (SLIDING, FULL)]:
        raise ConfigurationError(f"{fields.source}: layer_types has {wrong[0]!r}; known: {SLIDING}, {FULL}")
    if len(kinds) != count or (SLIDING in kinds and window is None):
        raise ConfigurationError(f"{fields.source}: layer_types does not fit num_hidden_layers, use_sliding_window and sliding_window")
    return [{"window": window} if kind == SLIDING else {} for kind in kinds]


SLIDING, FULL = "sliding_attention", "full_attention"


def window_of(fields: Fields, default: int | None = 4096) -> int | None:
    """Return the window if it is used, else None."""
    window = fields.optional("sliding_window", int, default)
    return window if fields.read("use_sliding_window", bool, False) else None


def llama(fields: Fields, **defaults: Any) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Llama model."""
    return with_biases(read(fields, **defaults), PROJECTIONS if fields.read("attention_bias", bool, False) else ())


def mistral(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Mistral model."""
    return {**read(fields), "window": fields.optional("sliding_window", int, 4096)}


def _with_windows(spec: dict[str, Any], fields: Fields) -> dict[str, Any]:
    window, first = window_of(fields), fields.read("max_window_layers", int, 28, least=0)
    return with_layers(spec, windows(fields, spec["num_layers"], window, lambda i: window is not None and i >= first))


def qwen2(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Qwen2 model."""
    return _with_windows(with_biases(read(fields), PROJECTIONS[:3]), fields)


def qwen3(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Qwen3 model."""
    spec = _with_windows(llama(fields), fields)
    return {**spec, "query_key_norm": spec["norm"]}


def smollm3(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a SmolLM3 model, in which some layers have no rotary positions."""
    spec, window, every = llama(fields, base=2e6, is_tied=True), window_of(fields, None), fields.read("no_rope_layer_interval", int, 4)
    count = spec["num_layers"]
    rotates = fields.optional("no_rope_layers", list)
    if rotates is None:
        rotates = [(i + 1) % every != 0 for i in range(count)]
    if len(rotates) < count or any(each not in (0, 1) for each in rotates):
        raise ConfigurationError(f"{fields.source}: no_rope_layers must have 1 (rotated) or 0 for each of {count} layers")
    fields.ignore("max_window_layers")
    kinds = windows(fields, count, window, lambda i: window is not None and not rotates[i])
    return with_layers(spec, [{**kinds[i], **({} if rotates[i] else {"position": "none"})} for i in range(count)])


def olmo2(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for an OLMo 2 model."""
    spec = with_mixer(llama(fields, eps=1e-5), query_key_norm_over="all")
    return {**spec, "residual": "output_norm", "query_key_norm": spec["norm"]}


def granite(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose` for a Granite model, which is a Llama with multipliers."""
    spec = llama(fields)
    return {
        **with_mixer(spec, scale=fields.read("attention_multiplier", float, 1.0)), "attention": "dot_product",
        "embedding": {"name": "token", "scale": fields.read("embedding_multiplier", float, 1.0)},
        "residual": {"name": "pre_norm", "scale": fields.read("residual_multiplier", float, 1.0)},
        "head": {"name": "linear", "scale": 1 / fields.positive("logits_scaling", 1.0)},
    }  # fmt: skip


def sizes_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that `sizes` and `tie` read, and those of rotary positions."""
    layer = architecture["layers"][0]
    return {
        "hidden_size": architecture["d_model"], "num_hidden_layers": len(architecture["layers"]), "num_attention_heads": layer["num_heads"],
        "num_key_value_heads": layer["num_kv_heads"], "head_dim": layer["head_dim"], "attention_dropout": layer["attention_dropout"],
        "tie_word_embeddings": architecture["tie"] == "output", **rotary_fields(layer["position"]),
    }  # fmt: skip


def body_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that `read` reads."""
    layer = architecture["layers"][0]
    return {**sizes_fields(architecture), "rms_norm_eps": layer["norm"].get("eps", 1e-6), **feed_forward_fields(layer)}


def bias_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that `llama` reads."""
    return {**body_fields(architecture), "attention_bias": bool(architecture["layers"][0]["biases"])}


def window_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the field for a window that all layers share, or for none."""
    return {"sliding_window": architecture["layers"][0]["window"]}


def windows_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for a window in some layers."""
    found = [layer["window"] for layer in architecture["layers"]]
    window = next(filter(None, found), None)
    kinds = [FULL if each is None else SLIDING for each in found]
    first = kinds.index(SLIDING) if window else len(kinds)
    return {"use_sliding_window": window is not None, "sliding_window": window, "layer_types": kinds, "max_window_layers": first}


def rotated_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields for rotary positions in some layers."""
    layers = architecture["layers"]
    rotates = [int(layer["position"]["name"] != "none") for layer in layers]
    return {**(rotary_fields(layers[rotates.index(1)]["position"]) if 1 in rotates else {}), "no_rope_layers": rotates}


def factor_fields(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of Granite's multipliers."""
    layer = architecture["layers"][0]
    return {
        "attention_multiplier": layer["mixer"]["scale"], "embedding_multiplier": architecture["embedding"]["scale"],
        "residual_multiplier": layer["residual"].get("scale", 1.0), "logits_scaling": 1 / architecture["head"].get("scale", 1.0),
    }  # fmt: skip


def body(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the renames of attention and of the weights outside the layers."""
    return (
        *OUTSIDE,
        *ATTENTION,
        *projections("bias", spec.get("mixer", {}).get("biases", ())),
        *(QUERY_KEY_NORM if "query_key_norm" in spec else ()),
        *head(spec),
    )


def head(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the renames of the head; none if it is tied."""
    return HEAD if spec.get("tie", "none") == "none" else ()


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    return (*body(spec), *GLU, *(OUTPUT_NORMS if spec.get("residual") == "output_norm" else NORMS))


UNREAD = ("*.rotary_emb.inv_freq",)
FAMILIES = {
    spec.__name__: Family(spec, config, renames, f"{name}ForCausalLM", "model.", UNREAD)
    for spec, config, name in (
        (llama, bias_fields, "Llama"), (mistral, joined(body_fields, window_fields), "Mistral"),
        (qwen2, joined(body_fields, windows_fields), "Qwen2"), (qwen3, joined(bias_fields, windows_fields), "Qwen3"),
        (smollm3, joined(bias_fields, windows_fields, rotated_fields), "SmolLM3"), (olmo2, bias_fields, "Olmo2"),
        (granite, joined(bias_fields, factor_fields), "Granite"),
    )
}  # fmt: skip
