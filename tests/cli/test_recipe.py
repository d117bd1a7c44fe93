import re
from pathlib import Path
from typing import Any

import pytest

from attnkit import recipe
from attnkit.cli.arguments import read_arguments
from attnkit.recipe import find_recipe, merge, plain, read_recipe, read_yaml
from attnkit.registry import ConfigurationError, corpora


@pytest.mark.parametrize(
    ("text", "value"), [("1e-3", 0.001), ("-2E5", -2e5), ("1.5e3", 1500.0), ("0.1", 0.1), ("7", 7), ("e3", "e3"), ("1e", "1e")]
)
def test_numbers_are_read_as_in_yaml_1_2(text: str, value: Any) -> None:
    read = read_yaml(text, where="here")
    assert read == value
    assert type(read) is type(value)


def test_a_boolean_or_empty_key_is_read_as_a_string() -> None:
    assert read_yaml("{on: yes, no: {off: 1}, true: 2}", where="here") == {"on": True, "no": {"off": 1}, "true": 2}
    with pytest.raises(ConfigurationError, match="the key 'on' occurs twice"):
        read_yaml("{on: 1, 'on': 2}", where="here")
    for text in ("{0.001: 1, 0.001: 2}", "{~: 1, '~': 2}", "{1: 1, 1.0: 2}"):
        with pytest.raises(ConfigurationError, match="occurs twice"):
            read_yaml(text, where="here")
    assert read_yaml("{null: 1, ~: 2}", where="here") == {"null": 1, "~": 2}
    assert read_yaml("{a: &a {b: 1}, c: {<<: *a, b: 2}, 1: 3, true: 4}", where="here") == {"a": {"b": 1}, "c": {"b": 2}, 1: 3, "true": 4}


def test_yaml_errors_name_file_and_line() -> None:
    with pytest.raises(ConfigurationError, match=r"r\.yaml, line 2 is not YAML"):
        read_yaml("model: {name: x\ndata: [}", where="r.yaml")
    with pytest.raises(ConfigurationError, match=r"line 2 is not YAML: the key 'model' occurs twice"):
        read_yaml("model: a\nmodel: b", where="r.yaml")


@pytest.mark.parametrize(("text", "value"), [("012", "10"), ("-012", "-10"), ("1:30", "90"), ("1:00:00:00", "216000"), ("1:30.5", "90.5")])
def test_a_number_that_yaml_1_1_reads_as_another_is_refused(text: str, value: str) -> None:
    for where in (f"[{text}]", f"{{a: {text}}}", f"{{{text}: a}}"):
        with pytest.raises(ConfigurationError, match=f"{text} would be read as {value}: write {value}, or '{text}' for the text"):
            read_yaml(where, where="here")
    assert read_yaml(f"['{text}', 00:12:00:00, 08, 0x1f, 1_000, 0, 0.5]", where="here") == [text, "00:12:00:00", "08", 31, 1000, 0, 0.5]


@pytest.mark.parametrize(("text", "value"), [("1_000", "1000"), ("0x10", "16"), ("+1", "1"), ("1_000.5", "1000.5"), ("1e-3", "0.001")])
def test_a_key_does_not_silently_become_another_name(text: str, value: str) -> None:
    found = re.escape(f"{text} would be read as {value}: write {value}, or '{text}'")
    with pytest.raises(ConfigurationError, match=f"line 2 .*{found}"):
        read_yaml(f"variants:\n  {text}: {{a: 1}}", where="here")
    assert read_yaml(f"{{'{text}': 1, {value}: 2, -3: 3}}", where="here") == {text: 1, float(value): 2, -3: 3}


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "recipes" / "g2p"
    folder.mkdir(parents=True)
    (folder / "transformer.yaml").write_text("model: {name: a}")
    monkeypatch.setattr(recipe, "recipe_folder", lambda: tmp_path / "recipes")
    return folder / "transformer.yaml"


@pytest.mark.parametrize("name", ["g2p/transformer", "g2p/transformer.yaml"])
def test_a_short_name_finds_a_shipped_recipe(shipped: Path, name: str) -> None:
    assert find_recipe(name) == shipped


def test_an_existing_file_takes_precedence_over_a_short_name(shipped: Path, tmp_path: Path) -> None:
    (tmp_path / "g2p").mkdir()
    (tmp_path / "g2p/transformer.yaml").write_text("model: {name: mine}")
    assert read_recipe("g2p/transformer.yaml") == {"model": {"name": "mine"}}


def test_an_unknown_recipe_gets_a_suggestion_and_the_list(shipped: Path) -> None:
    with pytest.raises(
        ConfigurationError, match=r"no recipe 'g2p/transfomer'.*Did you mean 'g2p/transformer'\?.*Recipes: g2p/transformer\."
    ):
        find_recipe("g2p/transfomer")


