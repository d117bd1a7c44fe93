"""`attnkit schema --study`: a JSON schema of the study files of `attnkit ablate`, derived from the classes that read them."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any, get_args, get_origin, get_type_hints

from attnkit.ablation.spec import StudySpec
from attnkit.cli.schema import type_schema
from attnkit.registry.docstrings import argument_docs
from attnkit.worker.budget import Budget
from attnkit.worker.launch import ENGINES

_OBJECT: dict[str, Any] = {"type": "object"}

_IN_FILE: dict[str, dict[str, Any]] = {
    "factors": _OBJECT,
    "variants": {"type": "object", "additionalProperties": _OBJECT},
    "seeds": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}}]},
    "exclude": {
        "type": "array",
        "items": {"type": "object", "properties": {"when": _OBJECT, "reason": {"type": "string"}}, "required": ["when", "reason"]},
    },
    "budget": {
        "type": "object",
        "properties": {unit: {"type": "number"} for unit in get_args(get_type_hints(Budget)["on"])},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    },
    "engine": {"anyOf": [{"enum": [*ENGINES]}, {"type": "object", "properties": {"name": {"enum": [*ENGINES]}}, "required": ["name"]}]},
}
"""The keys whose values look different in a file than in Python."""


def study_schema() -> str:
    """Return the schema as JSON text. The first line of a study file names the file: `# yaml-language-server: $schema=PATH`."""
    found = _record(StudySpec, _IN_FILE)
    del found["properties"]["file"]
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "attnkit study",
        **found,
        "required": [],  # the default name is that of the file
        "anyOf": [{"required": ["recipe"]}, {"required": ["tasks"]}],
    }
    return json.dumps(schema, indent=2)


def _record(cls: Any, given: Mapping[str, dict[str, Any]] = MappingProxyType({})) -> dict[str, Any]:
    """Return the schema of a mapping whose keys are the fields of a dataclass; `given` has the schemas of some of them."""
    text, types = inspect.getdoc(cls) or "", get_type_hints(cls)
    meanings = argument_docs(text, "Args") | argument_docs(text, "Attributes")
    properties = {}
    for field in fields(cls):
        described = {"description": meanings[field.name]} if field.name in meanings else {}
        properties[field.name] = given.get(field.name, _value(types[field.name])) | described
    required = [name for name, parameter in inspect.signature(cls).parameters.items() if parameter.default is parameter.empty]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(annotation: Any) -> dict[str, Any]:
    """Return the schema of a value, which may be a dataclass, a mapping of dataclasses, or None."""
    if is_dataclass(annotation):
        return _record(annotation)
    inside = [part for part in get_args(annotation) if is_dataclass(part)]
    if not inside:
        return type_schema(annotation)
    if get_origin(annotation) is Mapping:
        return {"type": "object", "additionalProperties": _record(inside[0])}
    return {"anyOf": [_record(inside[0]), {"type": "null"}]}
