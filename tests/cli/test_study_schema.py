import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from attnkit.ablation.spec import StudySpec
from attnkit.ablation.study_file import EXAMPLES
from attnkit.cli.study_schema import study_schema
from attnkit.recipe import STUDIES, read_yaml, recipe_folder
from attnkit.registry import ConfigurationError

STUDY = {"recipe": "g2p/transformer", "metric": "val/loss", "factors": {"model.stack.position": ["none", "rotary"]}, "seeds": 3}
SHIPPED = sorted((recipe_folder() / STUDIES).glob("*.yaml"))
KEYS = [field.name for field in fields(StudySpec) if field.name != "file"]


@pytest.fixture(scope="module")
def problems() -> Callable[[Any], list[str]]:
    schema = json.loads(study_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    return lambda content: [error.message for error in validator.iter_errors(content)]


def read(content: dict[str, Any]) -> StudySpec:
    return StudySpec.from_dict(content, file=Path("x.yaml"))


def test_the_command_prints_the_schema(attnkit: Callable[..., Any]) -> None:
    assert json.loads(attnkit("schema", "--study").out) == json.loads(study_schema())


def test_every_key_of_a_study_is_described() -> None:
    properties = json.loads(study_schema())["properties"]
    assert list(properties) == KEYS
    assert all(key["description"] for key in properties.values())


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_every_shipped_study_is_valid(problems: Callable[[Any], list[str]], path: Path) -> None:
    assert problems(read_yaml(path.read_text(encoding="utf-8"), where=path.name)) == []


def test_the_examples_of_error_messages_are_valid(problems: Callable[[Any], list[str]]) -> None:
    for key, example in EXAMPLES.items():
        for text in example.split(" or "):
            assert problems(STUDY | {key: read_yaml(text, where=key)}) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"metrik": "val/loss"},
        {"recipe": 3},
        {"seeds": "five"},
        {"seeds": [0, "1"]},
        {"design": "factorial"},
        {"better": "more"},
        {"factors": ["model.stack.position"]},
        {"decide": {"power": 0.9, "max_seed": 20}},
        {"decide": {"power": "high"}},
        {"tune": {"gird": {"model.optimizer.lr": [0.1, 0.2]}}},
        {"match": {"on": "params"}},
        {"budget": {"steps": 10, "tokens": 10}},
        {"budget": {"epochs": 10}},
        {"engine": "slum"},
        {"exclude": [{"when": {"position": "none"}}]},
        {"scales": {"small": {"set": {"model.stack.d_model": 64}}}},
        {"published": {"source": "a paper", "rows": {}}},
    ],
    ids=str,
)
def test_what_the_schema_rejects_is_no_study(problems: Callable[[Any], list[str]], changes: dict[str, Any]) -> None:
    assert problems(STUDY | changes)
    with pytest.raises(ConfigurationError):
        read({**STUDY, **changes})


def test_a_study_needs_a_recipe_or_tasks_with_one(problems: Callable[[Any], list[str]]) -> None:
    without = {key: value for key, value in STUDY.items() if key != "recipe"}
    assert problems(without)
    assert problems(without | {"tasks": {"spelling": {"recipe": "g2p/transformer"}}}) == []
    assert read(STUDY).seeds == (0, 1, 2)
