"""Where the settings of a continued run come from, when neither its files nor its flags say so."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SHOWN = 5  # settings in each part of the note
WIDTH = 60  # characters of a value in the note
_ABSENT = object()


@dataclass(frozen=True)
class Origins:
    """The recipes that the recipe of a continued run is compared with."""

    saved: Mapping[str, Any]  # of the checkpoint
    fresh: Mapping[str, Any]  # of the same files and flags without a checkpoint; what cannot be known is left out
    flags: Collection[str]  # the keys that the command line sets, which need no note

    def note(self, recipe: Mapping[str, Any], *, known: Collection[str] = ()) -> str | None:
        """Return a line about the settings of a recipe that the checkpoint alone gives, and those that differ from the checkpoint's.

        Keys that a program sets are `known`, and need no note either.

        Example:
            >>> saved, fresh = {"data": {"batch_tokens": 1024, "seed": 1}}, {"data": {"batch_tokens": 2048, "seed": 0}}
            >>> Origins(saved, fresh, ()).note({"data": {"batch_tokens": 2048, "seed": 1}})
            'from the checkpoint: data.seed=1; changed since the checkpoint: data.batch_tokens 2048 (was 1024)'
        """
        kept: list[str] = []
        changed: list[str] = []
        for key, now, before in self._differences(recipe, self.saved, self.fresh, path=""):
            if key in known:
                continue
            if before is _ABSENT:
                kept.append(f"{key}={_brief(now)}")
            else:
                changed.append(f"{key} {_brief(now)} (was {_brief(before)})")
        parts = [("from the checkpoint", kept), ("changed since the checkpoint", changed)]
        return "; ".join(f"{what}: {_listed(found)}" for what, found in parts if found) or None

    def _differences(self, now: Any, saved: Any, fresh: Any, *, path: str) -> Iterator[tuple[str, Any, Any]]:
        """Yield key, value and the checkpoint's value of a setting that differs from it, or no value if the setting comes from it."""
        if isinstance(now, Mapping):
            if any(isinstance(other, Mapping) and other.get("name") != now.get("name") for other in (saved, fresh)):
                saved, fresh = (other.get("name", _ABSENT) if isinstance(other, Mapping) else other for other in (saved, fresh))
                yield from self._differences(now.get("name"), saved, fresh, path=path)
                return
            for key, value in now.items():
                below = (other.get(key, _ABSENT) if isinstance(other, Mapping) else _ABSENT for other in (saved, fresh))
                yield from self._differences(value, *below, path=f"{path}.{key}".lstrip("."))
        elif path in self.flags:
            return
        elif saved is not _ABSENT and now != saved:
            yield path, now, saved
        elif saved is not _ABSENT and fresh is not _ABSENT and now != fresh:
            yield path, now, _ABSENT


def keys_in(layer: Mapping[str, Any], *, path: str = "") -> Iterator[str]:
    """Yield the keys of a layer's values; the key of a component stands for its name.

    Example:
        >>> list(keys_in({"model": {"optimizer": {"name": "adamw", "lr": 0.1}}}))
        ['model.optimizer', 'model.optimizer.lr']
    """
    for key, value in layer.items():
        place = path if key == "name" else f"{path}.{key}".lstrip(".")
        if isinstance(value, Mapping):
            yield from keys_in(value, path=place)
        else:
            yield place


def _brief(value: Any) -> str:
    value = value.get("name", "{...}") if isinstance(value, Mapping) else value
    text = str(value) if str(value).isprintable() else ascii(value)  # a checkpoint may come from someone else
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
