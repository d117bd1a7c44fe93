"""Reports which settings of a continued run come from the checkpoint, and which have changed since."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SHOWN = 5  # maximum number of settings in each part of the note
WIDTH = 60  # maximum number of characters of a value in the note
_ABSENT = object()


@dataclass(frozen=True)
class Origins:
    """The recipes to which a continued run's recipe is compared."""

    saved: Mapping[str, Any]  # the checkpoint's recipe
    fresh: Mapping[str, Any]  # the recipe of the same files and flags without the checkpoint; unknown settings are left out
    flags: Collection[str]  # keys set on the command line, which need no note

    def note(self, recipe: Mapping[str, Any], *, known: Collection[str] = ()) -> str | None:
        """Return a line with the settings that come only from the checkpoint and those that differ from it, or None.

        Leaves out the `known` keys, which a program sets.

        Example:
            >>> saved, fresh = {"data": {"batch_tokens": 1024, "seed": 1}}, {"data": {"batch_tokens": 2048, "seed": 0}}
            >>> Origins(saved, fresh, ()).note({"data": {"batch_tokens": 2048, "seed": 1}})
            'from the checkpoint: data.seed=1; changed since the checkpoint: data.batch_tokens 2048 (was 1024)'
        """
        kept: list[str] = []
        changed: list[str] = []
        for key, now, old in self._differences(recipe, self.saved, self.fresh, path=""):
            if key in known:
                continue
            if old is _ABSENT:
                kept.append(f"{key}={_brief(now)}")
            else:
                changed.append(f"{key} {_brief(now)} (was {_brief(old)})")
        parts = [("from the checkpoint", kept), ("changed since the checkpoint", changed)]
        return "; ".join(f"{what}: {_listed(found)}" for what, found in parts if found) or None

    def _differences(self, now: Any, saved: Any, fresh: Any, *, path: str) -> Iterator[tuple[str, Any, Any]]:
        """Yield key, value and the checkpoint's value of each changed setting; `_ABSENT` as the last if the setting comes from it."""
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
    """Yield the dotted keys of a layer's values; a component's own key stands for its name.

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
    text = str(value) if str(value).isprintable() else ascii(value)  # a checkpoint is untrusted
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _listed(found: list[str]) -> str:
    more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
    return ", ".join(found[:SHOWN]) + more
