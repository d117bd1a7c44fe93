"""Checkpoints of earlier versions: weights and data sections get their names of today.

A data section that cannot be read is replaced by the user's own, or refused with the command that names the data again.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attnkit import __version__
from attnkit.checkpoint.data_flags import command_with_data
from attnkit.checkpoint.errors import CheckpointError
from attnkit.checkpoint.translation import in_todays_words
from attnkit.registry import ConfigurationError, corpora, datasets

_LAYERS = re.compile(r"^((?:model\.)?stack\.\w+\.layers\.\d+\.)(self|cross)_attention(?=[._])")
_TRANSFORM = re.compile(r"^((?:model\.)?)transform\.(?=(?:dense|norm)\.)")


def rename_weights(weights: Any, arguments: Any) -> None:
    """Give weights of the first edition, in place, the names that they have today: `self_attention` is `mixer` now.

    Its stacks had layers of one kind, so weights of a stack that lists `layers`, which may be a user's own, are left alone.

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
    for name in [name for name in weights if isinstance(name, str) and (_LAYERS.match(name) or _TRANSFORM.match(name))]:
        weights[name_of_today(name)] = weights.pop(name)


def name_of_today(name: str) -> str:
    """Return the name that a weight of the first edition has today."""
    name = _TRANSFORM.sub(r"\1head.", name)
    return _LAYERS.sub(lambda found: f"{found[1]}{'mixer' if found[2] == 'self' else 'cross_mixer'}", name)


def reorder_optimizer_state(state: Mapping[str, Any], saved: Iterable[str], groups: Sequence[Sequence[str]]) -> None:
    """Give the numbers of parameters in an optimizer state of the first edition the order that the parameters have today.

    torch finds a parameter's state by its place in its group. Where the head of `masked_lm` transforms, its bias came last, and comes first
    today. Nothing happens to later checkpoints. `state` is changed in place; `saved` are the names of the weights in the checkpoint, in its
    order, which was that of modules and optimizers; `groups` are the names of the parameters in each group, in today's order.

    Example:
        >>> names = ["model.transform.dense.bias", "model.head.bias"]
        >>> state = {"state": {0: "of dense", 1: "of the head"}, "param_groups": [{"params": [0, 1]}]}
        >>> reorder_optimizer_state(state, names, [["model.head.bias", "model.head.dense.bias"]])
        >>> state["param_groups"]
        [{'params': [1, 0]}]
    """
    names = list(saved)
    if not any(_TRANSFORM.match(name) for name in names):
        return
    place = {name_of_today(name): i for i, name in enumerate(names)}
    for group, today in zip(state["param_groups"], groups, strict=True):
        number = dict(zip(sorted(today, key=place.__getitem__), group["params"], strict=True))
        group["params"] = [number[name] for name in today]


def without_outdated_data(
    recipe: Mapping[str, Any], checkpoint: Mapping[str, Any], source: str, *, given: Mapping[str, Any] | str | None, command: Sequence[str]
) -> tuple[dict[str, Any], str | None]:
    """Return the recipe in a checkpoint, with a data section that is valid today, and a note if it was not.

    An outdated section is translated, or left out if the user's own (`given`) takes its place. If neither is possible, a `CheckpointError`
    shows the user's `command` with flags that name the data.
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
        today, lost = in_todays_words(recipe["data"], checkpoint)
        if today is not None and not lost:
            with suppress(ConfigurationError):
                datasets.resolve(today)
                read = f"{today['name']} with the corpus {corpora.split(today['corpus'])[0]}"
                return {**recipe, "data": today}, f"the data section of {source}, written by attnkit {version}, is read as that of {read}"
        again = command_with_data(command, recipe["data"] if today is None else today, checkpoint, given=given or {}, lost=lost)
        raise CheckpointError(
            f"{outdated}: {str(error).rstrip('.')}. The model is intact. Give the data again: add --config RECIPE with a data section to "
            f"the same command, or {again}"
        ) from error
    return dict(recipe), None
