"""Which layer options have an effect. The others are refused, except a few that may stay when the mixer is exchanged: `unread`."""

from dataclasses import dataclass, fields
from typing import Any, Self

from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.layers.pattern import Pattern
from attnkit.mixer import AttentionConfig, Mixer
from attnkit.mixer.base import PositionWay
from attnkit.mixer.value_residual import mixes_values
from attnkit.position import Position
from attnkit.registry import ConfigurationError, MixerSpec, ResolvedSpec, feed_forwards, mixers, norms, positions, residuals
from attnkit.registry.arguments import parameters

STAYING = ("num_heads", "backend")
"""Options that a stack may set although no mixer reads them, so that `mixer` can be exchanged alone; `unread` names them."""


def mixers_in(spec: MixerSpec) -> list[ResolvedSpec]:
    """Return the resolved spec of a mixer, or those of its parts if it contains other mixers.

    Example:
        >>> [mixer.name for mixer in mixers_in({"name": "parallel", "mixers": ["multi_head", "retention"]})]
        ['multi_head', 'retention']
    """
    resolved = mixers.resolve(spec)
    inner = [item for value in resolved.values() if isinstance(value, list) for item in value if isinstance(item, ResolvedSpec)]
    return [mixer for part in inner for mixer in mixers_in(part)] or [resolved]


def mixer_classes(spec: MixerSpec) -> list[type[Mixer[Any]]]:
    """Return the class of a mixer, or those of its parts if it contains other mixers."""
    return [mixers.get(mixer.name) for mixer in mixers_in(spec)]


def mixer_options(spec: MixerSpec) -> frozenset[str]:
    """Return the names of the layer options that a mixer reads."""
    return _OF_MIXERS & frozenset[str]().union(*(mixers.get(mixer.name).options_read(mixer) for mixer in mixers_in(spec)))


def given(position: type[Position]) -> frozenset[PositionWay]:
    """Return what a position encoding gives to mixers, which excludes what it adds to the embeddings."""
    ways: dict[PositionWay, bool] = {
        "rotation": position.rotation is not Position.rotation,
        "bias": position.bias is not Position.bias,
        "query_bias": position.reads_queries,
    }
    return frozenset(way for way, is_given in ways.items() if is_given)


def reads(position: type[Position], mixer: MixerSpec) -> bool:
    """Return whether a position encoding gives something to mixers, and a mixer reads all of it."""
    ways = given(position)
    return bool(ways) and any(ways <= kind.reads_positions for kind in mixer_classes(mixer))


def reads_position(config: LayerConfig) -> bool:
    """Return whether the positions of a layer reach its mixer."""
    return reads(positions.get(positions.resolve(config.position).name), config.mixer)


def options_read(config: LayerConfig, memory: frozenset[str] | None = None) -> frozenset[str]:
    """Return the names of the options that have an effect on a layer; `memory` holds those that reach the reader of a memory.

    Example:
        >>> sorted(options_read(LayerConfig(d_model=8, mixer="none", residual="rezero", position="rotary")))
        ['dropout', 'feed_forward', 'mixer', 'residual']
    """
    read = {"mixer", "feed_forward"} | mixer_options(config.mixer) | (memory or frozenset()) - {"attention"}
    if reads_position(config):
        read |= {"position", "num_heads", "head_dim"}
    if memory is not None or not _is_empty(config):
        read |= {"residual", "dropout"} | ({"norm"} if _has_norm(config) else set())
    return frozenset(read)


