"""Recipes: plain data from YAML files, found by short names and merged in layers.

A recipe has the specs `model` and `data`, `imports` (modules to import before any name is looked up), and the sections of Lightning's
command line (`trainer`, `seed_everything`, ...). Layers are merged in the order checkpoint, recipes, flags; later ones win.
"""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import yaml

from attnkit.files import MAX_DEPTH, read_text
from attnkit.registry import (
    IMPORTS,
    ConfigurationError,
    corpora,
    import_modules,
    module_names,
    name_of_path,
    nearest,
    registered_name,
    stacks,
)

SPEC_KEYS = ("model", "data")
COMMANDS = ("fit", "validate", "test", "predict")  # commands that use a recipe; each may have its own section in it
SEED = 42  # default of `seed_everything`
STUDIES = "ablations"  # folder of study files among the recipes; they are not recipes


MAX_BYTES = 1 << 18  # maximum size of a recipe or a study file
MAX_VALUES = 20_000  # maximum number of values in a recipe, with aliases expanded
MAX_DIGITS = 100  # maximum length of a number

_PLAIN = [f"tag:yaml.org,2002:{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map")]


class _Loader(yaml.SafeLoader):
    """Loads YAML as plain data, within limits, since deep nesting and aliases of aliases could hang the reader.

    As in YAML 1.2, `1e-3` is a number, and the key `on` is a word. Dates are strings, keys must be scalars, and duplicate keys are errors.
    """

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = self._values = 0
        self._sizes: dict[Any, int] = {}  # values per complete node

    def compose_node(self, parent: Any, index: Any) -> Any:
        mark, is_alias, before = self.peek_event().start_mark, self.check_event(yaml.AliasEvent), self._values  # type: ignore[no-untyped-call]
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _error(f"nested deeper than {MAX_DEPTH} levels", mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if is_alias and node not in self._sizes:
            raise _error("an alias inside the node it refers to", mark)
        self._values += self._sizes[node] if is_alias else 1
        if self._values > MAX_VALUES:
            raise _error(f"more than {MAX_VALUES:,} values, with aliases expanded", mark)
        self._sizes.setdefault(node, self._values - before)
        return node

    def compose_scalar_node(self, anchor: Any) -> Any:
        node = super().compose_scalar_node(anchor)
        if "\0" in node.value or any("\ud800" <= c <= "\udfff" for c in node.value):
            raise _error("a string contains NUL or a lone surrogate", node.start_mark)
        if node.tag != _PLAIN[-3] and len(node.value) > MAX_DIGITS:
            raise _error(f"a {node.tag.rpartition(':')[2]} of more than {MAX_DIGITS} characters", node.start_mark)
        if node.tag != _PLAIN[-3] and re.fullmatch(r"[-+]?0[0-7_]+|.+:.*", node.value):  # to YAML 1.1, other numbers than they seem
            value = self.construct_object(node)
            raise _error(f"{node.value} would be read as {value}: write {value}, or '{node.value}' for the text", node.start_mark)
        return node

    def compose_mapping_node(self, anchor: Any) -> Any:
        node = super().compose_mapping_node(anchor)
        seen: set[Any] = set()  # keys as written and as read: `1` and `'1'` are the same key
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise _error("a key must be a word or a number, not a list or a mapping", key.start_mark)
            if key.tag.endswith((":bool", ":null")):
                key.tag = "tag:yaml.org,2002:str"
            value = key.value if key.tag.endswith(":merge") else self.construct_object(key)
            if not isinstance(value, str) and key.value != str(value):  # `1_000`, `1.50`: as a name, it would silently become another
                raise _error(f"the key {key.value} would be read as {value}: write {value}, or '{key.value}' for the text", key.start_mark)
            names = {key.value, value}
            if names & seen:
                raise _error(f"the key {key.value!r} occurs twice", key.start_mark)
            seen |= names
        return node

    def construct_object(self, node: Any, deep: bool = False) -> Any:
        try:
            value = super().construct_object(node, deep)
        except (ValueError, LookupError) as error:  # a tag that does not match the text, such as !!int x
            raise _error(f"{node.value!r} is not a valid {node.tag.rpartition(':')[2]}", node.start_mark) from error
        if isinstance(value, float) and math.isinf(value) and "inf" not in node.value.lower():
            raise _error(f"the number {node.value} is too large", node.start_mark)
        return value


def _error(problem: str, mark: Any) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


_Loader.yaml_constructors = {tag: read for tag, read in yaml.SafeLoader.yaml_constructors.items() if tag in (*_PLAIN, None)}
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789"))


def read_yaml(text: str, *, where: str) -> Any:
    """Return the plain data in `text`. Errors (not YAML, not plain data, beyond a limit) name `where` and the line.

    Example:
        >>> read_yaml("{lr: 1e-3, name: adamw}", where="an example")
        {'lr': 0.001, 'name': 'adamw'}
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        line = f", line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigurationError(f"{where}{line} is not YAML: {str(error.problem)[:200]}") from error
    except (yaml.YAMLError, ValueError, OverflowError) as error:  # the last two: an invalid escape, such as "\\UFFFFFFFF"
        raise ConfigurationError(f"{where} is not YAML: {error}") from error


def recipe_folder() -> Path:
    """Return the folder of attnkit's recipes, in the wheel or next to the package in a checkout."""
    package = Path(__file__).parent
    return next((f for f in (package / "recipes", package.parent / "recipes") if f.is_dir()), package / "recipes")


def recipe_names() -> list[str]:
    """Return the short names of attnkit's recipes, such as `g2p/transformer`."""
    folder = recipe_folder()
    found = (p.relative_to(folder).with_suffix("") for p in folder.rglob("*.yaml"))
    return sorted(path.as_posix() for path in found if path.parts[0] != STUDIES)


def find_recipe(name: str) -> Path:
    """Return the file of `--config name`, which must be an existing path or the short name of one of attnkit's recipes."""
    if os.path.isfile(name):
        return Path(name)
    short = name.removesuffix(".yaml").removesuffix(".yml")
    if short in recipe_names():
        return recipe_folder() / f"{short}.yaml"
    known = recipe_names()
    folder = Path(os.path.dirname(name) or ".")
    beside = [os.path.join(os.path.dirname(name), file.name) for file in folder.glob("*.y*ml")] if folder.is_dir() else []
    near = nearest(name, beside) if name.endswith((".yaml", ".yml")) else ""
    raise ConfigurationError(
        f"no recipe {name!r}: there is no such regular file, and no recipe of that name comes with attnkit."
        f"{near or nearest(short, known)} Recipes: {', '.join(known) or 'none'}."
    )


def read_recipe(name: str) -> dict[str, Any]:
    """Return the content of the recipe `name`, with each spec as a name or a mapping with a name."""
    path = find_recipe(name)
    if path.suffix in (".ckpt", ".safetensors"):
        raise ConfigurationError(f"{path} is a trained model, not a recipe; its recipe is config.yaml in its run's folder")
    content = read_yaml(read_text(path, limit=MAX_BYTES), where=str(path))
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} must be a mapping with the keys model, data and trainer, but is {type(content).__name__}")
    return plain_specs(content)