def test_a_recipe_must_be_a_mapping_of_text(tmp_path: Path) -> None:
    (tmp_path / "list.yaml").write_text("- 1")
    (tmp_path / "latin.yaml").write_bytes("model: caf\xe9".encode("latin-1"))
    with pytest.raises(ConfigurationError, match=r"list\.yaml must be a mapping"):
        read_recipe("list.yaml")
    with pytest.raises(ConfigurationError, match=r"latin\.yaml is not UTF-8 text \(byte 10\)"):
        read_recipe("latin.yaml")
    (tmp_path / "best.ckpt").touch()
    with pytest.raises(ConfigurationError, match=r"best\.ckpt is a trained model, not a recipe; its recipe is config\.yaml"):
        read_recipe("best.ckpt")


def test_class_paths_become_names_at_every_depth() -> None:
    spec = {
        "class_path": "x.seq2seq",
        "init_args": {"stack": {"class_path": "encoder"}, "files": [{"class_path": "a.b"}], "other": {"k": 1}},
    }
    assert plain(spec) == {"name": "x.seq2seq", "stack": {"name": "encoder"}, "files": [{"name": "a.b"}], "other": {"k": 1}}
    assert plain({"class_path": "attnkit.task.seq2seq.Seq2Seq"}) == {"name": "seq2seq"}


@pytest.mark.parametrize(
    ("base", "over", "merged", "dropped"),
    [
        ({"a": 1, "b": {"c": 2}}, {"b": {"d": 3}}, {"a": 1, "b": {"c": 2, "d": 3}}, 0),
        ({"name": "x", "k": 1}, "x", {"name": "x", "k": 1}, 0),
        ({"name": "x", "k": 1}, {"name": "x", "l": 2}, {"name": "x", "k": 1, "l": 2}, 0),
        ({"name": "x", "k": 1}, {"l": 2}, {"name": "x", "k": 1, "l": 2}, 0),
        ({"name": "x", "k": 1}, "y", "y", 1),
        ({"name": "x", "k": 1}, {"name": "y"}, {"name": "y"}, 1),
        ({"name": "x"}, "y", "y", 0),
        ({"k": 1}, "y", "y", 1),
        ({"k": 1}, {"name": "y"}, {"k": 1, "name": "y"}, 0),
        ("x", {"k": 1}, {"name": "x", "k": 1}, 0),
        ("x", {"name": "y", "k": 1}, {"name": "y", "k": 1}, 0),
        ("x", "y", "y", 0),
        ({"name": "x", "k": 1}, None, None, 1),
        (None, {"k": 1}, {"k": 1}, 0),
        ([1, 2], [3], [3], 0),
    ],
)
def test_merging(base: Any, over: Any, merged: Any, dropped: int) -> None:
    notes: list[str] = []
    assert merge(base, over, dropped=notes) == merged
    assert len(notes) == dropped


def test_merging_modifies_neither_side() -> None:
    base = {"b": {"c": 2}}
    over = {"b": {"d": 3}}
    merge(base, over, dropped=[])
    assert (base, over) == ({"b": {"c": 2}}, {"b": {"d": 3}})


@pytest.mark.parametrize(
    ("base", "over", "merged", "notes"),
    [
        (
            {"validation_fraction": 0.1},
            {"validation": "v"},
            {"validation": "v"},
            ["data.corpus: validation replaces validation_fraction=0.1"],
        ),
        ({"test": "t"}, {"test_fraction": 0.1}, {"test_fraction": 0.1}, ["data.corpus: test_fraction replaces test=t"]),
        ({"test": "t"}, {"test_fraction": 0.0}, {"test": "t", "test_fraction": 0.0}, []),
        ({"validation_fraction": 0.0}, {"validation": "v"}, {"validation": "v", "validation_fraction": 0.0}, []),
        (
            {"test": "t"},
            {"test": "u", "test_fraction": 0.1},  # both in one layer are the user's mistake
            {"test": "u", "test_fraction": 0.1},
            [],
        ),
    ],
)
@pytest.mark.parametrize("name", ["files", "mine/train.tsv", "mine.Corpus"])
def test_explicit_rows_replace_a_fraction_set_in_a_lower_layer(base: Any, over: Any, merged: Any, notes: list[str], name: str) -> None:
    said: list[str] = []
    whole = merge({"name": name, **base}, over, path="data.corpus", dropped=said)
    if name == "mine.Corpus":  # a user's own corpus may take both
        assert (whole, said) == ({"name": name, **base, **over}, [])
    else:
        assert (whole, said) == ({"name": name, **merged}, notes)


def test_flags_are_parsed_in_any_order_and_both_spellings() -> None:
    request = read_arguments(
        [
            "--model.stack.attention.hidden_dim",
            "32",
            "--trainer.max_epochs=3",
            "--model.stack.attention=additive",
            "--config",
            "a",
            "-c",
            "b.yaml",
            "--model",
            "seq2seq",
            "--data.path=x=y",
            "--ckpt_path",
            "last.ckpt",
            "--print_config",
            "--seed_everything",
            "1",
        ]
    )
    assert request.flags == {
        "model": {"name": "seq2seq", "stack": {"attention": {"name": "additive", "hidden_dim": "32"}}},
        "data": {"path": "x=y"},
    }
    assert request.recipes == ["a", "b.yaml"]
    assert request.others == ["--trainer.max_epochs=3", "--seed_everything", "1"]
    assert request.ckpt_path == "last.ckpt"
    assert request.print_config