@dataclass(frozen=True)
class Layers:
    """The layers of a stack, and where their options come from."""

    stack: TransformerConfig  # the options of the stack
    pattern: Pattern  # its layers
    entries: list[LayerConfig]  # the options of each entry of the pattern
    own: list[frozenset[str]]  # the names of the options that each entry sets itself
    memory: frozenset[str] | None = None  # the names of the options that reach the reader of a memory, or None without a memory

    @classmethod
    def of(cls, stack: TransformerConfig, memory: frozenset[str] | None = None) -> Self:
        """Return the layers that the options of a stack describe."""
        pattern = Pattern.of(stack.layers, stack.num_layers)
        common = {field.name: getattr(stack, field.name) for field in fields(LayerConfig)}
        own = [{key: value for key, value in spec.arguments.items() if key in common} for spec in pattern.entries]
        return cls(stack, pattern, [LayerConfig(**common | options) for options in own], [frozenset(options) for options in own], memory)

    @property
    def read(self) -> frozenset[str]:
        """The names of the stack's options that have an effect, on a layer or around the layers."""
        read = {"dropout"} | (self.memory or frozenset()) & {"attention"}  # the score of a memory does not come from its layer
        for config, options in zip(self.entries, self.own, strict=True):
            read |= options_read(config, self.memory) - options
        in_order = [self.entries[self.pattern.entry_at(i)] for i in range(self.pattern.depth)]
        last = next((config for config in reversed(in_order) if self.memory is not None or not _is_empty(config)), None)
        needs_norm = last is not None and residuals.get(residuals.resolve(last.residual).name).needs_final_norm
        if self.stack.embedding_norm or (needs_norm if self.stack.final_norm is None else self.stack.final_norm):
            read |= {"norm"}
        return frozenset(read)

    @property
    def unread(self) -> dict[str, str]:
        """The options of the stack that are set, and may stay although no mixer reads them, each with the reason."""
        given = {name: argument for name, argument in parameters(LayerConfig).items() if name in set(STAYING) - self.read}
        why = f"no mixer of this stack reads it ({self._mixers})"
        return {name: why for name, argument in given.items() if getattr(self.stack, name) != argument.default}

    def check_effects(self) -> None:
        """Raise unless every option that was set has an effect; the message says why an option has none.

        Example:
            >>> Layers.of(TransformerConfig(d_model=8, num_layers=1, mixer="none", attention="additive")).check_effects()
            Traceback (most recent call last):
            ...
            attnkit.registry.errors.ConfigurationError: attention has no effect: no layer has a mixer that reads it (mixers: none); ...
        """
        for i, (config, options) in enumerate(zip(self.entries, self.own, strict=True)):
            if silent := sorted(options - options_read(config, self.memory)):
                self._refuse_in_entry(silent[0], config)
            if self.pattern.entries[i]["share"] and self.pattern.places(i) == 1:
                raise ConfigurationError(
                    f"layers[{i}]: share has no effect, because the entry occurs only once; remove it, or repeat the entry"
                )
        self._check_value_residuals()
        if self.stack.skips and self.pattern.depth == 1:
            raise ConfigurationError("skips has no effect in a stack of one layer, because it has no mirror image; remove it")
        if norms.resolve(self.stack.norm).name == "none":
            for name in ("embedding_norm", "final_norm"):
                if getattr(self.stack, name) != parameters(TransformerConfig)[name].default:
                    raise ConfigurationError(f"{name} has no effect, because the norm is 'none'; remove it, or choose another norm")
        for name in sorted(set(parameters(LayerConfig)) - self.read - {*STAYING, "d_model", "position"}):
            argument = parameters(LayerConfig)[name]
            if argument.resolve(value := getattr(self.stack, name)) != argument.written_default():
                shown = name if argument.registry is None or name == "attention" else f"{name} {argument.registry.resolve(value).name!r}"
                raise ConfigurationError(f"{shown} has no effect: {self._why(name)}")

    def _check_value_residuals(self) -> None:
        """Raise unless all layers with a value residual have values of the same shape, and the first of them keeps all its values."""
        for config in self.entries:
            mixed = [mixer for mixer in mixers_in(config.mixer) if mixes_values(mixer)]
            if mixed and mixers.resolve(config.mixer).name != mixed[0].name:
                raise ConfigurationError("value_residual does not work inside the mixer 'parallel': remove it")
        in_order = [self.entries[self.pattern.entry_at(i)] for i in range(self.pattern.depth)]
        mixing = [config for config in in_order if mixes_values(mixers.resolve(config.mixer))]
        if len(mixing) == 1:
            raise ConfigurationError("value_residual has no effect in a single layer: the values of the first layer are its own; remove it")
        if mixing and mixing[0].window is not None and "window" in options_read(mixing[0]):
            raise ConfigurationError("value_residual needs all values of its first layer, which keeps only its window: remove that window")
        if len({_heads_of_values(config) for config in mixing}) > 1:
            raise ConfigurationError(
                "value_residual mixes the values of layers, so their key and value heads must have the same number and width"
            )

    def _refuse_in_entry(self, name: str, config: LayerConfig) -> None:
        position = positions.resolve(config.position).name
        if name != "position":
            raise ConfigurationError(f"{name} has no effect in a layer {_without(name, config)}; remove it")
        if position != "none":
            raise ConfigurationError(f"position {position!r} has no effect in a layer {_without(name, config)}; remove it")

    def _why(self, name: str) -> str:
        if all(name in options for options in self.own):
            return f"every entry of layers sets its own {name}; remove it"
        if name == "bias" and "bias" in frozenset[str]().union(
            *(parameters(kind) for c in self.entries for kind in mixer_classes(c.mixer))
        ):
            return "the mixer's own biases replace it; remove it"
        if name in _OF_MIXERS:
            return f"no layer has a mixer that reads it ({self._mixers}); remove it, or choose another mixer"
        return f"there are only layers {_without(name, self.entries[0])}; remove it"

    @property
    def _mixers(self) -> str:
        return f"mixers: {', '.join(sorted({mixers.resolve(config.mixer).name for config in self.entries}))}"


def _is_empty(config: LayerConfig) -> bool:
    """Return whether a layer without memory has no sublayer."""
    return mixers.resolve(config.mixer).name == "none" and feed_forwards.resolve(config.feed_forward).name == "none"


def _has_norm(config: LayerConfig) -> bool:
    """Return whether the residual kind of a layer creates norms."""
    return "make_norm" in parameters(residuals.get(residuals.resolve(config.residual).name))


def _without(option: str, config: LayerConfig) -> str:
    """Describe a layer that does not read an option, for messages."""
    if option == "norm" and not _has_norm(config):
        return f"with the residual {residuals.resolve(config.residual).name!r}, which has no norm"
    if option in ("norm", "residual", "dropout"):
        return "without a mixer and a feed-forward network"
    return f"with the mixer {mixers.resolve(config.mixer).name!r}, which does not read it"


def _heads_of_values(config: LayerConfig) -> tuple[int | None, int | None]:
    """Return the number and the width of the value heads."""
    read = mixer_options(config.mixer)
    heads = config.num_kv_heads if "num_kv_heads" in read and config.num_kv_heads else config.num_heads
    width = config.head_width if "head_dim" in read else config.d_model // (config.num_heads or 1)
    return heads, mixers.resolve(config.mixer).get("value_dim") or width


_OF_MIXERS = frozenset(f.name for f in fields(AttentionConfig)) - {"d_model"}
