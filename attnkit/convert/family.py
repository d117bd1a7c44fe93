"""What an importer says of a family of published models."""

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


@dataclass(frozen=True)
class Family:
    """One file of importers describes one or more families.

    Args:
        spec: Returns the arguments of `attnkit.compose` for the fields of a configuration, all of which it reads.
        renames: Returns the table of renames for the arguments.
        prefix: What the names of the model without its head begin with; files of that model alone lack it.
        unread: Patterns of stored tensors that the model computes itself.
        aliases: Names in files, and those in the table of renames where they differ.
    """

    spec: Callable[[Fields], dict[str, Any]]
    renames: Callable[[dict[str, Any]], Sequence[Rename]]
    prefix: str
    unread: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)


def activation(fields: Fields, name: str, default: str) -> str:
    """Return our name of the activation in a field."""
    theirs = fields.read(name, str, default)
    if theirs not in ACTIVATIONS:
        known = ", ".join(ACTIVATIONS)
        raise ConfigurationError(f"{fields.source}: {name} is {short(theirs)}, which attnkit cannot import; known: {known}")
    return ACTIVATIONS[theirs]


def one_dropout(fields: Fields, residual: str, embedding: str, default: float) -> float:
    """Return the dropout of sublayers and of embedded tokens, which attnkit has in one argument, so that both fields must be equal."""
    dropout, embedded = fields.read(residual, float, default), fields.read(embedding, float, default)
    if dropout != embedded:
        raise ConfigurationError(f"{fields.source}: {residual} is {dropout} and {embedding} {embedded}, but attnkit has one `dropout`")
    return dropout
