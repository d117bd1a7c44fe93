import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import jsonschema
import pytest

from attnkit.cli.schema import component_schema, family_schema, recipe_schema, type_schema
from attnkit.recipe import read_recipe, recipe_names
from attnkit.registry import AttentionSpec, NormSpec, attentions, norms, stacks, tasks

RECIPE = {
    "model": {
        "name": "seq2seq",
        "stack": {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "attention": "additive"},
    },
    "data": {"name": "text_pairs", "corpus": {"name": "files", "train": "words.tsv"}},
    "trainer": {"max_epochs": 1, "callbacks": [{"class_path": "EarlyStopping"}]},
}


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(recipe_schema())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def test_the_command_prints_the_schema(attnkit: Callable[..., Any]) -> None:
    assert json.loads(attnkit("schema").out) == json.loads(recipe_schema())


def test_every_shipped_recipe_is_valid(validator: jsonschema.Draft202012Validator) -> None:
    assert recipe_names()
    for name in recipe_names():
        recipe = read_recipe(name)
        assert [error.message for error in validator.iter_errors(recipe)] == [], name


@pytest.mark.parametrize(
    ("place", "value", "is_valid"),
    [
        (["model", "stack", "attention"], {"name": "additive", "hidden_dim": 32}, True),
        (["model", "stack", "attention"], {"class_path": "attnkit.attention.additive", "init_args": {"hidden_dim": 32}}, True),
        (["model", "stack", "attention"], "my_pkg.additive.MyOwn", True),
        (["model", "stack", "attention"], {"name": "my_pkg.additive.MyOwn", "width": 2}, True),
        (["model", "stack", "cross_attention"], None, True),
        (["data", "tgt_tokenizer"], "word", True),
        (["model", "stack", "attention"], "aditive", False),
        (["model", "stack", "attention"], {"name": "additive", "hiden_dim": 32}, False),
        (["model", "stack", "attention"], {"name": "additive", "hidden_dim": "wide"}, False),
        (["model", "stack", "attention"], {"name": "additive", "head_dim": 32}, False),
        (["model", "stack"], "encoder_decoder", False),  # d_model is required
        (["model", "src_tokenizer"], "character", False),  # comes from the data
        (["model", "tie"], "everything", False),
    ],
)
def test_the_schema_accepts_valid_and_rejects_invalid_recipes(
    validator: jsonschema.Draft202012Validator, place: list[str], value: Any, is_valid: bool
) -> None:
    recipe: Any = deepcopy(RECIPE)
    assert validator.is_valid(recipe)
    node = recipe
    for key in place[:-1]:
        node = node[key]
    node[place[-1]] = value
    assert validator.is_valid(recipe) == is_valid


def test_a_component_schema_includes_documentation_and_defaults() -> None:
    schema = component_schema(attentions, "toy")
    assert schema["description"] == "Toy attention."
    assert schema["properties"]["hidden_dim"] == {"type": "integer", "description": "Width of the hidden layer.", "default": 16}
    assert "head_dim" not in schema["properties"]
    assert component_schema(stacks, "toy")["required"] == ["name", "d_model"]
    assert "src_tokenizer" not in component_schema(tasks, "toy_task")["properties"]


def test_a_task_requires_a_stack_or_a_checkpoint(validator: jsonschema.Draft202012Validator) -> None:
    data = {"name": "labelled_text", "corpus": "movie_snippets"}
    assert validator.is_valid({"model": {"name": "classification", "init_from": "best.ckpt"}, "data": data})
    stack = {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    assert validator.is_valid({"model": {"name": "classification", "stack": stack}, "data": data})
    assert not validator.is_valid({"model": {"name": "classification"}, "data": data})
    assert not validator.is_valid({"model": "classification", "data": data})


def test_an_annotation_without_a_json_type_accepts_anything() -> None:
    assert type_schema(Callable[[int], int]) == {}


def test_specs_in_lists_use_their_familys_schema() -> None:
    slot = {"$ref": "#/$defs/attentions"}
    assert type_schema(list[AttentionSpec]) == {"type": "array", "items": slot}
    assert type_schema(tuple[AttentionSpec | None, ...]) == {"type": "array", "items": {"anyOf": [slot, {"type": "null"}]}}


@pytest.mark.parametrize(
    ("key", "value", "is_valid"),
    [
        ("precision", "bf16-mixed", True),
        ("precision", "bf17", False),
        ("max_epochs", 3, True),
        ("max_epochs", "three", False),
        ("max_epohcs", 3, False),
        ("accelerator", "cpu", True),
        ("callbacks", [{"class_path": "EarlyStopping", "init_args": {"monitor": "loss"}}], True),
        ("callbacks", [3], False),
        ("limit_train_batches", 0.5, True),
        ("default_root_dir", "runs", True),
        ("max_time", "00:12:00:00", True),
    ],
)
def test_the_schema_types_the_trainer(validator: jsonschema.Draft202012Validator, key: str, value: Any, is_valid: bool) -> None:
    recipe = deepcopy(RECIPE)
    recipe["trainer"] = {key: value}
    assert validator.is_valid(recipe) is is_valid


@dataclass(frozen=True)
class InnerConfig:
    norm: NormSpec = "broken_norm"


class NeedsABrokenNorm:
    def __init__(self, d_model: int, inner: InnerConfig = InnerConfig()) -> None:
        """A plugin with its own dataclass."""


def test_a_component_whose_default_names_a_broken_plugin_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of the schema is intact, as if only the plugin were missing."""
    before = family_schema(norms)
    monkeypatch.setattr(norms, "_classes", dict(norms._classes))
    monkeypatch.setattr(norms, "_broken", {"broken_norm": "norm 'broken_norm' comes from a plugin which cannot be loaded"})
    norms.register("needs_a_broken_norm")(NeedsABrokenNorm)
    assert family_schema(norms) == before
