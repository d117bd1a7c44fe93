"""What a file of importers says of a family of published models."""

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
"""Our names of their activations."""

THEIRS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
"""Their names of our activations: the first of several."""


Spec = Callable[[Fields], dict[str, Any]]
"""A function from the fields of a configuration, all of which it reads, to arguments of `attnkit.compose`."""
Config = Callable[[dict[str, Any]], dict[str, Any]]
"""A function from an architecture to fields of a configuration."""
Labelled = Mapping[str, Sequence[Rename]]
"""The renames of the heads that label texts or tokens, by the ends of the names of their classes."""


@dataclass(frozen=True)
class Family:
    """One file of importers describes one or more families.

    Args:
        spec: Returns the arguments of `attnkit.compose` for the fields of a configuration.
        config: Returns such fields for an architecture (`attnkit.convert.architecture`). Where the family has no field for an option, or
            none for its value, they describe another architecture, as reading them shows. None: attnkit exports no such models.
        renames: Returns the table of renames for the arguments.
        model_class: The name of transformers' class of the model with its head.
        prefix: What the names of the model without its head begin with; files of that model alone lack it.
        unread: Patterns of stored tensors that the model computes itself.
        aliases: Endings of names in files, and those in the table of renames where they differ.
        copies: Names of tensors that are stored twice, and the names of the others.
        part: The field that holds the configuration of the text model, where the model has other parts; fields around it replace its own.
        others: Fields of these other parts, which are left out.
        labelled: The heads other than that of `model_class` that attnkit has, too; see `attnkit.convert.labelled`.
    """

    spec: Spec
    config: Config | None
    renames: Callable[[dict[str, Any]], Sequence[Rename]]
    model_class: str
    prefix: str
    unread: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    copies: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    others: tuple[str, ...] = ()
    labelled: Labelled = field(default_factory=dict)

    def fields(self, architecture: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a configuration for an architecture."""
        assert self.config is not None, "families that are exported have one"
        return self.config(architecture)


def activation(fields: Fields, name: str, default: str) -> str:
    """Return our name of the activation in a field."""
    theirs = fields.read(name, str, default)
    if theirs not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigurationError(f"{fields.source}: {name} is {short(theirs)}, which attnkit cannot import; known: {known}")
    return ACTIVATIONS[theirs]


def joined(*parts: Config) -> Config:
    """Return the function that joins the fields of several; the last one wins."""
    return lambda architecture: {name: value for part in parts for name, value in part(architecture).items()}


def feed_forward_fields(layer: dict[str, Any], width: str = "intermediate_size", name: str = "hidden_act") -> dict[str, Any]:
    """Return the fields for the width and the activation of the feed-forward network of a layer, or of its experts."""
    network = layer["feed_forward"].get("expert", layer["feed_forward"])
    known = THEIRS.get(network.get("activation"))
    return {width: network["ffn_dim"] or 1, **({} if known is None else {name: known})}


def one_dropout(fields: Fields, residual: str, embedding: str, default: float) -> float:
    """Return the dropout of sublayers and of embedded tokens, which attnkit has in one argument, so that both fields must be equal."""
    dropout, embedded = fields.read(residual, float, default), fields.read(embedding, float, default)
    if dropout != embedded:
        raise ConfigurationError(f"{fields.source}: {residual} is {dropout} and {embedding} {embedded}, but attnkit has one `dropout`")
    return dropout
