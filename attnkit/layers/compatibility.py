"""Which mixers, scores and positions work together. Other combinations are refused before anything is built."""

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import Any

from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.layers.effects import Layers, given, mixer_classes, mixer_options, mixers_in, reads, reads_position
from attnkit.mixer import AttentionConfig, Direction, Mixer
from attnkit.position import Position
from attnkit.registry import (
    AttentionSpec,
    ConfigurationError,
    MixerSpec,
    PositionSpec,
    attentions,
    feed_forwards,
    mixers,
    positions,
    residuals,
)


def check_compatible(*, attention: AttentionSpec, position: PositionSpec, direction: Direction = "causal") -> None:
    """Raise if a position encoding does not work with a score or in a direction; the message says why.

    In the direction `cross`, positions cannot be added to the embeddings, which already contain those of `position`.

    Example:
        >>> check_compatible(attention="additive", position="alibi")
        >>> check_compatible(attention="additive", position="rotary")
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: position 'rotary' does not work with attention 'additive': ...
    """
    position_name, attention_name = positions.resolve(position).name, attentions.resolve(attention).name
    kind = positions.get(position_name)
    if not _works(kind, direction):
        where = "in cross-attention" if direction == "cross" else "in an encoder"
        why = f"position {position_name!r} does not work {where}: it is defined only for queries that read no later keys"
        if direction == "cross" and adds(kind):
            why = f"cross_position {position_name!r} does not work: it is added to the embeddings, as `position` already is"
        legal = [n for n in positions.names() if _works(positions.get(n), direction)]
        raise ConfigurationError(f"{why}. Choose one of: {', '.join(legal)}.")
    if kind.needs_inner_product and not attentions.get(attention_name).inner_product:
        legal = [n for n in attentions.names() if attentions.get(n).inner_product]
        raise ConfigurationError(
            f"position {position_name!r} does not work with attention {attention_name!r}: it rotates queries and keys so that their inner "
            f"product depends on their distance, and the score of {attention_name!r} is not an inner product. "
            f"Choose another position, or one of these attentions: {', '.join(legal)}."
        )


def adds(position: type[Position]) -> bool:
    """Return whether a position encoding is added to the embeddings, once for the whole stack."""
    return position.embedding is not Position.embedding


def _works(position: type[Position], direction: Direction) -> bool:
    """Return whether a position encoding works in a direction."""
    return direction == "causal" or not (position.needs_causal or (direction == "cross" and adds(position)))


def _score(config: LayerConfig) -> AttentionSpec:
    """Return the score of a layer's mixer; mixers without the option `attention` use an inner product."""
    return config.attention if "attention" in mixer_options(config.mixer) else "scaled_dot_product"


def check_direction(config: LayerConfig, direction: Direction) -> None:
    """Raise unless a layer's mixer can read in a direction; the message lists those that can."""
    outer = mixers.resolve(config.mixer).name
    for kind in (mixers.get(outer), *mixer_classes(config.mixer)):
        if direction not in kind.directions:
            able = [n for n in mixers.names() if direction in mixers.get(n).directions]
            wanted = {"causal": "in a decoder", "bidirectional": "in an encoder", "cross": "as a reader of a memory"}[direction]
            name = mixers.name_of(kind)
            inside = "" if outer == name else f" It is part of the mixer {outer!r}."
            raise ConfigurationError(
                f"mixer {name!r} does not work {wanted}: it is {' or '.join(sorted(kind.directions))}. "
                f"Choose one of: {', '.join(able)}.{inside}"
            )


def check_residual(config: LayerConfig) -> None:
    """Raise if a residual kind shares a norm with the mixer, but the layer has no mixer."""
    lacks_mixer = mixers.resolve(config.mixer).name == "none" and feed_forwards.resolve(config.feed_forward).name != "none"
    if lacks_mixer and residuals.resolve(config.residual).arguments.get("shared_norm"):
        raise ConfigurationError(
            "residual 'parallel' with a shared norm needs a mixer in addition to the feed-forward network: set shared_norm to false"
        )


def check_memory_keys(config: LayerConfig) -> None:
    """Raise if a layer has memory keys, which have no position, but its positions scale queries by a factor that only a key cancels."""
    name = positions.resolve(config.position).name
    if positions.get(name).scales_queries and any(mixer.get("memory_keys") for mixer in mixers_in(config.mixer)):
        raise ConfigurationError(
            f"position {name!r} does not work with memory_keys: it scales queries by a factor that a key's position cancels, but memory "
            f"keys have none. Choose another position (rotary rotates without scaling), or remove memory_keys."
        )


