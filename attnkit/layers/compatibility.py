"""Which mixers, scores and positions work together. What does not is refused before anything is built."""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.layers.pattern import Pattern
from attnkit.mixer import AttentionConfig, Direction, Mixer
from attnkit.mixer.base import PositionWay
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
from attnkit.registry.arguments import parameters

STAYING = {"d_model", "num_heads", "backend"}
"""Options that a stack may have although no mixer reads them, so that `mixer` alone can be changed: results do not depend on a backend."""


def check_compatible(*, attention: AttentionSpec, position: PositionSpec, direction: Direction = "causal") -> None:
    """Raise if a position encoding does not work with a score, or in a direction.

    Args:
        attention: The score.
        position: The position encoding.
        direction: What queries read. In direction `cross` there are no embeddings of its own to add positions to.

    Raises:
        ConfigurationError: It does not; the message says why.

    Example:
        >>> check_compatible(attention="additive", position="alibi")
        >>> check_compatible(attention="additive", position="rotary")
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: position 'rotary' is not legal with attention 'additive': ...
    """
    position_name, attention_name = positions.resolve(position).name, attentions.resolve(attention).name
    kind = positions.get(position_name)
    if direction == "cross" and adds(kind):
        legal = [n for n in positions.names() if _works(positions.get(n), direction)]
        raise ConfigurationError(
            f"cross_position {position_name!r} is not legal: it adds to the embeddings, which `position` does already. "
            f"Choose one of: {', '.join(legal)}."
        )
    if kind.needs_causal and direction != "causal":
        where = "in cross-attention" if direction == "cross" else "in an encoder"
        legal = [n for n in positions.names() if _works(positions.get(n), direction)]
        raise ConfigurationError(
            f"position {position_name!r} is not legal {where}: it is defined only for queries that read no later keys. "
            f"Choose one of: {', '.join(legal)}."
        )
    if kind.needs_inner_product and not attentions.get(attention_name).inner_product:
        legal = [n for n in attentions.names() if attentions.get(n).inner_product]
        raise ConfigurationError(
            f"position {position_name!r} is not legal with attention {attention_name!r}: it rotates queries and keys so that their inner "
            f"product depends on their distance, and the score of {attention_name!r} is not an inner product. "
            f"Choose another position, or one of these attentions: {', '.join(legal)}."
        )


def adds(position: type[Position]) -> bool:
    """Return whether a position encoding adds to the embeddings, once for the whole stack."""
    return position.embedding is not Position.embedding


def _works(position: type[Position], direction: Direction) -> bool:
    """Return whether a position encoding works in a direction."""
    return direction == "causal" or not (position.needs_causal or (direction == "cross" and adds(position)))


def _reads(position: type[Position], mixer: type[Mixer[Any]]) -> bool:
    """Return whether a mixer reads all that a position encoding gives to mixers, and there is something."""
    given: dict[PositionWay, bool] = {
        "rotation": position.rotation is not Position.rotation,
        "bias": position.bias is not Position.bias,
        "query_bias": position.reads_queries,
    }
    ways = {way for way, is_given in given.items() if is_given}
    return bool(ways) and ways <= mixer.reads_positions


def reads_position(config: LayerConfig) -> bool:
    """Return whether the positions of a layer reach its mixer."""
    return _reads(positions.get(positions.resolve(config.position).name), mixer_class(config))


def _score(config: LayerConfig) -> AttentionSpec:
    """Return the score of a layer's mixer; one that has no choice of it attends by an inner product."""
    return config.attention if "attention" in options_read(config) else "scaled_dot_product"


def mixer_class(config: LayerConfig) -> type[Mixer[Any]]:
    """Return the class of a layer's mixer."""
    kind: type[Mixer[Any]] = mixers.get(mixers.resolve(config.mixer).name)
    return kind


def options_read(config: LayerConfig) -> frozenset[str]:
    """Return the names of the options of a layer that its mixer reads."""
    return frozenset(parameters(mixer_class(config))) & _OPTIONS


def check_direction(config: LayerConfig, direction: Direction) -> None:
    """Raise unless a layer's mixer can read in a direction.

    Raises:
        ConfigurationError: It cannot; the message lists those that can.
    """
    kind = mixer_class(config)
    if direction not in kind.directions:
        able = [n for n in mixers.names() if direction in mixers.get(n).directions]
        wanted = {"causal": "in a decoder", "bidirectional": "in an encoder", "cross": "as what reads a memory"}[direction]
        raise ConfigurationError(
            f"mixer {mixers.resolve(config.mixer).name!r} does not work {wanted}: it is {' or '.join(sorted(kind.directions))}. "
            f"Choose one of: {', '.join(able)}."
        )


def check_residual(config: LayerConfig) -> None:
    """Raise if a residual kind shares a norm with a mixer that a layer does not have.

    Raises:
        ConfigurationError: It does.
    """
    lacks_mixer = mixers.resolve(config.mixer).name == "none" and feed_forwards.resolve(config.feed_forward).name != "none"
    if lacks_mixer and residuals.resolve(config.residual).arguments.get("shared_norm"):
        raise ConfigurationError(
            "residual 'parallel' with a shared norm needs a mixer beside the feed-forward network: set shared_norm to false"
        )


