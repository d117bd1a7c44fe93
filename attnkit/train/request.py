"""What a command is asked for."""

from dataclasses import dataclass, field
from typing import Any

from attnkit.recipe import read_layers
from attnkit.registry import IMPORTS


@dataclass
class Request:
    """The arguments of `attnkit fit` and its siblings."""

    given: list[str] = field(default_factory=list)
    """All of them, as they were given."""
    recipes: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)
    """What `--model...`, `--data...` and `--imports` ask for, as a layer."""
    others: list[str] = field(default_factory=list)
    """Everything else, for Lightning's parser."""
    ckpt_path: str | None = None
    resume: bool = False
    trust: bool = False
    """Whether all of the trainer section in a checkpoint is used."""
    out: str | None = None
    print_config: bool = False
    help_of: str | None = None
    """The slot, such as `model.stack.attention`, for which `--model.stack.attention.help [NAME]` asks."""
    help_name: str | None = None

    def layers(self, command: str = "fit") -> list[dict[str, Any]]:
        """Return the layers of all recipes for a command, after importing the modules that they and the flags name."""
        return read_layers(self.recipes, command=command, imports=self.flags.get(IMPORTS, ()))