@pytest.mark.parametrize(
    "flags",
    [
        ["--model.stack.attention", "{name: additive, hidden_dim: 32}"],
        ["--model.stack.attention", '{"class_path": "attnkit.attention.additive", "init_args": {"hidden_dim": 32}}'],
        ["--model.stack.attention", '{"class_path": "attnkit.attention.additive.Additive", "init_args": {"hidden_dim": 32}}'],
        ["--model.stack.attention.class_path", "attnkit.attention.additive.Additive", "--model.stack.attention.hidden_dim", "32"],
        ["--model.stack.attention.name", "additive", "--model.stack.attention", "{hidden_dim: 32}"],
        ["--model.stack.attention.class_path", "additive", "--model.init_args.stack.init_args.attention.init_args.hidden_dim", "32"],
    ],
)
def test_every_spelling_of_a_component_is_equivalent(flags: list[str]) -> None:
    attention = read_arguments(flags).flags["model"]["stack"]["attention"]
    assert {key: str(value) for key, value in attention.items()} == {"name": "additive", "hidden_dim": "32"}


@pytest.mark.parametrize("flags", [["--model.stack.attention"], ["--config"], ["--data.size", "--print_config"]])
def test_a_flag_without_its_value_is_named(flags: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=f"{flags[0]} needs a value"):
        read_arguments(flags)


def test_a_negative_number_is_a_value() -> None:
    assert read_arguments(["--data.size", "-1"]).flags == {"data": {"size": "-1"}}


def test_a_class_path_merges_like_the_components_name() -> None:
    base = {"name": "additive", "hidden_dim": 4}
    assert merge(base, "attnkit.attention.additive.Additive", dropped=[]) == base
    notes: list[str] = []
    assert merge(base, {"name": "my_pkg.additive.MyOwn", "k": 1}, dropped=notes) == {"name": "my_pkg.additive.MyOwn", "k": 1}
    assert notes == [": my_pkg.additive.MyOwn replaces additive, so hidden_dim=4 no longer applies"]


def test_a_flag_adds_the_name_to_a_nameless_model_or_data() -> None:
    recipe = {"model": {"d_model": 32}, "data": {"batch_size": 16}, "trainer": {}}
    notes: list[str] = []
    merged = merge(recipe, {"model": "my_project.MyModule", "data": "my_project.MyData"}, dropped=notes)
    assert merged["model"] == {"name": "my_project.MyModule", "d_model": 32}
    assert merged["data"] == {"name": "my_project.MyData", "batch_size": 16}
    assert notes == []
    assert merge({"model": {"name": "seq2seq", "max_length": 5}}, {"model": "causal_lm"}, dropped=notes) == {"model": "causal_lm"}
    assert notes == ["model: causal_lm replaces seq2seq, so max_length=5 no longer applies"]


def test_a_replacement_stack_keeps_the_arguments_it_shares() -> None:
    base = {"name": "encoder_decoder", "d_model": 8, "num_heads": 2, "norm": "rms_norm", "attention": {"name": "additive", "hidden_dim": 4}}
    notes: list[str] = []
    merged = merge({"stack": base}, {"stack": "recurrent_encoder_decoder"}, dropped=notes)
    assert merged == {"stack": {"name": "recurrent_encoder_decoder", "d_model": 8, "num_heads": 2, "attention": base["attention"]}}
    assert notes == ["stack: recurrent_encoder_decoder replaces encoder_decoder, so norm=rms_norm no longer applies"]
    over = {"name": "recurrent_encoder_decoder", "d_model": 16, "cell": "gru", "attention": "cosine"}
    assert merge(base, over, dropped=[]) == {**over, "num_heads": 2}


@pytest.mark.parametrize("location", ["mine/a.tsv", "hub:a/b"])
def test_a_corpus_named_by_its_location_merges_with_files_in_that_location(location: str) -> None:
    name, place = corpora.split(location)
    saved = {"corpus": {"name": name, **place, "max_rows": 30}}
    notes: list[str] = []
    for named in (location, {"name": location}):
        assert merge(saved, {"corpus": named}, dropped=notes) == saved
    assert merge(saved, {"corpus": {"name": location, "max_rows": 9}}, dropped=notes)["corpus"]["max_rows"] == 9
    assert notes == []
    assert merge(saved, {"corpus": "other.tsv"}, dropped=notes) == {"corpus": "other.tsv"}
    assert len(notes) == 1


@pytest.mark.parametrize("over", [["mine.txt"], {"name": ["mine.txt"]}])
def test_a_spec_that_is_no_name_is_kept_for_its_own_error(over: Any) -> None:
    assert merge({"corpus": {"name": "files", "train": "a.txt"}}, {"corpus": over}, dropped=[]) == {"corpus": over}
