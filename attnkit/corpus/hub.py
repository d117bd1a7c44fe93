"""Data sets from the hub, read by the library `datasets`."""

import re
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from attnkit.corpus.media import Stored
from attnkit.corpus.tables import Column, Row
from attnkit.registry import ConfigurationError

HUB = "hub:"


def load_hub(location: str, *, streaming: bool = False, media: Column | None = None) -> Any:
    """Return the data set at a hub location; raise a `ConfigurationError` if it cannot be loaded or the library is missing.

    Images and sounds in the column `media` stay encoded: attnkit reads them as it reads files, with the same limits.
    """
    name, config, split = hub_parts(location)
    data = ask_hub("load_dataset", location, name, config, split=split, **({"streaming": True} if streaming else {}))
    feature: Any = None if media is None else (data.features or {}).get(media)  # a stream may not know its features
    return data.cast_column(media, type(feature)(decode=False)) if type(feature).__name__ in ("Image", "Audio") else data


def ask_hub(function: str, location: str, *arguments: Any, **options: Any) -> Any:
    """Call a function of the library `datasets` for a location; raise a `ConfigurationError` if the library is missing or fails."""
    try:
        library = import_module("datasets")
    except ImportError as error:
        raise ConfigurationError(f"{location} needs the library 'datasets': pip install 'attnkit[data]'") from error
    try:
        return getattr(library, function)(*arguments, **options)
    except Exception as error:  # not found, no network, no such split, damaged: the library's errors have no common base class
        raise ConfigurationError(f"{location}: cannot be loaded: {type(error).__name__}: {error}") from error


def hub_parts(location: str) -> tuple[str, str | None, str]:
    """Return the name, the configuration and the split of a hub location.

    Example:
        >>> hub_parts("hub:wmt16:de-en:train[:10%]")
        ('wmt16', 'de-en', 'train[:10%]')
    """
    match re.split(r":(?![^\[]*\])", location.removeprefix(HUB)):  # a slice such as train[:10%] has a colon too
        case [name, split] if name and split:
            return name, None, split
        case [name, config, split] if name and config and split:
            return name, config, split
    raise ConfigurationError(f"{location!r} must be 'hub:NAME:SPLIT' or 'hub:NAME:CONFIG:SPLIT', as in 'hub:wmt16:de-en:train'")


def hub_rows(location: str, *, streaming: bool, media: Column | None, stored: dict[str, Stored]) -> Iterator[Row]:
    """Yield the rows of a hub location.

    Each image or sound in the column `media` is put into `stored` under the location of the row in which it first occurs, which replaces
    it in its cell.
    """
    try:
        data = load_hub(location, streaming=streaming, media=media)
        is_sound = media is not None and type((data.features or {}).get(media)).__name__ == "Audio"
        names: dict[object, str] = {}
        for number, row in enumerate(data):
            where = f"{location}, row {number}"
            if media is not None and media in row:
                file = stored_row(where, row, media, is_sound=is_sound)
                name = names.setdefault(file.path if file.content is None else file.content, where)
                stored.setdefault(name, file)
                row = {**row, media: name}
            yield where, row
    except ConfigurationError:
        raise
    except Exception as error:  # as in ask_hub
        raise ConfigurationError(f"{location}: a row cannot be read: {type(error).__name__}: {error}") from error


def stored_row(where: str, row: Mapping[Any, Any], column: Column, *, is_sound: bool) -> Stored:
    """Return the image or the sound in a row."""
    file = row[column]
    if isinstance(file, Mapping) and file.keys() == {"bytes", "path"}:
        return Stored(where, is_sound=is_sound, path=file["path"], content=file["bytes"])
    if file is None:
        return Stored(where, is_sound=is_sound, path=None)
    raise ConfigurationError(f"{where}: column {column!r} has {type(file).__name__} instead of images or sounds")
