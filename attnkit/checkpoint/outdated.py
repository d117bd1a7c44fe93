"""Checkpoints of earlier versions: a data section that this version cannot read is refused, or replaced by a new one."""

from collections.abc import Mapping
from typing import Any

from attnkit import __version__
from attnkit.checkpoint.errors import CheckpointError
from attnkit.registry import ConfigurationError, datasets


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
            f"{outdated}: {error}. The model is intact. Name the data again: add --config RECIPE with a data section, or "
            f"--data NAME and --data.KEY VALUE (`attnkit list datasets` shows the names), to the same command"
        ) from error
    return dict(recipe), None
