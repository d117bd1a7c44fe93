"""Rotary positions of published configurations, in the fields of newer and older files."""

from typing import Any

from attnkit.convert.fields import Fields
from attnkit.registry import ConfigurationError


def rotary(fields: Fields, base: float = 10000.0, fraction: float | None = None) -> dict[str, Any]:
    """Return the spec of the positions, from `rope_parameters`, or `rope_theta` and `rope_scaling` in older files."""
    fields.require(rope_interleaved=False, use_mrope=False)
    rope, theta, scaling = fields.section("rope_parameters"), fields.optional("rope_theta", float), fields.section("rope_scaling")
    if rope and (theta is not None or scaling):
        raise ConfigurationError(f"{fields.source} has both rope_parameters and rope_theta or rope_scaling: remove one of the two")
    return rotation(rope or scaling, base if theta is None else theta, fraction)


def rotations(fields: Fields, base: float, *older: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the specs of the positions of layers with and without a window, whose default bases are 10000 and `base`.

    `older` names the fields of older files: the base of layers without a window, that of the others and, in some families, the scaling.
    """
    rope, (far_base, near_base) = fields.section("rope_parameters"), (fields.optional(name, float) for name in older[:2])
    near, far = rope.section("sliding_attention"), rope.section("full_attention")
    rope.finish()
    scaling = fields.section(older[2]) if len(older) > 2 else Fields({}, fields.source)
    if (near and near_base is not None) or (far and (far_base is not None or scaling)):
        raise ConfigurationError(f"{fields.source} has both rope_parameters and {', '.join(older[:-1])} or {older[-1]}")
    return rotation(near, near_base or 1e4), rotation(far or scaling, far_base or base)


def rotation(rope: Fields, base: float, fraction: float | None = None) -> dict[str, Any]:
    """Return the spec of one rotation, with these defaults; families without a `fraction` rotate all channels."""
    older = rope.optional("type", str)
    kind = rope.read("rope_type", str, older or "default")
    if older not in (None, kind):
        raise ConfigurationError(f"{rope.source}: rope_type is {kind!r}, but type is {older!r}")
    position: dict[str, Any] = {"name": "rotary", "base": rope.read("rope_theta", float, base)}
    if fraction is None:
        rope.require(partial_rotary_factor=1.0)
    elif (part := rope.read("partial_rotary_factor", float, fraction)) != 1.0:
        position["fraction"] = part
    if kind in SCALINGS:
        position["scaling"] = {"name": kind, **SCALINGS[kind](rope)}
    elif kind != "default":
        raise ConfigurationError(f"{rope.source}: attnkit cannot import rope_type {kind!r}; known: default, {', '.join(SCALINGS)}")
    rope.finish()
    return position


def _linear(rope: Fields) -> dict[str, Any]:
    return {"factor": rope.read("factor", float)}


def _longer(rope: Fields) -> dict[str, Any]:
    return {**_linear(rope), "original_length": rope.read("original_max_position_embeddings", int)}


def _llama3(rope: Fields) -> dict[str, Any]:
    return {**_longer(rope), "low_turns": rope.read("low_freq_factor", float), "high_turns": rope.read("high_freq_factor", float)}


def _yarn(rope: Fields) -> dict[str, Any]:
    fast, slow = rope.read("beta_fast", float, 32.0), rope.read("beta_slow", float, 1.0)
    own = {"beta_fast": fast, "beta_slow": slow, "truncate": rope.read("truncate", bool, True)}
    return {**_longer(rope), **own, "attention_factor": rope.optional("attention_factor", float)}


SCALINGS = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}
THEIRS = {
    **{x: x for x in ("factor", "beta_fast", "beta_slow", "truncate", "attention_factor")},
    **{"original_length": "original_max_position_embeddings", "low_turns": "low_freq_factor", "high_turns": "high_freq_factor"},
}


def rotary_fields(position: dict[str, Any], base: str = "rope_theta") -> dict[str, Any]:
    """Return the fields of rotary positions in the form of older files, which newer versions of transformers read too."""
    scaling, found = position.get("scaling"), {base: position.get("base", 10000.0)}
    if scaling is None or scaling["name"] not in SCALINGS:
        return found
    own = {THEIRS[name]: value for name, value in scaling.items() if name != "name" and value is not None}
    return {**found, "rope_scaling": {"rope_type": scaling["name"], **own}}
