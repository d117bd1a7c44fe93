"""Checkpoints of earlier versions: weights get their names of today; a data section that cannot be read is refused, or replaced."""

import re
from collections.abc import Mapping
from typing import Any

from attnkit import __version__
from attnkit.checkpoint.errors import CheckpointError
from attnkit.registry import ConfigurationError, datasets

_LAYERS = re.compile(r"^((?:model\.)?stack\.\w+\.layers\.\d+\.)(self|cross)_attention(?=[._])")


def rename_weights(weights: Any, arguments: Any) -> None:
    """Give weights of the first edition the names that they have today: `self_attention` is `mixer` now.

    Its stacks had layers of one kind, so weights of a stack that lists `layers`, which may be a user's own, are left alone.

    Args:
        weights: The weights of a task by name, which are changed in place.
        arguments: The arguments of the task.

    Example:
        >>> weights = {"model.stack.decoder.layers.0.cross_attention.query.weight": 1}
        >>> rename_weights(weights, {"stack": {"name": "encoder_decoder"}})
        >>> weights
        {'model.stack.decoder.layers.0.cross_mixer.query.weight': 1}
    """
    stack = arguments.get("stack") if isinstance(arguments, Mapping) else None
    if not isinstance(weights, dict) or not isinstance(stack, Mapping):
        return
    if any(isinstance(part, Mapping) and part.get("layers") for part in (stack, stack.get("encoder"), stack.get("decoder"))):
        return
    for name in [name for name in weights if isinstance(name, str) and _LAYERS.match(name)]:
        new = _LAYERS.sub(lambda found: f"{found[1]}{'mixer' if found[2] == 'self' else 'cross_mixer'}", name)
        weights[new] = weights.pop(name)


def without_outdated_data(
    recipe: Mapping[str, Any], checkpoint: Mapping[str, Any], source: str, *, given: Mapping[str, Any] | str | None
) -> tuple[dict[str, Any], str | None]:
    """Return the recipe in a checkpoint, without its data section if that is outdated and the user's own takes its place; and a note.

    Raises if the section is outdated, and the user gives none; the message says what to write.
    """
    if "data" not in recipe:
        return dict(recipe), None
    try:
        datasets.resolve(recipe["data"])
    except ConfigurationError as error:
        version = checkpoint["attnkit"]["version"]
        outdated = f"the data section of {source}, written by attnkit {version}, is not valid in attnkit {__version__}"
        if isinstance(given, str) or (given is not None and {"name", "class_path"} & set(given)):
            rest = {key: value for key, value in recipe.items() if key != "data"}
            return rest, f"{outdated}; the given one is used"
        raise CheckpointError(
            f"{outdated}: {str(error).rstrip('.')}. The model is intact. Name the data again: add --config RECIPE with a data section, or "
            f"--data NAME and --data.KEY VALUE (`attnkit list datasets` shows the names), to the same command"
        ) from error
    return dict(recipe), None
