"""Recipes: plain data from YAML files and from the command line, found by short names and merged in layers.

A recipe has the keys `model` and `data`, which are specs, and what Lightning's command line takes (`trainer`, `seed_everything`, ...).
Layers are merged in this order, later ones win: checkpoint, recipes, flags.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from attnkit.registry import ConfigurationError, name_in_class_path, nearest, stacks

SPEC_KEYS = ("model", "data")
SEED = 42
"""The default of `seed_everything`."""


class Word(str):
    """A scalar as it was written on the command line: `123` may be a number or a text, and the argument's type decides which."""

    __slots__ = ()

    @property
    def value(self) -> Any:
        """The scalar as YAML reads it."""
        return read_yaml(self, where="the command line")


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
    package = Path(__file__).parents[1]
    return next((f for f in (package / "recipes", package.parent / "recipes") if f.is_dir()), package / "recipes")


def recipe_names() -> list[str]:
    """Return the short names of the recipes that come with attnkit, such as `g2p/transformer`."""
    folder = recipe_folder()
    return sorted(p.relative_to(folder).with_suffix("").as_posix() for p in folder.rglob("*.yaml"))


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
    """
    if isinstance(value, Mapping):
        value = {key: plain(item) for key, item in value.items()}
        if "class_path" in value and set(value) <= {"class_path", "init_args"}:
            return {"name": name_in_class_path(str(value["class_path"])), **(value.get("init_args") or {})}
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
    elif isinstance(base, Mapping) and _name(base) == over:
        return base
    if not isinstance(base, Mapping):
        return over
    own = {k: v for k, v in base.items() if k != "name"}
    is_stack = {_name(base), _name(over)} <= set(stacks)
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
    return spec.get("name") if isinstance(spec, Mapping) else spec


def _brief(value: Any) -> Any:
    return value.get("name", "{...}") if isinstance(value, Mapping) else value


@dataclass
class Request:
    """The arguments of `attnkit fit` and its siblings, taken apart."""

    recipes: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)
    """What `--model...` and `--data...` ask for, as a layer."""
    others: list[str] = field(default_factory=list)
    """Everything else, for Lightning's parser."""
    ckpt_path: str | None = None
    resume: bool = False
    out: str | None = None
    print_config: bool = False
    help_of: str | None = None
    """The slot, such as `model.stack.attention`, for which `--model.stack.attention.help [NAME]` asks."""
    help_name: str | None = None


def take_apart(arguments: Sequence[str]) -> Request:
    """Sort the arguments of a command into recipes, specs and the rest.

    Raises:
        ConfigurationError: A flag without its value.

    Example:
        >>> take_apart(["--config", "g2p/transformer", "--model.stack.attention", "additive", "--trainer.max_epochs=3"]).flags
        {'model': {'stack': {'attention': 'additive'}}}
    """
    request = Request()
    settings: list[tuple[list[str], Any]] = []
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        key = flag.lstrip("-")
        family = key.partition(".")[0]
        is_spec = flag.startswith("--") and family in SPEC_KEYS
        if key == "print_config" and flag.startswith("--"):
            request.print_config = True
        elif flag == "--resume" and not equals:
            request.resume = True
        elif is_spec and key.endswith(".help"):
            request.help_of = key.removesuffix(".help")
            request.help_name = value or (rest.pop(0) if rest and not rest[0].startswith("-") else None)
        elif is_spec or flag in ("--config", "-c", "--ckpt_path", "--out"):
            if not equals:
                if not rest or rest[0].startswith("--"):
                    raise ConfigurationError(f"{flag} needs a value, as in {flag} {'VALUE' if is_spec else 'PATH'}")
                value = rest.pop(0)
            if is_spec:
                settings.append(([part for part in key.split(".") if part != "init_args"], _value(value)))
            elif flag == "--ckpt_path":
                request.ckpt_path = None if value == "null" else value
            elif flag == "--out":
                request.out = value
            else:
                request.recipes.append(value)
        else:
            request.others.append(f"{flag}{equals}{value}")
    for path, setting in sorted(settings, key=lambda item: len(item[0])):  # names before the arguments of what they name
        layer = setting
        for part in reversed(path):
            layer = {"name" if part == "class_path" else part: layer}
        request.flags = merge(request.flags, layer, dropped=[])
    return request


def _value(text: str) -> Any:
    """Return a value of the command line: mappings and lists as YAML reads them, anything else as a `Word`."""
    value = read_yaml(text, where="the command line") if text.lstrip()[:1] in ("{", "[") else None
    return plain(value) if isinstance(value, dict | list) else Word(text)
