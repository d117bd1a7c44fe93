"""Checkpoints of earlier versions: weights and data sections of the first edition get their names of today.

A data section that cannot be read is refused, or replaced by the user's own.
"""

import re
from collections.abc import Mapping
from typing import Any

from attnkit import __version__
from attnkit.checkpoint.errors import CheckpointError
from attnkit.registry import ConfigurationError, datasets

_SPLITS = ("train", "validation", "test", "validation_fraction")
_CORPORA: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "text_pairs": ("text_pairs", "files", _SPLITS),
    "labelled_text": ("labelled_text", "files", _SPLITS),
    "labelled_images": ("labelled_images", "files", _SPLITS),
    "text": ("text", "files", (*_SPLITS, "test_fraction", "separator")),
    "cmudict": ("text_pairs", "cmudict", ()),
    "scan": ("text_pairs", "scan", ("split", "validation_commands")),
    "libreoffice_help": ("text_pairs", "libreoffice_help", ("source", "target", "folder")),
    "kjv": ("text", "kjv", ("folder",)),
    "movie_snippets": ("labelled_text", "movie_snippets", ("folder",)),
    "fashion_mnist": ("labelled_images", "fashion_mnist", ("folder", "validation_images")),
}
"""Data sets of the first edition: their framing and corpus of today, and the arguments that belong to the corpus today."""
_CLASSES = ("CMUDict", "Scan", "LibreOfficeHelp", "KJV", "MovieSnippets", "FashionMNIST")
"""Names of the classes of those that are corpora today: keys of what they have saved, the tokenizers that they have trained."""
_COLUMNS = ("source_column", "target_column", "column", "text_column", "image_column", "label_column")  # in the order of today's `columns`
_RENAMED = {"max_validation_words": "max_validation_sources", "max_validation_pairs": "max_validation_sources"}
_UNLABELLED = {"imdb": "imdb", **{domain: {"name": "movie_snippets", "domain": domain} for domain in ("amazon", "editorials", "tweets")}}
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
        weights[name_of_today(name)] = weights.pop(name)


def name_of_today(name: str) -> str:
    """Return the name that a weight of the first edition has today."""
    return _LAYERS.sub(lambda found: f"{found[1]}{'mixer' if found[2] == 'self' else 'cross_mixer'}", name)


def without_outdated_data(
    recipe: Mapping[str, Any], checkpoint: Mapping[str, Any], source: str, *, given: Mapping[str, Any] | str | None
) -> tuple[dict[str, Any], str | None]:
    """Return the recipe in a checkpoint, without its data section if that is outdated and the user's own takes its place; and a note.

    Raises if the section is outdated, is not of the first edition, and the user gives none; the message says what to write.
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
        if (today := _data_of_today(recipe["data"], checkpoint)) is not None:
            read = f"{today['name']} with the corpus {today['corpus']['name']}"
            return {**recipe, "data": today}, f"the data section of {source}, written by attnkit {version}, is read as that of {read}"
        raise CheckpointError(
            f"{outdated}: {str(error).rstrip('.')}. The model is intact. Name the data again: add --config RECIPE with a data section, or "
            f"--data NAME and --data.KEY VALUE (`attnkit list datasets` shows the names), to the same command"
        ) from error
    return dict(recipe), None


def _data_of_today(section: Any, checkpoint: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a data section of the first edition, in which every default is written, in today's words; None if it is something else."""
    if not isinstance(section, Mapping) or "corpus" in section:
        return None
    saved = {key: value for name in _CLASSES if isinstance(state := checkpoint.get(name), Mapping) for key, value in state.items()}
    arguments: dict[str, Any] = {
        _RENAMED.get(str(key), str(key)): value if value is None else saved.get(key, value) for key, value in section.items()
    }
    name = arguments.pop("name", None)
    if name == "span_corruption":  # of the text of another data set
        text = arguments.pop("text", None)
        inner = _data_of_today({"name": text} if isinstance(text, str) else text, {})
        today = {"name": name, "corpus": inner and inner["corpus"], **arguments}
    elif name in _CORPORA:
        framing, corpus, own = _CORPORA[name]
        columns = {"columns": found} if (found := [arguments.pop(key) for key in _COLUMNS if key in arguments]) else {}
        spec = {"name": corpus, **{key: arguments.pop(key) for key in own if key in arguments}, **columns}
        if arguments.get("unlabelled"):
            arguments["unlabelled"] = [_UNLABELLED.get(source, source) for source in arguments["unlabelled"]]
        today = {"name": framing, "corpus": spec, **arguments}
    else:
        return None
    try:
        datasets.resolve(today)
    except ConfigurationError:
        return None
    return today