def check_rotated_norm(mixer: MixerSpec, used: Iterable[PositionSpec]) -> None:
    """Raise if a mixer normalises queries and keys after their rotation, but no position rotates them, or one also scales them."""
    if any(each.get("query_key_norm_after_rotation") for each in mixers_in(mixer)):
        names = sorted({positions.resolve(position).name for position in used})
        if scaling := [name for name in names if positions.get(name).scales_queries]:
            raise ConfigurationError(
                f"position {scaling[0]!r} does not work with query_key_norm_after_rotation: it scales queries and keys so that their "
                f"product decays with distance, and a norm after it undoes part of that. Normalise before it, or choose position rotary."
            )
        if not any("rotation" in given(positions.get(name)) for name in names):
            raise ConfigurationError(
                f"query_key_norm_after_rotation has no effect with the position {', '.join(map(repr, names))}, which does not rotate "
                f"queries and keys; remove it, or choose the position rotary"
            )


def check_layers(layers: Layers, *, direction: Direction) -> None:
    """Raise unless the layers of a stack are valid and every option that was set has an effect."""
    for config, options in zip(layers.entries, layers.own, strict=True):
        check_direction(config, direction)
        check_residual(config)
        position = positions.resolve(config.position).name
        if "position" in options and adds(positions.get(position)):
            raise ConfigurationError(f"position {position!r} is added to the embeddings before the first layer: set it for the stack")
        if reads_position(config):
            check_compatible(attention=_score(config), position=config.position, direction=direction)
            check_memory_keys(config)
        check_rotated_norm(config.mixer, [other.position for other in layers.entries if other.mixer == config.mixer])
    layers.check_effects()
    stack = positions.resolve(layers.stack.position)
    kind = positions.get(name := stack.name)
    with_it = [config for config in layers.entries if positions.resolve(config.position) == stack]

    def is_read(kind: type[Position]) -> bool:
        return any(reads(kind, config.mixer) for config in with_it) or (adds(kind) and not given(kind))

    if name != "none" and not is_read(kind):
        if not with_it:
            raise ConfigurationError(
                f"position {name!r} has no effect: every entry of layers sets another; set the stack's position to none"
            )
        used = sorted({mixers.resolve(config.mixer).name for config in with_it})
        legal = [n for n in positions.names() if is_read(positions.get(n))]
        lost = f"adds to the embeddings, but its {' and '.join(sorted(given(kind)))} would be lost" if adds(kind) else "has no effect"
        raise ConfigurationError(
            f"position {name!r} {lost}: no mixer of this stack reads it (mixers: {', '.join(used)}). "
            f"Choose one of: {', '.join(['none', *legal])}."
        )


def check_memory(config: LayerConfig, attention: AttentionSpec | None, position: PositionSpec) -> None:
    """Raise unless the mixer of `config` can read a memory with this position encoding and, if it was set, this `cross_attention`."""
    check_direction(config, "cross")
    mixer = mixers.resolve(config.mixer).name
    if attention is not None and "attention" not in mixer_options(config.mixer):
        raise ConfigurationError(f"cross_attention has no effect: the cross_mixer {mixer!r} does not read it; remove it")
    check_rotated_norm(config.mixer, [position])
    kind = positions.get(name := positions.resolve(position).name)
    if adds(kind) or reads(kind, config.mixer):
        check_compatible(attention=_score(config), position=position, direction="cross")
    elif name != "none":
        raise ConfigurationError(f"cross_position {name!r} has no effect: the cross_mixer {mixer!r} does not read it; remove it")


def legal_layers(
    config: TransformerConfig,
    *,
    direction: Direction,
    cross_mixer: MixerSpec | None = None,
    cross_attention: AttentionSpec | None = None,
    cross_position: PositionSpec = "none",
) -> Layers:
    """Return the layers of a stack; raise, before anything is built, if a layer is not valid or an option has no effect.

    Layers without memory have no `cross_mixer`. By default, its score is that of the layers.
    """
    if cross_mixer is None:
        check_layers(layers := Layers.of(config), direction=direction)
        return layers
    score = config.attention if cross_attention is None else cross_attention
    unread = {"window"} if cross_attention is None else {"window", "attention"}  # a memory is always read as a whole
    layers = Layers.of(config, mixer_options(cross_mixer) - unread)
    check_layers(layers, direction=direction)
    check_memory(replace(layers.entries[0], mixer=cross_mixer, attention=score), cross_attention, cross_position)
    return layers


def build_mixer(config: LayerConfig, direction: Direction) -> Mixer[Any]:
    """Build the mixer of a layer, or the one that reads its memory; raise if it does not work in this direction."""
    check_direction(config, direction)
    options = {f.name: getattr(config, f.name) for f in fields(AttentionConfig)}
    mixer: Mixer[Any] = mixers.build(config.mixer, **options, dropout=config.dropout, direction=direction)
    return mixer