def check_layers(
    stack: LayerConfig, layers: list[LayerConfig], own: list[frozenset[str]], *, direction: Direction, memory: Sequence[LayerConfig]
) -> None:
    """Raise unless the layers of a stack are legal, and every option of theirs has an effect.

    Args:
        stack: The options of the stack.
        layers: Those of each layer.
        own: The names of the options that each layer sets itself.
        direction: What its mixers read.
        memory: The options of what reads a memory, if a mixer does.

    Raises:
        ConfigurationError: A layer is not legal, or nothing reads an option that was set.

    Example:
        >>> stack = LayerConfig(d_model=8, mixer="none", attention="additive")
        >>> check_layers(stack, [stack], [frozenset()], direction="causal", memory=[])
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: attention has no effect: no layer has a mixer that reads it (mixers: none); ...
    """
    of_memory = frozenset().union(*map(options_read, memory)) - {"window"}  # a memory is read whole
    for config, options in zip(layers, own, strict=True):
        check_direction(config, direction)
        check_residual(config)
        name, reads = mixers.resolve(config.mixer).name, options_read(config)
        of_positions = {"num_heads", "head_dim"} if reads_position(config) else set()
        if unread := sorted(options & (_OPTIONS - reads - of_positions - (of_memory - {"attention"}))):
            raise ConfigurationError(f"{unread[0]} has no effect in a layer with the mixer {name!r}, which does not read it; remove it")
        position = positions.resolve(config.position).name
        if "position" in options and adds(positions.get(position)):
            raise ConfigurationError(f"position {position!r} adds to the embeddings, before the first layer: set it for the stack")
        if reads_position(config):
            check_compatible(attention=_score(config), position=config.position, direction=direction)
        elif "position" in options and position != "none":
            raise ConfigurationError(
                f"position {position!r} has no effect in a layer with the mixer {name!r}, which does not read it; remove it"
            )
    named = mixers.resolve(stack.mixer).name
    if named != "multi_head" and all("mixer" in options for options in own):
        raise ConfigurationError(f"mixer {named!r} has no effect: every entry of layers has a mixer of its own; remove it")
    used = sorted({mixers.resolve(config.mixer).name for config in layers})
    readable = of_memory.union(*map(options_read, layers))
    arguments = {name: a for name, a in parameters(AttentionConfig).items() if name not in STAYING | readable}
    if unread := sorted(name for name, a in arguments.items() if a.resolve(getattr(stack, name)) != a.written_default()):
        raise ConfigurationError(
            f"{unread[0]} has no effect: no layer has a mixer that reads it (mixers: {', '.join(used)}); remove it, or choose another mixer"
        )
    kind = positions.get(name := positions.resolve(stack.position).name)
    if name != "none" and not adds(kind) and not any(map(reads_position, layers)):
        legal = [n for n in positions.names() if adds(kind := positions.get(n)) or any(_reads(kind, mixer_class(c)) for c in layers)]
        raise ConfigurationError(
            f"position {name!r} has no effect: no mixer of this stack reads it (mixers: {', '.join(used)}). "
            f"Choose one of: {', '.join(['none', *legal])}."
        )


def check_memory(config: LayerConfig, attention: AttentionSpec | None, position: PositionSpec) -> None:
    """Raise unless the mixer of `config` can read a memory, with a score that was set for it alone and a position encoding.

    Raises:
        ConfigurationError: It cannot, or does not read one of them.
    """
    check_direction(config, "cross")
    mixer = mixers.resolve(config.mixer).name
    if attention is not None and "attention" not in options_read(config):
        raise ConfigurationError(f"cross_attention has no effect: the cross_mixer {mixer!r} does not read it; remove it")
    kind = positions.get(name := positions.resolve(position).name)
    if adds(kind) or _reads(kind, mixer_class(config)):
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
) -> tuple[Pattern, list[LayerConfig]]:
    """Return the pattern of a stack's layers and the options of each of its entries, or raise, before anything is built.

    Args:
        config: The options of the stack.
        direction: What its mixers read.
        cross_mixer: The mixer that reads a memory, or None for layers without memory.
        cross_attention: Its score (default: that of the layers).
        cross_position: The positions of the memory.

    Raises:
        ConfigurationError: A layer is not legal, or an option has no effect.
    """
    pattern = Pattern.of(config.layers, config.num_layers)
    common = {field.name: getattr(config, field.name) for field in fields(LayerConfig)}
    own = [{key: value for key, value in spec.arguments.items() if key in common} for spec in pattern.entries]
    configs = [LayerConfig(**common | options) for options in own]
    score = config.attention if cross_attention is None else cross_attention
    memory = [] if cross_mixer is None else [replace(configs[0], mixer=cross_mixer, attention=score)]
    check_layers(config, configs, [frozenset(options) for options in own], direction=direction, memory=memory)
    for read in memory:
        check_memory(read, cross_attention, cross_position)
    return pattern, configs


def build_mixer(config: LayerConfig, direction: Direction) -> Mixer[Any]:
    """Build the mixer of a layer, or of its memory.

    Raises:
        ConfigurationError: It cannot do this, or its spec is wrong.
    """
    check_direction(config, direction)
    options = {f.name: getattr(config, f.name) for f in fields(AttentionConfig)}
    mixer: Mixer[Any] = mixers.build(config.mixer, **options, dropout=config.dropout, direction=direction)
    return mixer


_OPTIONS = frozenset(f.name for f in fields(AttentionConfig))
