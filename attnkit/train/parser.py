"""The parser for Lightning's part of the command line."""

import re
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, NoReturn, Union, get_args

from lightning.pytorch import callbacks, loggers
from lightning.pytorch.cli import LightningArgumentParser
from typing_extensions import override

import attnkit.callback
from attnkit.recipe import SPEC_KEYS
from attnkit.registry import ConfigurationError, did_you_mean, nearest
from attnkit.train.links import Link
from attnkit.train.messages import reasons_in


class Parser(LightningArgumentParser):
    """Lightning's parser with one short message per mistake, and no abbreviations, which a later release could make ambiguous."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, allow_abbrev=False, **kwargs)
        self.links: list[Link] = []
        self.spec_keys: list[str] = []  # dotted keys of the model and the data, for suggestions
        self.class_name: str | None = None

    @override
    def link_arguments(
        self, source: str | tuple[str, ...], target: str, compute_fn: Callable[..., Any] | None = None, apply_on: str = "parse"
    ) -> None:
        """Link arguments as jsonargparse does; keep links from or to the model and the data, which this parser does not know."""
        sources = (source,) if isinstance(source, str) else tuple(source)
        if any(key.partition(".")[0] in SPEC_KEYS for key in (*sources, target)):
            self.links.append(Link(sources, target, compute_fn, apply_on))
        else:
            super().link_arguments(source, target, compute_fn=compute_fn, apply_on=apply_on)

    @override
    def set_defaults(self, *args: Any, **kwargs: Any) -> None:
        """Set defaults as argparse does; reject those of the model and the data, which are read before this parser is built."""
        try:
            super().set_defaults(*args, **kwargs)
        except KeyError as error:
            keys = [key for given in (*args, kwargs) for key in given if key.partition(".")[0] in SPEC_KEYS]
            if not keys:
                raise
            raise ConfigurationError(
                f"set_defaults: {keys[0]} is not an argument of this parser; set its default in the constructor or in a recipe"
            ) from error

    def put_integers_first(self) -> None:
        """Parse a number without a decimal point as an integer where both types fit: `limit_train_batches=1` is one batch, 1.0 is all.

        jsonargparse uses the first type of a union that fits, but `typing` caches `Optional[Union[int, float]]` and
        `Optional[Union[float, int]]` as one object, whichever came first, so the order in Lightning's signature depends on import order.
        """
        for action in self._actions:
            types = get_args(getattr(action, "_typehint", None))
            if int in types and float in types:  # the other types keep their places: a `str` before `float` would match 0.5
                numbers = iter((int, float))
                ordered = tuple(next(numbers) if kind in (int, float) else kind for kind in types)
                action._typehint = Union[ordered]  # type: ignore[attr-defined]  # noqa: UP007

    @override
    def add_class_arguments(self, theclass: Any, *args: Any, **kwargs: Any) -> Any:
        """Add the arguments of a class, and keep its name for messages: jsonargparse makes a parser for each class path."""
        self.class_name = self.class_name or getattr(theclass, "__name__", str(theclass))
        added = super().add_class_arguments(theclass, *args, **kwargs)
        for action in self._actions:  # a default such as `Interval.step` of Lightning's Timer, which is annotated as a string
            if isinstance(action.default, str) and isinstance(action.default, Enum) and getattr(action, "_typehint", str) is str:
                action.default = str(action.default.value)
        return added

    @override
    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Raise `message`, with a suggestion, as a `ConfigurationError`; jsonargparse would show its own types and exit."""
        parsers = [self, *(p for action in self._actions if isinstance(action.choices, dict) for p in action.choices.values())]
        options = [o.lstrip("-") for parser in parsers for action in parser._actions for o in action.option_strings]
        is_command_line = any(option.partition(".")[0] == "trainer" for option in options)
        raise ConfigurationError(
            _command_line_error(message, options, self.spec_keys) if is_command_line else _class_error(message, options, self.class_name)
        ) from ex


_UNKNOWN = r"unrecognized arguments: (?:--)?([\w.]+)|does not accept option '([\w.]+)'|Option '([\w.]+)'"
_REQUESTS = {"config", "data", "imports", "model", "resume", "trust"}  # parsed before this parser runs
_INTERNAL = {"c", "h", "help", "config", "print_config", "print_shtab"}
_QUOTES = "'\""
_CLASSES = [*callbacks.__all__, *loggers.__all__, *attnkit.callback.__all__]


