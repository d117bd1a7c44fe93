"""Every kind of recipe is timed by `attnkit bench`, without its data, and flags that do not apply are refused."""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnkit.cli import bench_models
from attnkit.cli.bench import _lengths
from attnkit.cli.bench_models import timed_model
from attnkit.profile import bench
from attnkit.profile.contestants import PlainModel, TrainedTask, common_kind, contestant
from attnkit.recipe import read_recipe, recipe_names
from tests.profile.test_bench import ticks

RECIPES = {
    "causal_lm": ("synthetic/decoder", []),
    "classification": ("classification/bert_finetuned", ["--classes", 3]),
    "masked_lm": ("masked_lm/bert", []),
    "question_answering": ("questions/kjv", []),
    "seq2seq": ("speech/words", []),
    "tagging": ("tagging/kjv", []),
    "word_vectors": ("word_vectors/skip_gram", []),
}
SHORT = ["--batch", 2, "--rounds", 1]
TEXT = [*SHORT, "--lengths", 8, "--vocab", 30]
IMAGES = ["--shape", 1, 28, 28]
STACK = {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "product_rate", lambda *_, **__: 1.0)
    monkeypatch.setattr(bench, "NEW_TOKENS", 2)
    monkeypatch.setattr(bench, "timed", ticks)


def rows_of(outcome: Any, file: Path) -> list[dict[str, Any]]:
    assert outcome.status == 0, outcome.err
    rows: list[dict[str, Any]] = json.loads(file.read_text())["rows"]
    return rows


def test_every_task_of_a_recipe_is_among_those_timed_here() -> None:
    assert {read_recipe(name)["model"]["name"] for name in recipe_names()} == {*RECIPES}


@pytest.mark.parametrize("task", RECIPES)
def test_a_recipe_is_timed_without_its_data(attnkit: Any, tmp_path: Path, task: str) -> None:
    recipe, flags = RECIPES[task]
    outcome = attnkit("bench", recipe, "--work", "step", "forward", *TEXT, *flags, "--json", tmp_path / "rows.json")
    rows = rows_of(outcome, tmp_path / "rows.json")
    assert [row["work"] for row in rows] == (["step", "forward"] if task != "word_vectors" else ["step"])
    assert ("not timed, because the model cannot do it: forward of" in outcome.out) == (task == "word_vectors")
    for row in rows:
        assert row["tokens_per_second"] == pytest.approx(8 * row["rows_per_second"])
        assert row["utilisation"] > 0


@pytest.mark.parametrize("recipe", ["image/vit", "image/captions"])
def test_a_recipe_of_images_is_timed_in_rows(attnkit: Any, tmp_path: Path, recipe: str) -> None:
    own = SHORT if recipe == "image/vit" else TEXT
    rows = rows_of(attnkit("bench", recipe, *own, *IMAGES, "--json", tmp_path / "rows.json"), tmp_path / "rows.json")
    without = {row["work"] for row in rows if row["tokens_per_second"] is None}
    assert without == ({"step", "forward"} if recipe == "image/vit" else {"prefill"})
    assert {row["length"] for row in rows} == ({None} if recipe == "image/vit" else {8})
    assert all(row["rows_per_second"] * row["milliseconds"] == pytest.approx(2000) for row in rows)


