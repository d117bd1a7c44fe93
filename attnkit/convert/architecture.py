"""What a model computes, in one form: two specs that describe the same model have equal ones."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import isclose
from typing import Any, cast

from attnkit.embedding.token import Token
from attnkit.layers.compatibility import adds
from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.layers.effects import Layers
from attnkit.mixer.config import MultiHeadConfig, Projection
from attnkit.models import DecoderModel
from attnkit.registry import ConfigurationError, norms, positions
from attnkit.registry.arguments import parameters

PROJECTIONS: tuple[Projection, ...] = ("query", "key", "value", "output")
ONLY_TRAINING = frozenset({"dropout", "attention_dropout", "balance_loss", "z_loss", "backend"})
"""Options that do not change what a trained model computes."""


def architecture(model: DecoderModel) -> dict[str, Any]:
    """Return the options of a decoder and of each of its layers, with numbers in place of defaults.

    The score `scaled_dot_product` becomes `dot_product` with the scale that it has, and `bias` the list of the `biases`.

    Raises:
        ConfigurationError: No published family has such layers.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="decoder", d_model=16, num_layers=2, num_heads=4, position="rotary", vocab_size=20)
        >>> layer = architecture(model)["layers"][1]
        >>> layer["head_dim"], layer["num_kv_heads"], layer["mixer"]["scale"], layer["feed_forward"]["ffn_dim"]
        (4, 4, 0.5, 64)
    """
    spec = model.spec
    if spec["stack"] != "decoder" or not isinstance(model.embedding, Token):
        what = f"embedding: {spec['embedding']['name']}" if spec["stack"] == "decoder" else f"stack: {spec['stack']}"
        raise ConfigurationError(f"only a decoder with the embedding 'token' can be exported, but this model has {what}")
    stack = cast(Any, model.stack).decoder
    options = {field.name: spec[field.name] for field in fields(TransformerConfig) if field.name in spec}
    layers = Layers.of(TransformerConfig(**options))
    entries = [layers.pattern.entry_at(depth) for depth in range(layers.pattern.depth)]
    found = []
    for depth, entry in enumerate(entries):
        widths = {name: p.shape[0] for name, p in stack.layers[stack.order[depth]].feed_forward.named_parameters()}
        width = next((size for name, size in widths.items() if name.endswith("input.weight")), None)
        found.append({"share": layers.pattern.entries[entry]["share"], **_layer(layers.entries[entry], width)})
    norm = norms.resolve(spec["norm"]).plain() if stack.final_norm or stack.embedding_norm else None
    added = positions.resolve(spec["position"])
    return {
        "d_model": spec["d_model"], "vocab_size": spec["vocab_size"], "layers": found, "tie": spec.get("tie", "none"),
        "head": spec["head"], "embedding": {**spec["embedding"], "scale": model.embedding.factor},
        "multi_token": spec.get("multi_token"), "skips": spec["skips"], "norm": norm, "final_norm": stack.final_norm is not None,
        "embedding_norm": spec["embedding_norm"], "dropout": spec["dropout"], "shared_positions": spec["shared_positions"],
        "embedding_position": added.plain() if adds(positions.get(added.name)) else None,
    }  # fmt: skip


def _layer(config: LayerConfig, ffn_dim: int | None) -> dict[str, Any]:
    """Return the options of a layer, whose feed-forward network or experts have this width."""
    options = {name: argument.resolve(getattr(config, name)) for name, argument in parameters(LayerConfig).items()}
    found = {name: value.plain() if hasattr(value, "plain") else value for name, value in options.items()}
    mixer = found["mixer"]
    if mixer["name"] != "multi_head":
        raise ConfigurationError(f"no family that can be exported has the mixer {mixer['name']!r}, only multi_head")
    own = {name: value for name, value in mixer.items() if name != "name"}
    attention = MultiHeadConfig(**{name: options[name] for name in parameters(MultiHeadConfig) if name in options}, **own)
    width = cast(int, attention.head_width)
    scale = mixer["scale"] * (width**-0.5 if found["attention"]["name"] == "scaled_dot_product" else 1.0)
    feed_forward = {**found["feed_forward"]}
    feed_forward.get("expert", feed_forward)["ffn_dim"] = ffn_dim
    return {
        **{name: value for name, value in found.items() if name not in ("bias", "d_model")},
        "mixer": {**{name: value for name, value in mixer.items() if name != "biases"}, "scale": scale},
        "attention": {**found["attention"], "name": found["attention"]["name"].removeprefix("scaled_")},
        "num_kv_heads": found["num_kv_heads"] or found["num_heads"], "head_dim": width, "feed_forward": feed_forward,
        "biases": [projection for projection in PROJECTIONS if attention.has_bias(projection)],
    }  # fmt: skip


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield each option of an architecture that another one does not have, as `position: alibi`.

    Example:
        >>> list(differences({"head": {"name": "linear", "scale": 2.0}, "tie": "none"}, {"head": {"name": "linear"}, "tie": "none"}))
        ['head.scale: 2.0']
    """
    if isinstance(wanted, Mapping) and isinstance(found, Mapping) and wanted.get("name") == found.get("name"):
        for key in sorted((wanted.keys() | found.keys()) - ONLY_TRAINING):
            yield from differences(wanted.get(key), found.get(key), f"{path}.{key}" if path else key)
    elif path == "layers" and len(wanted) == len(found):
        for one, other in zip(wanted, found, strict=True):
            yield from differences(one, other)
    elif not (isclose(wanted, found, rel_tol=1e-12) if isinstance(wanted, float) and isinstance(found, float) else wanted == found):
        yield f"{path}: {wanted['name'] if isinstance(wanted, Mapping) and 'name' in wanted else wanted}"
