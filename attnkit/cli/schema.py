"""`attnkit schema`: a JSON schema of recipes, derived from the signatures, for completion and checks in editors.

(jsonargparse's `print_completion=jsonschema` fails on the Trainer, and requires what parents and data pass to components.)
"""

import collections.abc
import inspect
import json
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from attnkit.registry import FAMILIES, Argument, ConfigurationError, Registry
from attnkit.registry.base import Fields
from attnkit.registry.docstrings import argument_docs
from attnkit.registry.values import is_union
from attnkit.train.inheritance import INHERITED

_CLASS = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["class_path"]}]}
"""An object given by class path, as jsonargparse accepts it."""

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", type(None): "null", dict: "object", list: "array"}


def recipe_schema() -> str:
    """Return the schema as JSON text. The first line of a recipe names the file: `# yaml-language-server: $schema=PATH`."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnkit recipe",
        "type": "object",
        "properties": {
            "model": {"$ref": "#/$defs/tasks"},
            "data": {"$ref": "#/$defs/datasets"},
            "trainer": trainer_schema(),
            "seed_everything": {"type": ["integer", "boolean"]},
            "ckpt_path": {"type": ["string", "null"]},
            "imports": {
                "type": "array",
                "items": {"type": "string"},
                "description": "Modules to import first, such as those of your own components.",
            },
        },
        "$defs": {registry.attribute: family_schema(registry) for registry in FAMILIES},
    }
    return json.dumps(schema, indent=2)


def trainer_schema() -> dict[str, Any]:
    """Return the schema of the trainer section, from the signature of Lightning's Trainer."""
    from lightning.pytorch import Trainer, callbacks, loggers
    from lightning.pytorch.accelerators import AcceleratorRegistry
    from lightning.pytorch.strategies import StrategyRegistry

    examples = {
        "accelerator": ["auto", *AcceleratorRegistry.available_accelerators()],
        "strategy": ["auto", *StrategyRegistry.available_strategies()],
        "callbacks": sorted(callbacks.__all__),
        "logger": sorted(loggers.__all__),
    }
    meanings = argument_docs(inspect.getdoc(Trainer.__init__) or "")
    properties = {}
    for parameter in inspect.signature(Trainer).parameters.values():
        schema = type_schema(parameter.annotation)
        if parameter.name in meanings:
            schema["description"] = meanings[parameter.name].replace("``", "`")
        if parameter.name in examples:
            schema["examples"] = examples[parameter.name]
        properties[parameter.name] = schema | {"default": parameter.default}
    return {"type": "object", "properties": properties, "additionalProperties": False}


def family_schema(registry: Registry) -> dict[str, Any]:
    """Return the schema of a slot: a name, a mapping with a name and its arguments, or a class path."""
    components, bare = [], []
    for name in registry.names():
        try:
            component = component_schema(registry, name)
        except ConfigurationError:  # a broken plugin, or one whose default names a broken one; the registry has warned about it
            continue
        components.append(component)
        if component["required"] == ["name"] and "anyOf" not in component:
            bare.append(name)
    path = {"type": "string", "pattern": registry.paths}
    paths = [path, {"type": "object", "properties": {"name": path}, "required": ["name"]}, {"type": "object", "required": ["class_path"]}]
    return {"anyOf": [{"enum": bare}, *components, *paths]}


def component_schema(registry: Registry, name: str) -> dict[str, Any]:
    """Return the schema of a mapping with the name and the arguments of one component."""
    cls = registry.get(name)
    described = registry.describe(name)
    meanings = argument_docs(described.documentation)
    arguments = [a for a in registry.arguments(name) if a.name not in getattr(cls, "from_data", {})]
    properties = {
        a.name: type_schema(a.annotation)
        | ({} if a.required else {"default": _default(a)})
        | ({"description": meanings[a.name]} if a.name in meanings else {})
        for a in arguments
    }
    schema: dict[str, Any] = {
        "type": "object",
        "description": described.summary,
        "properties": {"name": {"const": name}, **properties},
        "required": ["name", *(a.name for a in arguments if a.required)],
        "additionalProperties": False,
    }
    if "init_from" in properties and (inherited := [key for key in schema["required"] if key in INHERITED]):
        schema["required"] = [key for key in schema["required"] if key not in inherited]
        schema["anyOf"] = [{"required": inherited}, {"required": ["init_from"]}]
    return schema


def _default(argument: Argument) -> Any:
    is_dataclass = isinstance(argument.registry, Fields) and argument.default is not None
    return argument.written_default().plain() if is_dataclass else argument.default


def type_schema(annotation: Any, *, inside: tuple[Registry, ...] = ()) -> dict[str, Any]:
    """Return the schema of an annotation; one that JSON cannot express accepts any value. `inside` are the dataclasses around it.

    Example:
        >>> type_schema(int | None)
        {'anyOf': [{'type': 'integer'}, {'type': 'null'}]}
        >>> type_schema(list[float])
        {'type': 'array', 'items': {'type': 'number'}}
    """
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        slot = next((m for m in annotation.__metadata__ if isinstance(m, Registry)), None)
        if isinstance(slot, Fields) and slot not in inside:
            fields = {a.name: type_schema(a.annotation, inside=(*inside, slot)) for a in slot.arguments(slot.path)}
            return {"anyOf": [{"type": "object", "properties": fields, "additionalProperties": False}, _CLASS["anyOf"][1]]}
        return {"$ref": f"#/$defs/{slot.attribute}"} if slot is not None and slot.attribute else type_schema(arguments[0], inside=inside)
    if annotation is None:
        return {"type": "null"}
    if origin is Literal:
        return {"enum": list(arguments)}
    if is_union(annotation):
        return {"anyOf": _flat(type_schema(part, inside=inside) for part in arguments)}
    if origin in (list, tuple, collections.abc.Sequence, collections.abc.Iterable):
        items = [a for a in arguments if a is not Ellipsis]
        return {"type": "array"} | ({"items": type_schema(items[0], inside=inside)} if len(set(items)) == 1 else {})
    if origin in (dict, collections.abc.Mapping):
        return {"type": "object"}
    if annotation in _JSON_TYPES:
        return {"type": _JSON_TYPES[annotation]}
    if annotation in (Path, timedelta):
        return {"type": "string"}
    return _CLASS if inspect.isclass(annotation) else {}


def _flat(schemas: collections.abc.Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the distinct members of a union, including those of nested unions."""
    members: list[dict[str, Any]] = []
    for schema in schemas:
        for member in schema["anyOf"] if list(schema) == ["anyOf"] else [schema]:
            if member not in members:
                members.append(member)
    return members
