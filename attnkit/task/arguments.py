"""A task's arguments as plain data, from which its checkpoints are rebuilt."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from attnkit.registry import ConfigurationError, Spec, optimizers, tasks, tokenizers
from attnkit.tokenizer import Tokenizer


def plain_arguments(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the task of a registry name, checked and as plain data.

    Defaults are written out, so that a checkpoint does not depend on them; those of torch's optimizers are left to torch.

    Raises:
        ConfigurationError: A spec is wrong, or an argument is not plain data.
    """
    declared = tasks.arguments(task)
    plain = {a.name: plain_data(arguments[a.name], path=a.name) for a in declared}
    tasks.parse({"name": task, **plain})
    for argument in declared:
        slot = argument.registry
        if slot is not None and slot is not optimizers and plain[argument.name] is not None:
            plain[argument.name] = plain_data(slot.resolve(plain[argument.name]), path=argument.name)
    return plain


def plain_data(value: Any, *, path: str) -> Any:
    """Return a copy of `value` made only of mappings, lists, strings, numbers, booleans and None; tuples become lists.

    Raises:
        ConfigurationError: It contains something else; the message says where, from `path`.

    Example:
        >>> plain_data({"betas": (0.9, 0.98)}, path="optimizer")
        {'betas': [0.9, 0.98]}
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)  # numpy's floats and enums with string values lose their type here
    if isinstance(value, Mapping):
        if odd := [key for key in value if not isinstance(key, str)]:
            raise ConfigurationError(f"{path} must be plain data, but has the key {odd[0]!r} ({type(odd[0]).__name__}), not a string")
        return {str(key): plain_data(item, path=f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_data(item, path=f"{path}[{i}]") for i, item in enumerate(value)]
    raise ConfigurationError(
        f"{path} must be plain data, so that a checkpoint can be rebuilt from it, but is {value!r} ({type(value).__name__}); "
        f"give a registered name, a mapping with a name and arguments, or a number, string or list"
    )


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
