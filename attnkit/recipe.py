"""Recipes: plain data from YAML files, found by short names and merged in layers.

A recipe has the keys `model` and `data`, which are specs, and what Lightning's command line takes (`trainer`, `seed_everything`, ...).
Layers are merged in this order, later ones win: checkpoint, recipes, flags.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from attnkit.registry import ConfigurationError, nearest, registered_name, stacks

SPEC_KEYS = ("model", "data")
SEED = 42
"""The default of `seed_everything`."""

STUDIES = "ablations"
"""The folder of the recipes in which the study files are: they are not recipes themselves."""


class _Loader(yaml.SafeLoader):
    """YAML in which `1e-3` is a number, as in YAML 1.2, and a key that is written twice is an error."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} is written twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


def read_yaml(text: str, *, where: str) -> Any:
    """Return the plain data in `text`.

    Raises:
        ConfigurationError: It is not YAML; the message names `where` and the line.

    Example:
        >>> read_yaml("{lr: 1e-3, name: adamw}", where="an example")
        {'lr': 0.001, 'name': 'adamw'}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigurationError(f"{where}{line} is not YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{where} is not YAML: {error}") from error


def recipe_folder() -> Path:
    """Return the folder of the recipes that come with attnkit: inside the wheel, or beside the package in a checkout."""
    package = Path(__file__).parent
    return next((f for f in (package / "recipes", package.parent / "recipes") if f.is_dir()), package / "recipes")


def recipe_names() -> list[str]:
    """Return the short names of the recipes that come with attnkit, such as `g2p/transformer`."""
    folder = recipe_folder()
    found = (p.relative_to(folder).with_suffix("") for p in folder.rglob("*.yaml"))
    return sorted(path.as_posix() for path in found if path.parts[0] != STUDIES)


def find_recipe(name: str) -> Path:
    """Return the file that `--config name` means: an existing path, or the short name of a recipe that comes with attnkit.

    Raises:
        ConfigurationError: There is neither.
    """
    if (path := Path(name)).is_file():
        return path
    short = name.removesuffix(".yaml").removesuffix(".yml")
    if short in recipe_names():
        return recipe_folder() / f"{short}.yaml"
    known = recipe_names()
    raise ConfigurationError(
        f"no recipe {name!r}: there is no such file, and no recipe of that name comes with attnkit."
        f"{nearest(short, known)} Recipes: {', '.join(known) or 'none'}."
    )


def read_recipe(name: str) -> dict[str, Any]:
    """Return the content of the recipe `name`, with every spec as names and mappings with a name."""
    path = find_recipe(name)
    try:
        content = read_yaml(path.read_text(encoding="utf-8"), where=str(path))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {error.start})") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a mapping with the keys model, data and trainer, but is {type(content).__name__}")
    return {key: plain(value) if key in SPEC_KEYS else value for key, value in content.items()}


def plain(value: Any) -> Any:
    """Return `value` with jsonargparse's `{class_path, init_args}` rewritten as `{name, ...}`, at every depth.

    Example:
        >>> plain({"class_path": "attnkit.attention.additive.Additive", "init_args": {"hidden_dim": 32}})
        {'name': 'additive', 'hidden_dim': 32}
        >>> plain({"class_path": "my_package.additive.MyOwn"})
        {'name': 'my_package.additive.MyOwn'}
    """
    if isinstance(value, Mapping):
        value = {key: plain(item) for key, item in value.items()}
        if "class_path" in value and set(value) <= {"class_path", "init_args"}:
            return {"name": registered_name(str(value["class_path"])), **(value.get("init_args") or {})}
        return value
    return [plain(item) for item in value] if isinstance(value, list) else value


def merge(base: Any, over: Any, *, path: str = "", dropped: list[str]) -> Any:
    """Return `base` overlaid with `over`.

    Mappings merge key by key. A component that is replaced by one of another name starts from its own defaults: arguments of the old
    one never leak into the new one, and `dropped` says which ones no longer apply. A stack is the exception, for its arguments are the
    size and the pieces of the whole model: it keeps those that it has too.

    Example:
        >>> dropped = []
        >>> merge({"d_model": 8, "attention": {"name": "additive", "hidden_dim": 4}}, {"attention": "cosine"}, dropped=dropped)
        {'d_model': 8, 'attention': 'cosine'}
        >>> dropped
        ['attention: cosine replaces additive, so hidden_dim=4 no longer applies']
    """
    if isinstance(over, Mapping):
        if isinstance(base, str) and "name" not in over:
            return {"name": base, **over}
        old, new = (_name(base), _name(over))
        if isinstance(base, Mapping) and (new is None or old is None or new == old):
            merged = dict(base)
            for key, value in over.items():
                merged[key] = merge(merged[key], value, path=f"{path}.{key}".lstrip("."), dropped=dropped) if key in merged else value
            return merged
    elif isinstance(base, Mapping) and _name(base) == _name(over):
        return base
    if not isinstance(base, Mapping):
        return over
    own = {k: v for k, v in base.items() if k != "name"}
    is_stack = any(map(_is_stack, (base, over))) and all(_is_stack(spec) or "." in str(_name(spec)) for spec in (base, over))
    kept = {k: v for k, v in own.items() if k in {a.name for a in stacks.arguments(_name(over))}} if is_stack else {}
    if lost := {k: v for k, v in own.items() if k not in kept}:
        listed = ", ".join(f"{k}={_brief(v)}" for k, v in lost.items())
        verb = "applies" if len(lost) == 1 else "apply"
        dropped.append(f"{path}: {_name(over)} replaces {_name(base) or 'what was there'}, so {listed} no longer {verb}")
    if kept:
        new = over if isinstance(over, Mapping) else {"name": over}
        return merge({**kept, "name": _name(over)}, new, path=path, dropped=dropped)
    return over


def _name(spec: Any) -> Any:
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return registered_name(name) if isinstance(name, str) and "." in name else name


def _is_stack(spec: Any) -> bool:
    return _name(spec) in set(stacks)


def _brief(value: Any) -> Any:
    return value.get("name", "{...}") if isinstance(value, Mapping) else value
