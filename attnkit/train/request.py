"""The request that a command line makes."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from attnkit.recipe import read_layers
from attnkit.registry import IMPORTS


@dataclass
class Request:
    """The arguments of `attnkit fit` and its siblings."""

    given: list[str] = field(default_factory=list)  # all of them, as given
    recipes: list[str] = field(default_factory=list)
    content: Mapping[str, Any] = field(default_factory=dict)  # a recipe as a mapping, from Python
    flags: dict[str, Any] = field(default_factory=dict)  # the values of `--model...`, `--data...` and `--imports`, as a layer
    others: list[str] = field(default_factory=list)  # everything else, for Lightning's parser
    ckpt_path: str | None = None
    resume: bool = False
    trust: bool = False  # whether to use the whole trainer section of a checkpoint
    out: str | None = None
    print_config: bool = False
    help_of: str | None = None  # the slot, such as `model.stack.attention`, that `--model.stack.attention.help [NAME]` asks about
    help_name: str | None = None

    def layers(self, command: str = "fit") -> list[dict[str, Any]]:
        """Return the layers of all recipes for a command, after importing the modules that they and the flags list."""
        return read_layers(self.recipes, command=command, imports=self.flags.get(IMPORTS, ()), content=self.content)

    def other_flags(self) -> Iterator[tuple[str, str]]:
        """Yield each word for Lightning's parser with its value, if it is a flag: what follows its `=`, or else the next word.

        Example:
            >>> list(Request(others=["--trainer.max_epochs", "3", "--trainer.logger=false"]).other_flags())
            [('--trainer.max_epochs', '3'), ('3', '--trainer.logger=false'), ('--trainer.logger', 'false')]
        """
        for word, after in pairwise([*self.others, ""]):
            key, _, value = word.partition("=")
            yield key, value or after
