"""A canonical form of a model's computation: specs that describe the same model have equal architectures."""

from collections.abc import Iterator, Mapping
from dataclasses import fields
from math import isclose
from typing import Any, cast

from attnkit.embedding.token import Token
from attnkit.layers.compatibility import adds
from attnkit.layers.config import LayerConfig, TransformerConfig
from attnkit.layers.effects import Layers
from attnkit.mixer.config import MultiHeadConfig, Projection
from attnkit.models import ClassifierModel, DecoderModel, EncoderModel
from attnkit.registry import ConfigurationError, norms, positions
from attnkit.registry.arguments import parameters

PROJECTIONS: tuple[Projection, ...] = ("query", "key", "value", "output")
NOT_COMPARED = frozenset({"dropout", "attention_dropout", "balance_loss", "z_loss", "backend", "pad_id"})
"""Options that do not change what a trained model computes."""
Exportable = DecoderModel | EncoderModel | ClassifierModel


def architecture(model: Exportable) -> dict[str, Any]:
    """Return the options of a decoder or an encoder and of each of its layers, with defaults resolved to numbers.

    The score `scaled_dot_product` becomes `dot_product` with an explicit scale, and `bias` becomes the list `biases`.

    Raises:
        ConfigurationError: No published family has such layers.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="decoder", d_model=16, num_layers=2, num_heads=4, position="rotary", vocab_size=20)
        >>> layer = architecture(model)["layers"][1]
        >>> layer["head_dim"], layer["num_kv_heads"], layer["mixer"]["scale"], layer["feed_forward"]["ffn_dim"]
        (4, 4, 0.5, 64)
    """
    spec, kind = model.spec, model.spec["stack"]
    if kind not in ("decoder", "encoder") or not isinstance(model.embedding, Token):
        what = f"embedding: {spec['embedding']['name']}" if kind in ("decoder", "encoder") else f"stack: {kind}"
        raise ConfigurationError(f"only a decoder or an encoder with the embedding 'token' can be exported, but this model has {what}")
    stack, head = getattr(model.stack, kind), spec.get("head")
    options = {field.name: spec[field.name] for field in fields(TransformerConfig) if field.name in spec}
    layers = Layers.of(TransformerConfig(**options))
    entries = [layers.pattern.entry_at(depth) for depth in range(layers.pattern.depth)]
    found = []
    for depth, entry in enumerate(entries):
        widths = {name: p.shape[0] for name, p in stack.layers[stack.order[depth]].feed_forward.named_parameters()}
        width = next((size for name, size in widths.items() if name.endswith("input.weight")), None)
        later = kind == "encoder" and depth > 0
        found.append({"share": layers.pattern.entries[entry]["share"], **_layer(layers.entries[entry], width, is_later=later)})
    has_norm = stack.final_norm or stack.embedding_norm or (head is not None and head["name"] == "bert")
    norm = norms.resolve(spec["norm"]).plain() if has_norm else None
    added = positions.resolve(spec["position"])
    return {
        "stack": kind, "d_model": spec["d_model"], "vocab_size": spec["vocab_size"], "layers": found, "tie": spec.get("tie", "none"),
        "head": head, "num_classes": spec.get("num_classes"), "pooling": getattr(model, "pooling", None),
        "pooler": getattr(model, "pooler", None) is not None, "pad_id": spec["pad_id"],
        "embedding": {**spec["embedding"], "scale": model.embedding.factor}, "multi_token": spec.get("multi_token"),
        "skips": spec["skips"], "norm": norm, "final_norm": stack.final_norm is not None, "embedding_norm": spec["embedding_norm"],
        "dropout": spec["dropout"], "shared_positions": spec["shared_positions"],
        "embedding_position": added.plain() if adds(positions.get(added.name)) else None,
    }  # fmt: skip


def _layer(config: LayerConfig, ffn_dim: int | None, *, is_later: bool) -> dict[str, Any]:
    """Return the options of a layer with this feed-forward (or expert) width; later layers of an encoder may lack a mixer."""
    options = {name: argument.resolve(getattr(config, name)) for name, argument in parameters(LayerConfig).items()}
    found = {name: value.plain() if hasattr(value, "plain") else value for name, value in options.items()}
    mixer, feed_forward = found["mixer"], {**found["feed_forward"]}
    feed_forward.get("expert", feed_forward)["ffn_dim"] = ffn_dim
    if mixer["name"] == "none" and is_later:
        return {**{name: found[name] for name in ("mixer", "norm", "residual")}, "feed_forward": feed_forward}
    if mixer["name"] != "multi_head":
        raise ConfigurationError(f"no family that can be exported has the mixer {mixer['name']!r}, only multi_head")
    own = {name: value for name, value in mixer.items() if name != "name"}
    attention = MultiHeadConfig(**{name: options[name] for name in parameters(MultiHeadConfig) if name in options}, **own)
    width = cast(int, attention.head_width)
    narrow = None if mixer["value_dim"] == width else mixer["value_dim"]
    scale = mixer["scale"] * (width**-0.5 if found["attention"]["name"] == "scaled_dot_product" else 1.0)
    return {
        **{name: value for name, value in found.items() if name not in ("bias", "d_model")},
        "mixer": {**{name: value for name, value in mixer.items() if name != "biases"}, "scale": scale, "value_dim": narrow},
        "attention": {**found["attention"], "name": found["attention"]["name"].removeprefix("scaled_")},
        "num_kv_heads": found["num_kv_heads"] or found["num_heads"], "head_dim": width, "feed_forward": feed_forward,
        "biases": [projection for projection in PROJECTIONS if attention.has_bias(projection)],
    }  # fmt: skip


def differences(wanted: Any, found: Any, path: str = "") -> Iterator[str]:
    """Yield each option of an architecture that another one lacks, in the form `position: alibi`.

    Example:
        >>> list(differences({"head": {"name": "linear", "scale": 2.0}, "tie": "none"}, {"head": {"name": "linear"}, "tie": "none"}))
        ['head.scale: 2.0']
        >>> list(differences({"biases": []}, {"biases": ["query"]}))
        ['biases: none']
    """
    if isinstance(wanted, Mapping) and isinstance(found, Mapping) and wanted.get("name") == found.get("name"):
        for key in sorted((wanted.keys() | found.keys()) - NOT_COMPARED):
            yield from differences(wanted.get(key), found.get(key), f"{path}.{key}" if path else key)
    elif path == "layers":
        for one, other in zip(wanted, found, strict=False):
            yield from differences(one, other)
        if len(wanted) != len(found):
            yield path
    elif not (isclose(wanted, found, rel_tol=1e-12) if isinstance(wanted, float) and isinstance(found, float) else wanted == found):
        named = wanted["name"] if isinstance(wanted, Mapping) and "name" in wanted else wanted
        yield f"{path}: {'none' if named == [] else named}"
