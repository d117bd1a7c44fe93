from typing import Any

import pytest

import attnkit
from attnkit.cli.arguments import read_arguments
from attnkit.registry import ConfigurationError, NormSpec, ResolvedSpec, StackSpec, Word, attentions, datasets, stacks, tasks
from attnkit.train.composition import complete_recipe, outline


def model(*flags: str) -> ResolvedSpec:
    """The resolved spec of a toy model with these flags."""
    request = read_arguments(["--model", "toy_task", "--model.stack", "{name: toy, d_model: 8}", "--data", "toy_data", *flags])
    return complete_recipe(request.flags)["model"]


def test_every_default_is_completed_in_signature_order() -> None:
    assert model() == {
        "name": "toy_task",
        "stack": {
            "name": "toy",
            "d_model": 8,
            "attention": {"name": "toy", "hidden_dim": 16, "scale": 1.0},
            "cross_attention": None,
            "mode": "fast",
        },
        "lr": 0.1,
    }
    assert list(model()["stack"]) == ["name", "d_model", "attention", "cross_attention", "mode"]


def test_an_argument_extends_the_default_component_of_its_slot() -> None:
    assert model("--model.stack.attention.hidden_dim", "3")["stack"]["attention"] == {"name": "toy", "hidden_dim": 3, "scale": 1.0}


def test_null_empties_an_optional_slot() -> None:
    flags = ["--model.stack.cross_attention", "other", "--model.stack.cross_attention", "null"]
    assert model(*flags[:2])["stack"]["cross_attention"] == {"name": "other", "bias": True, "label": None}
    assert model(*flags)["stack"]["cross_attention"] is None


@pytest.mark.parametrize(
    ("spec", "argument", "value"),
    [
        ({"name": "toy_data", "path": Word("123", 123)}, "path", "123"),
        ({"name": "toy_data", "path": Word("null", None)}, "path", "null"),
        ({"name": "toy_data", "path": Word("true", True)}, "path", "true"),
        ({"name": "toy_data", "size": Word("123", 123)}, "size", 123),
        ({"name": "toy_data", "size": Word("null", None)}, "size", None),
        ({"name": "toy_data", "files": {"train": Word("a", "a")}}, "files", {"train": "a"}),
    ],
)
def test_command_line_words_are_converted_to_the_arguments_type(spec: Any, argument: str, value: Any) -> None:
    completed = datasets.resolve(spec, path="data")[argument]
    assert completed == value
    assert type(completed) is type(value)


@pytest.mark.parametrize(("word", "value"), [("1e-3", 0.001), ("3", 3), ("0.5", 0.5)])
def test_command_line_numbers_are_parsed(word: str, value: float) -> None:
    assert model("--model.lr", word)["lr"] == value


