"""An additional layer, like the last one of a stack."""

from dataclasses import fields
from typing import Any

from attnkit.layers.compatibility import adds
from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.layers.effects import Layers, reads_position
from attnkit.registry import mixers, positions


def last_layer(config: TransformerConfig) -> dict[str, Any]:
    """Return the options of a one-layer stack whose layer is like the last one of another stack.

    Positions that are added to the embeddings, or that the layer does not read, are omitted, as is a value residual, which reads an earlier
    layer.

    Example:
        >>> config = TransformerConfig(d_model=8, num_layers=4, num_heads=2, layers=[{"window": 3}, {"mixer": "retention"}])
        >>> last_layer(config)["mixer"]["name"], "window" in last_layer(config)
        ('retention', False)
    """
    layers = Layers.of(config)
    last = layers.entries[layers.pattern.entry_at(layers.pattern.depth - 1)]
    options = {field.name: getattr(last, field.name) for field in fields(LayerConfig)}
    mixer = mixers.resolve(last.mixer)
    options["mixer"] = mixer.replace(value_residual=None) if mixer.get("value_residual") is not None else mixer
    if not reads_position(last) or adds(positions.get(positions.resolve(last.position).name)):
        options["position"] = "none"
    alone = Layers.of(TransformerConfig(**options, num_layers=1, final_norm=config.final_norm))
    kept = alone.read | {"d_model", "position"}
    return {name: value for name, value in options.items() if name in kept} | {"num_layers": 1, "final_norm": config.final_norm}
