"""A data section as flags, for the command that names the data of an old checkpoint again."""

import json
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from attnkit.checkpoint.description import arguments_of
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError, Registry, datasets, tasks

_FRAMINGS = {
    "causal_lm": "text",
    "classification": "labelled_text",
    "masked_lm": "text",
    "question_answering": "questions",
    "regression": "labelled_text",
    "seq2seq": "text_pairs",
    "tagging": "tagged_text",
    "word_vectors": "text",
}
"""The framing of each task where the checkpoint names an unknown one."""
_OF_IMAGES = {"image_shape": "labelled_images", "src_shape": "signal_text"}  # the framing where the task has this argument
_SUFFIXES = {"labelled_images": ".npz", "questions": ".jsonl", "span_corruption": ".txt", "text": ".txt"}
"""The suffix of the files of a framing, if it is not `.tsv`."""
_PARTS = {"fit": ["train", "validation"], "validate": ["validation"], "probe": ["validation"], "test": ["test"], "predict": []}
"""The splits that a command reads."""


def command_with_data(
    command: Sequence[str], section: Any, checkpoint: Mapping[str, Any], *, given: Mapping[str, Any], lost: Sequence[str]
) -> str:
    """Return "run:" and the given command, with flags that name the data again: what is valid in the `section` of the checkpoint.

    Files that only the user knows are words in capitals, which are explained. `given` is the data section of the command, and `lost` is
    what the other section lacks already.
    """
    task, saved = checkpoint["attnkit"]["task"], arguments_of(checkpoint) or {}
    part, left = _valid_part(datasets, section)
    if part is None:
        framing = next((name for key, name in _OF_IMAGES.items() if saved.get(key) is not None), _FRAMINGS.get(task))
        if framing is None:
            return _sentence([*command, "--data", "NAME"], ["NAME is a data module (`attnkit list datasets`)"], [])
        arguments = {key: value for key, value in section.items() if key != "name"} if isinstance(section, Mapping) else {}
        part, left = {"name": framing, **(_valid_part(datasets, {"name": framing, **arguments})[0] or {})}, []
    verb = next((word for word in command if word in _PARTS), "test")
    missing = [a.name for a in datasets.arguments(part["name"]) if a.required and a.name not in part]
    explained = []
    if "corpus" in missing and hasattr(datasets.get(part["name"]), "takes"):
        files = _own_files(part["name"], verb, given.get("corpus"))
        part["corpus"] = {"name": "files", **files}
        missing.remove("corpus")
        are, rows = "is a file" if len(files) == 1 else "are files", datasets.get(part["name"]).takes.rows
        explained += [f"{' and '.join(files.values())} {are} of yours with {rows}"] if files else []
    if verb == "predict" and _needs_inputs(part["name"]) and part.get("predict") is None and "predict" not in given:
        part["predict"] = "INPUTS.txt"
        explained.append("INPUTS.txt is a file of yours with one input per line")
    inherited = {key for key in tasks.from_data(task) if key in saved} if task in tasks else set()
    flags = _flags(datasets, part, "data", given, without=inherited)
    flags += [word for name in missing for word in (f"--data.{name}", "VALUE")]
    explained += ["VALUE is yours to choose"] if missing else []
    return _sentence([*command, *flags], explained, [*lost, *left])


def _sentence(words: Sequence[str], explained: Sequence[str], left: Sequence[str]) -> str:
    shown = ", ".join(name if name.isprintable() else ascii(name) for name in left)
    without = f", without what attnkit no longer has ({shown})" if left else ""
    where = f", where {' and '.join(explained)}" if explained else ""
    return f"run{without}{where}:\n  {shlex.join(words)}"


def _own_files(framing: str, command: str, given: Any) -> dict[str, str]:
    """Return a name for the user's file of each split that a command reads, except for those of the given corpus."""
    parts = _PARTS[command] if command != "predict" or _needs_inputs(framing) else ["test"]
    if framing == "labelled_images" and "train" not in parts:  # pixels are normalised as the training images are
        parts = ["train", *parts]
    known = set(given) if isinstance(given, Mapping) else set(parts) if given is not None else set()
    return {part: f"{part.upper()}{_SUFFIXES.get(framing, '.tsv')}" for part in parts if part not in known}


def _needs_inputs(framing: str) -> bool:
    return bool(getattr(datasets.get(framing), "needs_predict", False))


def _valid_part(registry: Registry, spec: Any, *, place: str = "") -> tuple[dict[str, Any] | None, list[str]]:
    """Return the part of a spec that is valid, with its name, and the places of the rest; None if the name is unknown."""
    try:
        name, arguments = registry.split(spec)
        declared = {argument.name: argument for argument in registry.arguments(name)}
    except ConfigurationError:
        return None, [place]
    part: dict[str, Any] = {"name": name} if registry.is_named(name) else {}
    left: list[str] = []
    for key, value in arguments.items():
        where = f"{place}.{key}".lstrip(".")
        try:
            registry.checked(declared[key], value, of=name)
        except (KeyError, ConfigurationError):
            inner = declared[key].registry if key in declared else None
            found, more = (None, [where]) if inner is None else _valid_part(inner, value, place=where)
            part |= {} if found is None else {key: found}
            left += more
        else:
            part[key] = value
    return part, left


def _flags(registry: Registry, spec: Any, path: str, given: Any, *, without: Collection[str] = ()) -> list[str]:
    """Return the flags of a spec, except for defaults and for what is given."""
    name, arguments = registry.split(spec)
    flags = [f"--{path}", name] if registry.is_named(name) else []
    for argument in registry.arguments(name):
        own = given.get(argument.name) if isinstance(given, Mapping) else None
        is_part = isinstance(own, Mapping) and "name" not in own
        if argument.name not in arguments or argument.name in without or not (own is None or is_part):
            continue
        value = arguments[argument.name]
        if not argument.required and argument.resolve(value) == argument.written_default():
            continue
        if argument.registry is not None and value is not None:
            flags += _flags(argument.registry, value, f"{path}.{argument.name}", own)
        else:
            text = _as_word(value)
            flags += [f"--{path}.{argument.name}={text}"] if text.startswith("-") else [f"--{path}.{argument.name}", text]
    return flags


def _as_word(value: Any) -> str:
    """Return a value as a word of the command line: a string as it is if it is read as itself, anything else as JSON."""
    if isinstance(value, str) and value.isprintable() and value.strip() == value != "":
        try:
            if read_yaml(value, where="a word") == value:
                return value
        except ConfigurationError:
            pass
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)
