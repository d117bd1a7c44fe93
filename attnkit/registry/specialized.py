"""Registries with special rules for their specs: optimizers of torch, corpora by location, layers without a name."""

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Union, get_args, get_origin

from attnkit.registry.arguments import Argument, parameters
from attnkit.registry.base import Registry, Spec
from attnkit.registry.description import Description
from attnkit.registry.resolved import ResolvedSpec
from attnkit.registry.values import is_union

SUFFIXES = (".csv", ".jsonl", ".npz", ".parquet", ".tsv", ".txt")  # suffixes of files whose path may stand in place of a corpus's name


class TorchOptimizers(Registry):
    """attnkit's optimizers, and every optimizer of `torch.optim` by its class name in lower case: `adamw`, `sgd`, `adafactor`, ..."""

    libraries = ("torch.optim",)

    def built_in(self) -> set[str]:
        """Return attnkit's names, and those in `torch.optim.__all__`, read without importing torch."""
        return super().built_in() | set(self._class_names)

    def arguments(self, name: str) -> tuple[Argument, ...]:
        """Return the arguments that a user may set; what may be a tensor in Python is a number here."""
        return tuple(replace(a, annotation=_without_tensors(a.annotation)) for a in super().arguments(name))

    def _import(self, name: str) -> None:
        if name in super().built_in():
            super()._import(name)
        else:
            self._classes[name] = getattr(importlib.import_module("torch.optim"), self._class_names[name])

    def _names_of(self, cls: Any) -> list[str]:
        return [*super()._names_of(cls), str(getattr(cls, "__name__", "")).lower()]

    @cached_property
    def _class_names(self) -> dict[str, str]:
        torch = importlib.util.find_spec("torch")
        assert torch is not None
        assert torch.origin is not None
        source = Path(torch.origin).with_name("optim").joinpath("__init__.py").read_text(encoding="utf-8")
        exported = next(n.value for n in ast.parse(source).body if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__")
        return {name.lower(): name for name in ast.literal_eval(exported) if name[0].isupper() and name != "Optimizer"}


def _without_tensors(annotation: Any) -> Any:
    origin, parts = get_origin(annotation), tuple(map(_without_tensors, get_args(annotation)))
    if is_union(annotation):
        return Union[tuple(part for part in parts if getattr(part, "__name__", "") != "Tensor")]  # noqa: UP007
    return origin[parts] if origin is tuple else annotation


class Corpora(Registry):
    """Corpora. A path or `hub:NAME` in place of a name selects the corpus that reads it."""

    paths = r"\.|/|^hub:"

    def split(self, spec: Spec) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments of a spec, which may be a location.

        Example:
            >>> from attnkit.registry import corpora
            >>> corpora.split("mine/train.tsv"), corpora.split("hub:wmt16:de-en")
            (('files', {'train': 'mine/train.tsv'}), ('files', {'hub': 'wmt16:de-en'}))
        """
        given = {"name": spec} if isinstance(spec, str) else spec
        if not isinstance(given, Mapping) or not isinstance(name := given.get("name"), str):
            return super().split(spec)
        if name.startswith("hub:") and name.count(":") < 3:  # a third colon selects a single split
            return "files", {"hub": name.removeprefix("hub:")} | {key: value for key, value in given.items() if key != "name"}
        if name.startswith("hub:") or "/" in name or name.lower().endswith(SUFFIXES):
            return "files", {"train": name} | {key: value for key, value in given.items() if key != "name"}
        return super().split(spec)


class LayerKinds(Registry):
    """Kinds of layers. A spec holds the options in which a layer differs from its stack, `repeat` and `share`; it needs no name."""

    def split(self, spec: Spec) -> tuple[str, dict[str, Any]]:
        """Return the name and the arguments of a spec; without a name it is a `transformer_layer`.

        Example:
            >>> from attnkit.registry import layer_kinds
            >>> layer_kinds.split({"mixer": "multi_head", "repeat": 2})
            ('transformer_layer', {'mixer': 'multi_head', 'repeat': 2})
        """
        if isinstance(spec, Mapping) and not isinstance(spec, ResolvedSpec) and not {"name", "class_path"} & set(spec):
            spec = {"name": "transformer_layer", **spec}
        return super().split(spec)

    def arguments(self, name: str) -> tuple[Argument, ...]:
        """Return the arguments that a user may set: the options of a layer (None: as in the stack), `repeat` and `share`."""
        options = [Argument(a.name, a.annotation | None, None) for a in super().arguments(name)]
        return (*options, Argument("repeat", int, 1), Argument("share", bool, False))

    def describe(self, name: str) -> Description:
        """Return the documentation of `name`; see `Registry.describe`."""
        described = super().describe(name)
        places = (
            "Args:\n"
            "    repeat: How many times the layer occurs in the pattern.\n"
            "    share: Whether all its occurrences share one set of parameters.\n"
        )
        return replace(described, documentation=described.documentation.replace("Args:\n", places, 1))

    def resolve(self, spec: Spec, *, path: str = "") -> ResolvedSpec:
        """Resolve a spec; see `Registry.resolve`. Options that it leaves to the stack are omitted."""
        resolved = super().resolve(spec, path=path)
        return ResolvedSpec(self, resolved.name, {key: value for key, value in resolved.arguments.items() if value is not None})

    def build(self, spec: Spec, **given: Any) -> Any:
        """Build a layer: its own options, over those of the stack."""
        resolved = self.resolve(spec)
        cls = self.get(resolved.name)
        accepted = parameters(cls)
        return cls(**{key: value for key, value in (given | resolved.arguments).items() if key in accepted})
