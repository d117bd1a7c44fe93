"""Enums, dataclasses, paths, tuples and other objects as arguments: plain data in resolved specs, objects in constructors."""

import json
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from inspect import signature
from pathlib import Path
from typing import Any, Optional

import pytest

from attnkit.registry import ConfigurationError, ResolvedSpec, Word
from attnkit.registry.base import Objects


class Size(IntEnum):
    SMALL = 1
    LARGE = 2
    BIG = 2


class Shade(StrEnum):
    NO = "no"
    DARK = "dark"


@dataclass
class Inner:
    size: Size = Size.SMALL
    steps: int = 3


@dataclass
class Outer:
    rate: float
    name: str = "a"
    inner: Inner = field(default_factory=Inner)
    paths: list[Path] = field(default_factory=list)
    parent: "Outer | None" = None


@dataclass
class Wide(Inner):
    width: int = 1


class Taker:
    def __init__(
        self,
        *,
        size: Size = Size.LARGE,
        shade: Shade | None = None,
        inner: Inner = Inner(steps=9),  # noqa: B008
        outer: Outer | None = None,
        pairs: dict[str, tuple[int, Path]] | None = None,
        any_of: Size | Inner | int = 7,
        text: str | Shade = "plain",
        place: str | Path = "x",
        objects: dict[str, json.JSONEncoder] | None = None,
        bare: tuple = (),  # type: ignore[type-arg]
        folder: Optional[Path] = None,  # noqa: UP045
    ) -> None:
        self.taken = {key: value for key, value in locals().items() if key != "self"}


takers = Objects(Taker)


def spec_of(**given: Any) -> ResolvedSpec:
    return takers.resolve({"name": f"{__name__}.Taker", **given})


def taken(**given: Any) -> dict[str, Any]:
    """Return what the constructor is given, which is the same for the spec as it is saved."""
    spec = spec_of(**given)
    saved = takers.resolve(json.loads(json.dumps(spec.plain())))
    assert saved == spec == spec.plain()
    built: dict[str, Any] = takers.build(saved).taken
    if "objects" not in given:
        assert built == takers.build(spec).taken
    return built


def test_defaults_are_serialised_and_rebuilt() -> None:
    assert taken() == {name: parameter.default for name, parameter in signature(Taker).parameters.items()}
    assert spec_of().plain() | {"name": ""} == {
        "name": "",
        "size": "LARGE",
        "shade": None,
        "inner": {"size": "SMALL", "steps": 9},
        "outer": None,
        "pairs": None,
        "any_of": 7,
        "text": "plain",
        "place": "x",
        "objects": None,
        "bare": [],
        "folder": None,
    }


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("size", "SMALL", Size.SMALL),
        ("size", "BIG", Size.LARGE),
        ("size", Size.SMALL, Size.SMALL),
        ("shade", Word("NO", False), Shade.NO),
        ("shade", Word("null", None), None),
        ("inner", {"size": Word("LARGE", "LARGE")}, Inner(Size.LARGE, steps=9)),
        ("inner", Inner(Size.LARGE), Inner(Size.LARGE)),
        ("inner", Wide(width=4), Wide(width=4)),
        ("inner", {"class_path": f"{__name__}.Wide", "init_args": {"width": 2}}, Wide(width=2)),
        ("outer", {"rate": 1.0, "name": "b", "inner": {"steps": 1}}, Outer(1.0, "b", Inner(steps=1))),
        ("outer", {"rate": 1.0, "paths": ["p"], "parent": {"rate": 2.0}}, Outer(1.0, paths=[Path("p")], parent=Outer(2.0))),
        ("pairs", {"a": [1, "p"]}, {"a": (1, Path("p"))}),
        ("pairs", {"a": (1, Path("p"))}, {"a": (1, Path("p"))}),
        ("any_of", "SMALL", Size.SMALL),
        ("any_of", {"steps": 2}, Inner(steps=2)),
        ("text", "DARK", Shade.DARK),
        ("text", "other", "other"),
        ("bare", [1, "a"], (1, "a")),
        ("folder", Word("12", 12), Path("12")),
    ],
)
def test_values_are_converted_to_their_types(name: str, given: Any, expected: Any) -> None:
    found = taken(**{name: given})[name]
    assert found == expected
    assert type(found) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("size", "LARG", r"size must be Literal\['SMALL', 'LARGE', 'BIG'\], but is 'LARG' \(str\). Did you mean 'LARGE'\?"),
        ("size", 1, "size must be Literal"),
        ("shade", "no", "Did you mean 'NO'"),
        ("inner", {"stps": 1}, r"^inner: Inner has no field 'stps'. Did you mean 'steps'\? Its fields: size, steps."),
        ("inner", None, "inner must be Inner, but is None"),
        ("outer", {"inner": {}}, "^outer: Outer needs rate: add it, as in {rate: ...}"),
        ("outer", {"rate": 1.0, "inner": {"size": "SMAL"}}, "^outer.inner: .*Did you mean 'SMALL'"),
        ("outer", {"rate": "fast"}, "rate must be float, but is 'fast'"),
        ("pairs", {"a": [1]}, "pairs must be dict"),
        ("any_of", "SMAL", "any_of must be .*Did you mean 'SMALL'"),
        ("bare", 3, "bare must be tuple"),
        ("folder", 3, "folder must be pathlib.Path"),
        ("objects", {"a": "json.JSONDecoder"}, "must inherit from JSONEncoder"),
    ],
)
def test_wrong_values_are_refused(name: str, given: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        spec_of(**{name: given})


def test_objects_in_mappings_are_built_from_their_class_paths() -> None:
    built = taken(objects={"a": {"class_path": "json.JSONEncoder", "init_args": {"sort_keys": True}}})["objects"]["a"]
    assert built.sort_keys


def test_fields_can_be_replaced_in_a_resolved_spec() -> None:
    spec = spec_of()
    assert spec.replace(inner=spec["inner"].replace(steps=1))["inner"] == {"size": "SMALL", "steps": 1}
    assert len(spec["inner"]) == 2
