"""The names and shapes of parameters are those of the checkpoints that exist: renaming a class or moving code changes none."""

import json
from pathlib import Path
from typing import Any

import pytest

import attnkit

EXPECTED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("state_dict_keys.json").read_text(encoding="utf-8"))
"""By a name: the spec of a stack, and the shapes of its parameters as attnkit 0.1.0 had them."""


def test_every_stack_is_covered() -> None:
    assert {case["spec"]["name"] for case in EXPECTED.values()} == attnkit.stacks.built_in()


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_parameter_names_and_shapes_match_existing_checkpoints(name: str) -> None:
    stack = attnkit.stacks.build(EXPECTED[name]["spec"])
    assert {key: list(value.shape) for key, value in stack.state_dict().items()} == EXPECTED[name]["shapes"]
