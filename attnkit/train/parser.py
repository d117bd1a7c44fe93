"""The parser for Lightning's part of the command line."""

import re
from collections.abc import Callable
from typing import Any, NoReturn, Union, get_args

from lightning.pytorch import callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

from attnkit.recipe import SPEC_KEYS
from attnkit.registry import ConfigurationError, nearest
from attnkit.train.links import Link


class Parser(LightningArgumentParser):
    """Lightning's parser with one short message for each mistake, and no abbreviations: the next release may add a key that one fits."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)
        self.links: list[Link] = []

    @override
    def link_arguments(
        self, source: str | tuple[str, ...], target: str, compute_fn: Callable[..., Any] | None = None, apply_on: str = "parse"
    ) -> None:
        """Link arguments as jsonargparse does; links from or to the model and the data are kept for the registries, which hold those."""
        sources = (source,) if isinstance(source, str) else tuple(source)
        if any(key.partition(".")[0] in SPEC_KEYS for key in (*sources, target)):
            self.links.append(Link(sources, target, compute_fn, apply_on))
        else:
            super().link_arguments(source, target, compute_fn=compute_fn, apply_on=apply_on)

    def put_integers_first(self) -> None:
        """Read a number without a decimal point as an integer where both types fit: `limit_train_batches=1` is one batch, 1.0 is all.

        jsonargparse takes the first type of a union that fits. But `typing` caches `Optional[Union[int, float]]` and
        `Optional[Union[float, int]]` as one object, whichever came first, so the order in Lightning's signature depends on import order.
        """
        for action in self._actions:
            types = get_args(getattr(action, "_typehint", None))
            if int in types and float in types:
                action._typehint = Union[tuple(sorted(types, key=lambda kind: kind is float))]  # type: ignore[attr-defined]  # noqa: UP007

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise `message`, with a suggestion, as a `ConfigurationError`: jsonargparse's shows its own types, and ends the process."""
        parsers = [self, *(p for action in self._actions if isinstance(action.choices, dict) for p in action.choices.values())]
        options = [o.lstrip("-") for parser in parsers for action in parser._actions for o in action.option_strings]
        if unknown := re.search(r"unrecognized arguments: (?:--)?([\w.]+)|does not accept option '([\w.]+)'|Option '([\w.]+)'", message):
            word = next(group for group in unknown.groups() if group)
            word = f"trainer.{word}" if "Group 'trainer'" in message else word
            keys = sorted({o.partition(".")[0] for o in options} - {"c", "h", "help", "print_config", "print_shtab"} | {"model", "data"})
            near = nearest(word, options) if word.startswith("trainer.") else nearest(word.partition(".")[0], keys)
            message = f"unknown argument {word!r}.{near} Known: {', '.join(keys)}; `attnkit fit --trainer.help` lists the trainer's."
        elif wrong := re.search(r'Parser key "([\w.]+)":.*?Subtypes: \[(.*?)\]\n.*?Given value: (.*)$', message, re.DOTALL):
            wanted = re.sub(r"<class '([\w.]+)'>|typing\.Literal\[(.*?)\]", r"\1\2", wrong[2])
            wanted = re.sub(r"\w+\.(?=\w)", "", wanted).replace("NoneType", "null").replace("'", "").replace(", ", " or ")
            known = [*wanted.split(" or "), *callbacks.__all__, *loggers.__all__]
            message = f"{wrong[1]} must be {wanted}, but is {wrong[3]}.{nearest(wrong[3], known)}"
        raise ConfigurationError(message) from ex
