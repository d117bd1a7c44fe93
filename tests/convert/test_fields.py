"""Fields have types, and are refused by name."""

from typing import Any

import pytest

from attnkit.convert.fields import Fields
from attnkit.registry import ConfigurationError


def fields(value: Any) -> Fields:
    return Fields({"x": value}, "config.json")


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        *((int, value, "a whole number from 1") for value in ("16", None, 4.0, True, 0, -1, 2**31, 10**30, [4], {"a": 4})),
        *((float, value, "a finite number") for value in ("1e-6", None, float("nan"), float("inf"), True, 10**400, [])),
        *((bool, value, "true or false") for value in ("false", None, 0, 1.0, [])),
        *((str, value, "a string") for value in (1, None, ["gelu"], {})),
        *((list, value, "a list") for value in ("ab", None, 1, {"a": 1})),
    ],
)
def test_a_value_of_another_type_is_refused_by_name(kind: type, value: Any, wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"config.json: x must be {wanted}, but is "):
        fields(value).read("x", kind)
    if value is not None:
        with pytest.raises(ConfigurationError, match=rf"config.json: x must be {wanted}, but is "):
            fields(value).optional("x", kind)


def test_values_of_the_right_type_are_read() -> None:
    assert fields(4).read("x", int) == 4
    assert fields(0).read("x", int, least=0) == 0
    assert isinstance(fields(4).read("x", float), float)
    assert fields(None).optional("x", int, 3) is None
    assert Fields({}, "").optional("x", int, 3) == 3
    assert Fields({}, "").optional("x", int) is None
    assert not Fields({}, "").section("x")
    with pytest.raises(ConfigurationError, match=r"config.json has no field y"):
        fields(4).read("y", int)
    with pytest.raises(ConfigurationError, match=r"x must be positive, but is 0\.0"):
        fields(0).positive("x", 1.0)
    with pytest.raises(ConfigurationError, match="x must be a mapping, but is"):
        fields("").section("x")


def test_a_required_value_must_match_in_type_and_value() -> None:
    fields(None).require(x=False)
    for value in (True, 0, "false"):
        with pytest.raises(ConfigurationError, match=r"x is .*, but attnkit only imports models where it is False"):
            fields(value).require(x=False)
    with pytest.raises(ConfigurationError, match="x is None"):
        fields(None).require(x=True)


def test_a_message_truncates_a_long_value() -> None:
    with pytest.raises(ConfigurationError) as caught:
        fields("x" * 10_000).finish()
    assert len(str(caught.value)) < 200