def _command_line_error(message: str, options: Sequence[str], spec_keys: Sequence[str]) -> str:
    message = re.sub(r'^Parser key "config":\s*', "", message)
    if unknown := re.search(_UNKNOWN, message):
        word = next(group for group in unknown.groups() if group)
        word = f"trainer.{word}" if "Group 'trainer'" in message else word
        keys = sorted({o.partition(".")[0] for o in options} - _INTERNAL | _REQUESTS)
        if word.startswith("trainer."):
            near = nearest(word, options)
        elif deeper := [key for key in {*spec_keys, *options, *keys} if key.endswith(f".{word}") or key.startswith(f"{word}_")]:
            near = did_you_mean(sorted(deeper, key=lambda key: (len(key), key))[:2])
        elif word.partition(".")[0] in ("optimizer", "lr_scheduler"):
            near = " The module's own configure_optimizers decides."
        else:
            near = nearest(word.partition(".")[0], keys)
        return f"unknown argument {word!r}.{near} Known: {', '.join(keys)}; --trainer.help lists the trainer's."
    if rejected := re.search(r'Parser key "([\w.]+)":.*?Subtypes: \[(.*?)\]\n(.*?)Given value: (.*)$', message, re.DOTALL):
        key, subtypes, errors, value = rejected.groups()
        reasons = reasons_in(errors)
        known = _CLASSES if key.startswith(("trainer.callbacks", "trainer.logger")) else []
        return f"{key}: {_reason(reasons[0], value, known)}" if reasons else _must_be(key, subtypes, value, known)
    if rejected := re.search(r'Parser key "([\w.]+)":\s+Unable to load config (.*)$', message):
        return f"{rejected[1]} must be a mapping, but is {rejected[2].strip(_QUOTES)}"
    return message


def _reason(item: str, value: str, known: Sequence[str]) -> str:
    """Return why a class, or an argument of one, was rejected. (jsonargparse omits a value that is a single word.)"""
    item = " ".join(item.split())
    if path := re.match(r"Problem with given class_path '(.*?)': (.*)", item):
        return f"there is no class {path[1]!r} ({path[2]}).{nearest(path[1].rpartition('.')[2], known)}"
    if other := re.match(r"Import path (\S+ )?does not correspond to a subclass of (\w+)", item):
        return f"{(other[1] or value).strip()} is not a subclass of {other[2]}"
    return item


def _class_error(message: str, options: Sequence[str], name: str | None) -> str:
    arguments = sorted(option for option in {*options} - _INTERNAL if not option.endswith(".help"))
    if unknown := re.search(_UNKNOWN, message):
        word = next(group for group in unknown.groups() if group)
        near = nearest(word, [*arguments, "class_path", "init_args"])
        return f"{name} has no argument {word!r}.{near} Its arguments: {', '.join(arguments) or 'none'}"
    if missing := re.search(r"the following arguments are required: (.*)$", message):
        return f"{name} needs {missing[1]}"
    if rejected := re.search(r'Parser key "([\w.]+)":.*?Subtypes: \[(.*?)\]\n.*?Given value: (.*)$', message, re.DOTALL):
        return f"{name}: {_must_be(rejected[1], rejected[2], rejected[3], [])}"
    if rejected := re.search(r'Parser key "([\w.]+)":\s+Expected an? (.*?)\. Got value: (.*)$', message, re.DOTALL):
        return f"{name}: {_must_be(rejected[1], rejected[2], rejected[3], [])}"
    return message


def _must_be(key: str, subtypes: str, value: str, known: Sequence[str]) -> str:
    types = re.sub(r"<class '([\w.]+)'>|typing\.Literal\[(.*?)\]", r"\1\2", subtypes)
    types = re.sub(r"\w+\.(?=\w)", "", types).replace("NoneType", "null").replace("'", "")
    wanted = list(dict.fromkeys(types.split(", ")))  # 16 and "16" look the same
    return f"{key} must be {' or '.join(wanted)}, but is {value}.{nearest(value, [*wanted, *known])}"
