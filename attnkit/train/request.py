"""A parsed command line."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from attnkit.recipe import read_layers
from attnkit.registry import IMPORTS


@dataclass
class Request:
    """The arguments of `attnkit fit` and its siblings."""

    given: list[str] = field(default_factory=list)  # the whole command line
    recipes: list[str] = field(default_factory=list)
    content: Mapping[str, Any] = field(default_factory=dict)  # a recipe passed from Python as a mapping
    flags: dict[str, Any] = field(default_factory=dict)  # values of `--model...`, `--data...` and `--imports`, as a recipe layer
    others: list[str] = field(default_factory=list)  # everything else, for Lightning's parser
    ckpt_path: str | None = None
    resume: bool = False
    trust: bool = False  # whether to use the whole trainer section of a checkpoint
    out: str | None = None
    print_config: bool = False
    help_of: str | None = None  # the slot, such as `model.stack.attention`, that `--model.stack.attention.help [NAME]` asks about
    help_name: str | None = None

    def layers(self, command: str = "fit") -> list[dict[str, Any]]:
        """Return the layers of all recipes for a command, after importing the modules in recipes and flags."""
        return read_layers(self.recipes, command=command, imports=self.flags.get(IMPORTS, ()), content=self.content)

    def other_flags(self) -> Iterator[tuple[str, str]]:
        """Yield each word for Lightning's parser with what would be its value if it is a flag: the text after `=`, or the next word.

        Example:
            >>> list(Request(others=["--trainer.max_epochs", "3", "--trainer.logger=false"]).other_flags())
            [('--trainer.max_epochs', '3'), ('3', '--trainer.logger=false'), ('--trainer.logger', 'false')]
        """
        for word, after in pairwise([*self.others, ""]):
            key, _, value = word.partition("=")
            yield key, value or after