def test_a_completed_recipe_contains_only_plain_types() -> None:
    def types_in(value: Any) -> set[type]:
        if isinstance(value, dict):
            return {dict}.union(*(types_in(item) for item in value.values()))
        return {type(value)}

    flags = ["--model.lr", "1", "--model.stack.attention", "toy", "--model.stack.mode", "slow", "--model.stack.attention.scale", "2"]
    assert types_in(model(*flags).plain()) <= {dict, int, float, str, type(None)}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--model", "toy_tsk"], r"model: unknown task 'toy_tsk'\. Did you mean 'toy_task'\?"),
        (["--model.stak", "x"], r"model: task 'toy_task' has no argument 'stak'\. Did you mean 'stack'\?"),
        (["--model.stack", "tyo"], r"model\.stack: unknown stack 'tyo'\. Did you mean 'toy'\?.*Names: .*toy"),
        (["--model.stack.d_modle", "x"], r"model\.stack: stack 'toy' has no argument 'd_modle'\. Did you mean 'd_model'\?"),
        (["--model.stack.d_model", "wide"], r"model\.stack: stack 'toy': d_model must be int, but is 'wide'"),
        (["--model.stack.mode", "fats"], r"model\.stack: stack 'toy': mode must be .*'fast', 'slow'.* but is 'fats'"),
        (["--model.stack.attention", "aditive"], r"model\.stack\.attention: unknown attention 'aditive'\. Did you mean 'additive'\?"),
        (
            ["--model.stack.attention.hiden_dim", "1"],
            r"model\.stack\.attention: attention 'toy' has no argument 'hiden_dim'.*'hidden_dim'\?",
        ),
        (["--model.stack.attention.head_dim", "1"], r"model\.stack\.attention: attention 'toy' receives 'head_dim' from its parent"),
        (["--model.stack.attention", "[toy]"], r"model\.stack\.attention: attention must be a name or a mapping"),
        (["--model.src_tokenizer", "toy"], r"model: task 'toy_task' takes 'src_tokenizer' from the data module; remove it"),
    ],
)
def test_a_mistake_is_located(flags: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        model(*flags)


def test_a_missing_argument_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"model\.stack: stack 'toy' needs d_model"):
        tasks.resolve({"name": "toy_task", "stack": "toy"}, path="model")


@pytest.mark.parametrize(
    ("recipe", "word"),
    [
        ({}, "missing model"),
        ({"model": {"name": "toy_task", "stack": {"name": "toy", "d_model": 8}}, "data": None}, "missing data"),
    ],
)
def test_a_recipe_needs_a_model_and_data(recipe: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{word}: add --config RECIPE"):
        complete_recipe(recipe)


def test_the_outline_shows_names_and_non_default_arguments() -> None:
    spec = stacks.resolve({"name": "toy", "d_model": 8, "attention": {"name": "toy", "scale": 2.0}}, path="stack")
    assert outline(spec, role="stack") == ["stack: toy (d_model=8)", "  attention: toy (scale=2.0)"]
    assert outline(attentions.resolve({"name": "other", "bias": True}), role="attention") == ["attention: other"]


def test_the_outline_shows_the_specs_of_a_list() -> None:
    layers = [{"mixer": "none", "repeat": 2}, {"window": 4}]
    lines = outline(attnkit.stacks.resolve({"name": "decoder", "d_model": 8, "num_heads": 2, "layers": layers}), role="stack")
    assert lines[0] == "stack: decoder (d_model=8, num_heads=2)"
    assert lines[-3:] == ["  layers.0: transformer_layer (repeat=2)", "    mixer: none", "  layers.1: transformer_layer (window=4)"]


class Hybrid:
    """A stack whose layers are specs."""

    def __init__(self, *, layers: list[StackSpec], norms: tuple[NormSpec, ...] = ("rms_norm",)) -> None: ...


def test_specs_in_lists_are_completed_and_errors_name_their_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(stacks._classes, "hybrid", Hybrid)
    layer = {"name": "toy", "d_model": Word("8", 8), "attention": {"hidden_dim": 3}}
    completed = stacks.resolve({"name": "hybrid", "layers": [{"name": "toy", "d_model": 4}, layer]}, path="model.stack")
    assert completed["layers"][0]["mode"] == "fast"
    assert completed["layers"][1]["d_model"] == 8
    assert completed["layers"][1]["attention"] == {"name": "toy", "hidden_dim": 3, "scale": 1.0}
    assert completed["norms"] == [{"name": "rms_norm", "eps": 1e-6, "learned": True}]
    for wrong, message in (
        ([layer, layer | {"attention": "tay"}], r"^model.stack.layers\[1\].attention: unknown attention 'tay'"),
        ([layer | {"wdith": 1}], r"^model.stack.layers\[0\]: stack 'toy' has no argument 'wdith'"),
        ("toy", r"^model.stack: stack 'hybrid': layers must be list\[stack\], but is 'toy'"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            stacks.resolve({"name": "hybrid", "layers": wrong}, path="model.stack")
