"""A task's arguments as plain data, from which its checkpoints are rebuilt."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from attnkit.registry import ConfigurationError, ResolvedSpec, Spec, plain_data, tasks, tokenizers
from attnkit.tokenizer import Tokenizer


def plain_arguments(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the task of a registry name, checked and as plain data.

    Defaults are written out, so that a checkpoint does not depend on them.

    Raises:
        ConfigurationError: A spec is wrong, or an argument is not plain data.
    """
    kept = {}
    for argument in tasks.arguments(task):
        name, value = argument.name, arguments[argument.name]
        value = value if isinstance(value, ResolvedSpec) else plain_data(value, path=name)
        kept[name] = plain_data(tasks.checked(argument, value, of=task), path=name)
    return kept


def registered_name(task: type) -> str:
    """Return the registry name of a task's class.

    Raises:
        ConfigurationError: It has none.
    """
    for name in tasks:
        with suppress(ConfigurationError):  # a broken plugin
            if tasks.get(name) is task:
                return name
    raise ConfigurationError(
        f"{task.__qualname__} is not a registered task, so its checkpoints could not be rebuilt: "
        f"decorate it with @attnkit.tasks.register({task.__name__.lower()!r})"
    )


def trained_tokenizer(spec: Spec, argument: str) -> Tokenizer:
    """Return the tokenizer of a spec, the value of a task's `argument`.

    Raises:
        ConfigurationError: It is not trained.
    """
    tokenizer: Tokenizer = tokenizers.build(spec)
    if not tokenizer.trained:
        raise ConfigurationError(f"{argument} is not trained; pass the .spec of a trained one, such as data.{argument}_spec")
    return tokenizer


def require_smoothing(label_smoothing: float) -> None:
    """Raise unless `label_smoothing` is in [0, 1)."""
    if not 0 <= label_smoothing < 1:
        raise ConfigurationError(f"label_smoothing must be at least 0 and below 1, but is {label_smoothing}")
