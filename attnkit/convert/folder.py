"""The files of a published model: config.json and the weights, in one or several safetensors files."""

from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from torch import Tensor

from attnkit.checkpoint.exporting import read_tensors, require_modest_header
from attnkit.convert.family import Family
from attnkit.files import LARGEST_JSON, parse_json, read_bytes, regular
from attnkit.registry import ConfigurationError

INDEX = "model.safetensors.index.json"


def read_config(folder: Path) -> dict[str, Any]:
    """Return the fields of config.json."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigurationError(f"{folder} is not the folder of a published model: it has no config.json. attnkit downloads no models")
    return read_mapping(path)


def read_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights in a folder, by name."""
    if (single := folder / "model.safetensors").is_file():
        return _load(single)
    if not (folder / INDEX).is_file():
        pickled = " Its pickle files (*.bin) could run code: convert them to safetensors first." if any(folder.glob("*.bin")) else ""
        raise ConfigurationError(f"{folder} has neither model.safetensors nor {INDEX}.{pickled}")
    places = read_mapping(folder / INDEX).get("weight_map")
    if not isinstance(places, Mapping) or not all(isinstance(name, str) and Path(name).name == name != ".." for name in places.values()):
        raise ConfigurationError(f"{folder / INDEX}: weight_map must map the names of weights to files in the same folder")
    found: dict[str, Tensor] = {}
    for name in sorted(set(places.values())):
        for weight, tensor in _load(folder / name).items():
            if places.get(weight) != name:
                raise ConfigurationError(f"{folder / INDEX} does not list {name} as the file of {weight}")
            found[weight] = tensor
    if missing := sorted(places.keys() - found.keys()):
        raise ConfigurationError(f"{folder / places[missing[0]]} lacks {missing[0]}, which {INDEX} lists there")
    return found


def with_prefix(weights: Mapping[str, Tensor], family: Family) -> dict[str, Tensor]:
    """Return the weights to read, named as in a model with its head: files of the model alone lack the prefix."""
    prefix = "" if any(name.startswith(family.prefix) for name in weights) else family.prefix
    named = {f"{prefix}{name}": weight for name, weight in weights.items()}
    kept = {name: weight for name, weight in named.items() if not any(fnmatch(name, pattern) for pattern in family.unread)}
    for alias, ending in family.aliases.items():
        for name in [name for name in kept if name.endswith(alias) and name.removesuffix(alias) + ending not in kept]:
            kept[name.removesuffix(alias) + ending] = kept.pop(name)
    return kept


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the content of a JSON file, which must be a mapping."""
    try:
        content = parse_json(read_bytes(path, limit=LARGEST_JSON))
    except ConfigurationError:
        raise
    except ValueError as error:
        raise ConfigurationError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must hold a mapping")
    return content


def _load(path: Path) -> dict[str, Tensor]:
    require_modest_header(regular(path))
    return read_tensors(path)
