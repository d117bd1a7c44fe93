# https://arxiv.org/abs/2404.14219
"""Phi-3, a Llama whose projections are fused."""

from typing import Any

from attnkit.convert.family import Family, one_dropout
from attnkit.convert.fields import Fields
from attnkit.convert.llama import NORMS, OUTSIDE, PROJECTIONS, THEIRS, UNREAD, body_fields, head, projections, read, window_fields
from attnkit.convert.renames import LAYER, Rename, Split, rename
from attnkit.registry import ConfigurationError


def spec(fields: Fields) -> dict[str, Any]:
    """Return the arguments of `attnkit.compose`."""
    dropout = one_dropout(fields, "resid_pdrop", "embd_pdrop", 0.0)
    fields.require(attention_bias=False)
    found = read(fields, eps=1e-5, fraction=fields.read("partial_rotary_factor", float, 1.0))
    if "scaling" in found["position"]:
        raise ConfigurationError(f"{fields.source}: attnkit only imports Phi-3 models whose rope_type is 'default'")
    fields.ignore("original_max_position_embeddings")  # read only with other rope_types
    return {**found, "dropout": dropout, "window": fields.optional("sliding_window", int)}


def config(architecture: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of an architecture."""
    fraction, dropout = architecture["layers"][0]["position"].get("fraction", 1.0), architecture["dropout"]
    return {
        **{name: value for name, value in body_fields(architecture).items() if name != "rope_scaling"}, **window_fields(architecture),
        "partial_rotary_factor": fraction, "resid_pdrop": dropout, "embd_pdrop": dropout,
    }  # fmt: skip


def gates(width: int) -> tuple[Rename, ...]:
    """Return the renames of a gated linear unit of this width whose gate and input are fused."""
    names = tuple(f"{LAYER}.feed_forward.{x}.weight" for x in ("gate", "input"))
    return (
        *rename(names, f"{THEIRS}.mlp.gate_up_proj.weight", Split((width, width))),
        *rename(f"{LAYER}.feed_forward.output.weight", f"{THEIRS}.mlp.down_proj.weight"),
    )


def renames(spec: dict[str, Any]) -> tuple[Rename, ...]:
    """Return the table of renames."""
    head_dim = spec.get("head_dim", spec["d_model"] // spec["num_heads"])
    rows = tuple(head_dim * spec[count] for count in ("num_heads", "num_kv_heads", "num_kv_heads"))
    return (
        *OUTSIDE,
        *NORMS,
        *rename(tuple(f"{LAYER}.mixer.{x}.weight" for x in PROJECTIONS[:3]), f"{THEIRS}.self_attn.qkv_proj.weight", Split(rows)),
        *projections("weight", ("output",)),
        *gates(spec["feed_forward"]["ffn_dim"]),
        *head(spec),
    )


FAMILIES = {"phi3": Family(spec, config, renames, "Phi3ForCausalLM", "model.", UNREAD)}