def test_the_shape_of_images_is_that_of_the_data(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", images=np.zeros((4, 6, 8), np.uint8), labels=np.arange(4) % 2)
    model = {"name": "classification", "stack": STACK, "embedding": {"name": "patch", "patch_size": 2}}
    data = {"name": "labelled_images", "corpus": {"name": "files", "train": str(tmp_path / "a.npz")}}
    (tmp_path / "own.yaml").write_text(json.dumps({"model": model, "data": data}))
    task: Any = timed_model(str(tmp_path / "own.yaml"), vocab=30, classes=5, shape=None)
    assert task.model.spec["image_shape"] == [1, 6, 8]
    assert task.model.spec["num_classes"] == 5


def test_a_recipe_whose_images_are_missing_asks_for_their_shape(attnkit: Any, tmp_path: Path) -> None:
    model = {"name": "classification", "stack": STACK, "embedding": {"name": "patch", "patch_size": 2}}
    data = {"name": "labelled_images", "corpus": {"name": "files", "train": str(tmp_path / "none.npz")}}
    (tmp_path / "own.yaml").write_text(json.dumps({"model": model, "data": data}))
    outcome = attnkit("bench", tmp_path / "own.yaml")
    assert outcome.status == 2
    assert "reads images, whose size its data tell; or give it, as in --shape 1 28 28" in outcome.err


def test_activation_checkpointing_and_the_start_of_a_recipe_are_those_of_its_training(attnkit: Any, tmp_path: Path) -> None:
    model = {"name": "classification", "stack": STACK, "activation_checkpointing": "layer", "init_from": "runs/none.ckpt"}
    (tmp_path / "own.yaml").write_text(json.dumps({"model": model}))
    outcome = attnkit("bench", tmp_path / "own.yaml", "--work", "step", *TEXT)
    assert "note: the model is built from the recipe alone. model.init_from: no checkpoint at runs/none.ckpt" in outcome.out
    task: Any = timed_model(str(tmp_path / "own.yaml"), vocab=30, classes=2, shape=None)
    one, batch = contestant(task, is_compiled=False), common_kind({"": task}).batch(30, 2, 5)
    passes: list[int] = []
    task.model.stack.encoder.layers[0].feed_forward.register_forward_pre_hook(lambda *_: passes.append(1))
    one.loss(batch).backward()
    assert len(passes) == 2
    del model["stack"]
    (tmp_path / "own.yaml").write_text(json.dumps({"model": model}))
    assert "model.init_from: no checkpoint at runs/none.ckpt" in attnkit("bench", tmp_path / "own.yaml").err


def test_a_recipe_is_timed_like_the_peers_or_specs_next_to_it(attnkit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kinds: list[type] = []
    monkeypatch.setattr(bench, "contestant", lambda model, **options: kinds.append(type(one := contestant(model, **options))) or one)
    stack = {**STACK, "name": "encoder_decoder"}
    own, spec = tmp_path / "own.yaml", json.dumps({"stack": stack, "tie": "output"})
    own.write_text(json.dumps({"model": {"name": "seq2seq", "stack": stack, "activation_checkpointing": "layer", "compile": True}}))
    for others, expected in (([], TrainedTask), (["--peers", "torch"], PlainModel), ([spec], PlainModel)):
        outcome = attnkit("bench", own, *others, *TEXT, "--work", "step", "--json", tmp_path / "rows.json")
        assert outcome.status == 0, outcome.err
        assert {*kinds} == {expected}
        assert ("note: recipes are timed like specs and peers" in outcome.out) == bool(others)
        assert json.loads((tmp_path / "rows.json").read_text())["as_trained"] == (not others)
        kinds.clear()
    whole: Any = timed_model(str(own), vocab=30, classes=2, shape=None, recomputes=False)
    assert whole.config.activation_checkpointing == "none"
    assert not whole.is_compiled  # `--compile` says whether a model is compiled, and the first line of the output repeats it


def test_targets_are_tokens_that_the_head_does_not_exclude(attnkit: Any, tmp_path: Path) -> None:
    model = {"name": "causal_lm", "stack": {**STACK, "name": "decoder"}, "head": {"name": "linear", "excluded": [3, 29]}}
    (tmp_path / "own.yaml").write_text(json.dumps({"model": model}))
    assert attnkit("bench", tmp_path / "own.yaml", *SHORT, "--lengths", 99, "--vocab", 30, "--work", "step").status == 0


def test_the_start_of_a_recipe_gives_its_stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = {"hyper_parameters": {"stack": STACK, "embedding": {"name": "token", "scale": False}}, "attnkit": {"task": "masked_lm"}}
    monkeypatch.setattr(bench_models, "read_init_from", lambda path: start)
    (tmp_path / "own.yaml").write_text(json.dumps({"model": {"name": "classification", "init_from": "a.ckpt", "stack": {"num_heads": 4}}}))
    task: Any = timed_model(str(tmp_path / "own.yaml"), vocab=30, classes=2, shape=None)
    assert (task.model.spec["d_model"], task.model.spec["num_heads"]) == (16, 4)
    assert task.model.spec["embedding"]["scale"] is False


def test_lengths_end_where_positions_do(attnkit: Any, tmp_path: Path) -> None:
    file = tmp_path / "rows.json"
    stack = "{stack: decoder, d_model: 16, num_layers: 1, num_heads: 2, position: {name: learned, max_length: 130}}"
    sizes = [*SHORT, "--vocab", 30, "--json", file]
    assert [row["length"] for row in rows_of(attnkit("bench", stack, *sizes, "--work", "forward"), file)] == [128, 130]
    assert [row["length"] for row in rows_of(attnkit("bench", stack, *sizes, "--work", "decode"), file)] == [128]
    for work, length, note in (("forward", 131, ""), ("decode", 129, ", and decode adds 2 tokens")):
        outcome = attnkit("bench", stack, *sizes, "--work", work, "--lengths", length)
        assert outcome.status == 2
        assert outcome.err.strip().endswith(f"end at 130{note}")


def test_positions_of_a_source_limit_its_tokens_and_those_of_a_target_also_what_is_decoded(attnkit: Any) -> None:
    pair: dict[str, Any] = {"stack": {**STACK, "name": "encoder_decoder", "position": {"name": "learned", "max_length": 2}}}
    outcome = attnkit("bench", json.dumps(pair), *SHORT, "--lengths", 2, "--vocab", 30)
    assert outcome.status == 2
    assert outcome.err.strip().endswith("end at 2, and decode writes 3 tokens")
    pair["stack"] |= {"position": "none", "encoder": {**STACK, "position": {"name": "learned", "max_length": 20}}}
    images = {"src_shape": [1, 28, 28], "src_embedding": {"name": "patch", "patch_size": 7}}
    sound = {"src_shape": [40], "src_embedding": {"name": "frames", "stacking": 2}}
    for source, lengths in (({}, [20]), (images, [128, 512]), (sound, [40])):
        model = timed_model(json.dumps(pair | source), vocab=30, classes=2, shape=None)
        assert _lengths(Namespace(lengths=None, work=["step"]), {"": model}) == lengths


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["image/vit", *IMAGES, "--lengths", 8], "--lengths does not apply to image/vit, which maps images of 1 x 28 x 28 -> class (2)"),
        (["image/vit", *IMAGES, "--vocab", 30], "--vocab does not apply to image/vit"),
        (["image/vit", *IMAGES, "--svg", "a.svg"], "--svg does not apply to image/vit"),
        (["tagging/kjv", *IMAGES], "--shape does not apply to tagging/kjv, which maps tokens -> class of each token (2)"),
        (["language_model/tiny", "--classes", 3], "--classes does not apply to language_model/tiny, which maps tokens -> tokens"),
        (
            ["speech/words", "--peers", "torch"],
            "--peers does not apply to speech/words, which maps frames of 40 features and target tokens",
        ),
        (["tagging/kjv", "--peers", "torch"], "--peers does not apply to tagging/kjv"),
        (
            ["language_model/tiny", "masked_lm/bert"],
            "but masked_lm/bert maps tokens -> hidden tokens (0.25): bench compares models of equal",
        ),
        (["masked_lm/bert", *TEXT, "--work", "decode"], "a model without a decoder does not generate"),
        (["word_vectors/skip_gram", *TEXT, "--work", "forward"], "word vectors have no forward pass apart from their loss"),
        (["tagging/kjv", "--classes", 1], "--classes must be at least 2"),
        (["image/vit", "--shape", 28], "reads image of 3 axes in each example"),
        (["image/captions", *IMAGES, "--work", "prefill", "--svg", "a.svg"], "--svg does not apply to image/captions"),
        (["{stack: {d_model: 4}}"], "has no name; add one of: decoder, encoder"),
        (
            ["{stack: encoder, d_model: 16, num_layers: 1, num_heads: 2, embedding: frames, image_shape: [40], num_classes: 3}"],
            "bench times frames of sound only as the source of target tokens",
        ),
    ],
)
def test_what_does_not_apply_is_refused(attnkit: Any, arguments: list[Any], message: str) -> None:
    outcome = attnkit("bench", *arguments)
    assert outcome.status == 2
    assert message in outcome.err


def test_a_compiled_task_is_the_same_task(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda model: torch._dynamo.eval_frame.OptimizedModule(model, torch._dynamo.disable()))
    task: Any = timed_model("synthetic/decoder", vocab=30, classes=2, shape=None)
    model, batch = task.model, common_kind({"": task}).batch(30, 2, 5)
    wanted = contestant(task, is_compiled=False).loss(batch)
    one = contestant(task, is_compiled=True)
    assert task.model is not model
    assert one.model is model
    assert torch.equal(one.loss(batch), wanted)
    bench._flops(one, "step", batch)  # without torch's warning of hooks
