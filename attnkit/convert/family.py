"""What an importer says of a family of published models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from attnkit.convert.fields import Fields
from attnkit.convert.renames import Rename
from attnkit.registry import ConfigurationError

ACTIVATIONS = {
    **{"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu": "gelu"},
    **{"silu": "silu", "swish": "silu", "relu": "relu", "quick_gelu": "quick_gelu"},
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
    """

    spec: Callable[[Fields], dict[str, Any]]
    renames: Callable[[dict[str, Any]], Sequence[Rename]]
    prefix: str
    unread: tuple[str, ...] = ()


def activation(fields: Fields, name: str, default: str) -> str:
    """Return our name of the activation in a field."""
    theirs = fields.read(name, default)
    if theirs not in ACTIVATIONS:
        raise ConfigurationError(f"{fields.source}: {name} is {theirs!r}, which attnkit cannot import; known: {', '.join(ACTIVATIONS)}")
    return ACTIVATIONS[theirs]