def plain_specs(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Apply `plain` to the `model` and `data` of a recipe or layer, including those in command sections."""
    sections = {key: plain_specs(value) for key, value in recipe.items() if key in COMMANDS and isinstance(value, Mapping)}
    return {key: plain(value) if key in SPEC_KEYS else sections.get(key, value) for key, value in recipe.items()}


def _sections(recipe: Mapping[str, Any], command: str) -> list[dict[str, Any]]:
    """Return the layers of a recipe for a command, lowest first."""
    common = {key: value for key, value in recipe.items() if key not in COMMANDS}
    return [common, recipe[command]] if isinstance(recipe.get(command), Mapping) else [common]


def read_layers(
    names: Sequence[str], *, command: str = "fit", imports: Sequence[str] = (), content: Mapping[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return the layers of recipes, lowest first, after importing the modules that they list, so that every name is registered.

    As with LightningCLI, a recipe may have a section per command (`fit: {...}`); that of `command` is a layer above the rest.
    `imports` lists further modules to import; `content` is a further recipe, from Python.
    """
    recipes = [*map(read_recipe, names), *([plain_specs(content)] if content else [])]
    layers = [layer for recipe in recipes for layer in _sections(recipe, command)]
    import_modules([*(module for layer in layers for module in module_names(layer.get(IMPORTS))), *imports])
    return layers


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

    Mappings merge key by key. A component that replaces one of another name starts from its own defaults: arguments of the old one never
    leak into the new one, and `dropped` lists those that no longer apply. Stacks are an exception, since their arguments are the size and
    the components of the whole model: the new stack keeps the old one's arguments that it accepts. A name is added to a `model` or `data`
    without one. In the corpus `files`, `validation` replaces a `validation_fraction` of lower layers and vice versa, and likewise for
    `test`. A mapping from indices changes single items of a list. The `imports` of all layers are joined without duplicates.

    Example:
        >>> dropped = []
        >>> merge({"d_model": 8, "attention": {"name": "additive", "hidden_dim": 4}}, {"attention": "cosine"}, dropped=dropped)
        {'d_model': 8, 'attention': 'cosine'}
        >>> dropped
        ['attention: cosine replaces additive, so hidden_dim=4 no longer applies']
    """
    if path == IMPORTS:
        return module_names([*module_names(base), *module_names(over)])
    if path.endswith("corpus"):
        over = _named_as_files(over, base)
    if isinstance(over, Mapping):
        if isinstance(base, str) and "name" not in over:
            return {"name": base, **over}
        old, new = (_name(base), _name(over))
        if isinstance(base, Mapping) and (new is None or old is None or new == old):
            whole = dict(base)
            for key, value in over.items():
                if key == "name" and key in whole and value == old:
                    continue  # `base` may name the same class by its path
                whole[key] = merge(whole[key], value, path=f"{path}.{key}".lstrip("."), dropped=dropped) if key in whole else value
            return _without_older_alternative(whole, over, path=path, dropped=dropped)
        if isinstance(base, list) and over and all(key.isdigit() for key in over):
            return _merge_items(base, over, path=path, dropped=dropped)
    elif isinstance(base, Mapping) and _name(base) == _name(over):
        says_more = over != _name(over) and registered_name(over) == over  # the path of a user's class says what to import
        return {**base, "name": over} if says_more else base
    elif isinstance(base, Mapping) and path in ("model", "data") and _name(base) is None and isinstance(over, str):
        return {"name": over, **base}  # without names, main.py or the command line chooses the classes
    if not isinstance(base, Mapping):
        return over
    own = {k: v for k, v in base.items() if k != "name"}
    is_stack = any(map(_is_stack, (base, over))) and all(_is_stack(spec) or "." in str(_name(spec)) for spec in (base, over))
    kept = {k: v for k, v in own.items() if k in {a.name for a in stacks.arguments(_name(over))}} if is_stack else {}
    if lost := {k: v for k, v in own.items() if k not in kept}:
        listed = ", ".join(f"{k}={_brief(v)}" for k, v in lost.items())
        verb = "applies" if len(lost) == 1 else "apply"
        dropped.append(f"{path}: {_name(over)} replaces {_name(base) or 'the previous value'}, so {listed} no longer {verb}")
    if kept:
        new = over if isinstance(over, Mapping) else {"name": over}
        return merge({**kept, "name": _name(over)}, new, path=path, dropped=dropped)
    return over


def merged(layers: Iterable[Mapping[str, Any]], *, dropped: list[str] | None = None) -> dict[str, Any]:
    """Overlay each layer of a recipe with the next; see `merge`."""
    notes = [] if dropped is None else dropped
    return reduce(lambda below, over: merge(below, over, dropped=notes), layers, {})


def _named_as_files(spec: Any, base: Any) -> Any:
    """Return a corpus named by its location as `files` if `base`, as in a checkpoint, is `files` in that location; else unchanged."""
    if isinstance(base, Mapping) and _name(base) == "files" and isinstance(_name(spec), str):
        name, arguments = corpora.split(spec)
        if name == "files" and any(base.get(key) == arguments.get(key) is not None for key in ("train", "hub")):
            return {"name": name, **arguments}
    return spec


def _without_older_alternative(whole: dict[str, Any], over: Mapping[str, Any], *, path: str, dropped: list[str]) -> dict[str, Any]:
    """Return a spec without the alternatives of arguments in the layer `over`, unless that layer sets both."""
    is_files = path.endswith("corpus") and isinstance(whole.get("name"), str) and corpora.split(whole)[0] == "files"
    for part in ("validation", "test") if is_files else ():
        for new, old in ((part, f"{part}_fraction"), (f"{part}_fraction", part)):
            if over.get(new) and old not in over and whole.get(old):
                dropped.append(f"{path}: {new} replaces {old}={_brief(whole.pop(old))}")
    return whole


def _merge_items(base: list[Any], over: Mapping[str, Any], *, path: str, dropped: list[str]) -> list[Any]:
    """Return a list overlaid with a mapping from indices to items, as in `layers: {1: {mixer: none}}`."""
    whole = list(base)
    for index, value in over.items():
        if int(index) >= len(whole):
            raise ConfigurationError(f"{path} has {len(whole)} entries, numbered from 0, so there is no {path}.{index}")
        whole[int(index)] = merge(whole[int(index)], value, path=f"{path}.{index}", dropped=dropped)
    return whole


def class_paths(value: Any) -> Iterator[str]:
    """Yield the class paths in a recipe.

    Example:
        >>> list(class_paths({"model": {"name": "mine.Model", "norm": "layer_norm"}, "trainer": {"callbacks": [{"class_path": "a.B"}]}}))
        ['mine.Model', 'a.B']
    """
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        if isinstance(item, Mapping | list | tuple):
            yield from class_paths(item)
        elif key in ("name", "class_path") and isinstance(item, str) and "." in item:
            yield item


def _name(spec: Any) -> Any:
    name = spec.get("name") if isinstance(spec, Mapping) else spec
    return name_of_path(name) if isinstance(name, str) and "." in name else name


def _is_stack(spec: Any) -> bool:
    return isinstance(name := _name(spec), str) and name in set(stacks)


def _brief(value: Any) -> Any:
    return value.get("name", "{...}") if isinstance(value, Mapping) else value
