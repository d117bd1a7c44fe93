"""The description of a family of published models, which a family file provides."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any

from attnkit.convert.fields import Fields
from attnkit.convert.renames import Rename
from attnkit.registry import ConfigurationError

ACTIVATIONS = {
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu": "gelu"},
    **{"silu": "silu", "swish": "silu", "relu": "relu", "quick_gelu": "quick_gelu"},
    **{"relu2": "relu_squared", "linear": "identity"},
}
"""attnkit's names of transformers' activations."""

THEIRS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""transformers' names of attnkit's activations; the first if there are several."""


Spec = Callable[[Fields], dict[str, Any]]
"""A function from the fields of a configuration, of which it must read all, to arguments of `attnkit.compose`."""
Config = Callable[[dict[str, Any]], dict[str, Any]]
"""A function from an architecture (`attnkit.convert.architecture`) to fields of a configuration."""
Labelled = Mapping[str, Sequence[Rename]]
"""The renames of heads that label texts or tokens, by the suffixes of transformers' class names."""


@dataclass(frozen=True)
class Family:
    """A family of published models.

    If it cannot express an option of an architecture or its value, the fields that `config` returns describe a different architecture,
    which shows when they are read back.
    """

    spec: Spec
    config: Config | None  # None: attnkit does not export the family
    renames: Callable[[dict[str, Any]], Sequence[Rename]]  # returns the table of renames for the arguments of `attnkit.compose`
    model_class: str  # the name of transformers' class of the model with its head
    prefix: str  # the prefix of the names of the model without its head; files of that model alone lack the prefix
    unread: tuple[str, ...] = ()  # patterns of stored tensors that are not read, because the model computes or does not need them
    aliases: Mapping[str, str] = field(default_factory=dict)  # endings of names in files, and those in the table, where they differ
    copies: Mapping[str, str] = field(default_factory=dict)  # names of tensors that are stored twice, and those of their originals
    part: str = ""  # the field with the configuration of the text model, if the model has other parts; outer fields override its own
    others: tuple[str, ...] = ()  # fields of the other parts, which are ignored
    labelled: Labelled = field(default_factory=dict)  # further heads that attnkit supports; see `attnkit.convert.labelled`

    def fields(self, architecture: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a configuration for an architecture."""
        assert self.config is not None, "families that are exported have one"
        return self.config(architecture)


def activation(fields: Fields, name: str, default: str) -> str:
    """Return attnkit's name of the activation in a field."""
    theirs = fields.read(name, str, default)
    if theirs not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigurationError(f"{fields.source}: {name} is {short(theirs)}, which attnkit cannot import; known: {known}")
    return ACTIVATIONS[theirs]


def joined(*parts: Config) -> Config:
    """Return a function that merges the fields of several; later ones win."""
    return lambda architecture: {name: value for part in parts for name, value in part(architecture).items()}


def feed_forward_fields(layer: dict[str, Any], width: str = "intermediate_size", name: str = "hidden_act") -> dict[str, Any]:
    """Return the fields for the width and the activation of a layer's feed-forward network or experts."""
    network = layer["feed_forward"].get("expert", layer["feed_forward"])
    known = THEIRS.get(network.get("activation"))
    return {width: network["ffn_dim"] or 1, **({} if known is None else {name: known})}


def one_dropout(fields: Fields, residual: str, embedding: str, default: float) -> float:
    """Return the dropout of sublayers and embeddings, which are a single argument in attnkit, so that both fields must be equal."""
    dropout, embedded = fields.read(residual, float, default), fields.read(embedding, float, default)
    if dropout != embedded:
        raise ConfigurationError(f"{fields.source}: {residual} is {dropout} and {embedding} is {embedded}, but attnkit has one `dropout`")
    return dropout
