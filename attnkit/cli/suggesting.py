"""An argument parser that suggests corrections in its errors."""

import argparse
import re
from collections.abc import Iterator
from typing import Any, NoReturn

from typing_extensions import override

from attnkit.registry import nearest

_UNKNOWN = re.compile(r"unrecognized arguments: (?:.* )?(--[\w-]+)|invalid choice: '([^']*)' \(choose from (.*)\)")


def seed(text: str) -> int:
    """Return a seed given on the command line; like `seed_everything`, it must fit in 32 bits."""
    if not 0 <= (found := int(text)) < 2**32:
        raise argparse.ArgumentTypeError(f"must be from 0 to {2**32 - 1}, but is {text}")
    return found


class SuggestingParser(argparse.ArgumentParser):
    """Adds the closest match to errors about unknown options and words.

    Example:
        >>> parser = SuggestingParser(prog="attnkit bench", exit_on_error=False)
        >>> _ = parser.add_argument("--rounds")
        >>> list(parser.known())
        ['-h', '--help', '--rounds']
    """

    @override
    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; options may also stand between words of which there may be any number, as in `generate CHECKPOINT --stream TEXT`."""
        chosen, rest = self.parse_known_args(args, namespace)
        if rest and self._subparsers is None:
            return self.parse_intermixed_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        return chosen

    @override
    def error(self, message: str) -> NoReturn:
        if found := _UNKNOWN.search(message):
            option, word, choices = found.groups()
            message += "." + near if (near := nearest(option or word, re.findall(r"[^', ]+", choices) if choices else self.known())) else ""
        super().error(message)

    def known(self) -> Iterator[str]:
        """Yield the options of this parser and of its subcommands."""
        for action in self._actions:
            yield from action.option_strings
            if isinstance(action, argparse._SubParsersAction):
                yield from (option for parser in action.choices.values() for option in parser.known())
