"""No hostile checkpoint runs code, writes elsewhere, takes long or much memory, or ends in a traceback, whatever reads it."""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from attnkit.checkpoint import AtomicCheckpointIO, export, load_checkpoint, load_exported
from attnkit.cli.main import main
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from attnkit.train.runs import newest_checkpoint
from tests.cli.conftest import TINY
from tests.hostile.attacks.exported import EXPORTED
from tests.hostile.attacks.files import FILES
from tests.hostile.attacks.folders import FOLDERS
from tests.hostile.attacks.recipes import EVIL_MODULE, RECIPES, imports_a_callback
from tests.hostile.attacks.states import STATES
from tests.hostile.limits import Outcome, survive

SECONDS, MEGABYTES = 2.0, 500
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),  # here one process writes sharded checkpoints
]
QUIET = ["--trainer.max_epochs", "2", "--trainer.accelerator", "cpu"]


def write_recipe(folder: Path) -> str:
    """Write the recipe of a very small model, and its data."""
    (folder / "words.tsv").write_text("source\ttarget\nabc\tABC\nba\tBA\ncab\tCAB\n", encoding="utf-8")
    recipe = yaml.safe_dump(TINY).replace("words.tsv", str(folder / "words.tsv"))
    (folder / "tiny.yaml").write_text(recipe, encoding="utf-8")
    return str(folder / "tiny.yaml")


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A good checkpoint of a very small model, after one use of each loader, which imports what they need."""
    folder = tmp_path_factory.mktemp("good")
    recipe = write_recipe(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        torch.set_num_threads(1)
        assert main(["fit", "--config", recipe]) == 0
        path = "runs/tiny/version_0/checkpoints/last.ckpt"
        for words in (
            ["generate", path, "abc"],
            ["attention", path, "--text", "abc", "--out", "map.html"],
            ["predict", "--ckpt_path", path],
        ):
            assert main(words) == 0
        export(path, "good.safetensors")
        load_exported("good.safetensors")
        return dict(torch.load(path, weights_only=True))


@pytest.fixture
def tiny_recipe(tmp_path: Path) -> str:
    return write_recipe(tmp_path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a hostile file, with a module that creates the canary when it is imported."""
    (tmp_path / "evil.py").write_text(EVIL_MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def outcomes(path: Path, loaders: dict[str, Callable[[], object]]) -> tuple[Outcome, list[dict[str, Any]]]:
    """Call each loader in one child, and return what became of each."""

    def run() -> str:
        results = []
        for name, load in loaders.items():
            start = time.process_time()
            try:
                value: Any = load()
            except ConfigurationError as error:
                value = f"refused: {error}"
            results.append(
                {"loader": name, "value": value if isinstance(value, str | int) else "loaded", "seconds": time.process_time() - start}
            )
        return json.dumps(results)

    outcome = survive(run, seconds=SECONDS * len(loaders), megabytes=MEGABYTES)
    assert outcome.signal is None, outcome
    assert isinstance(outcome.value, str), outcome
    return outcome, json.loads(outcome.value)


def assert_refused(path: Path, loaders: dict[str, Callable[[], object]]) -> None:
    before = sorted({*os.listdir(path.parent), "labels.yaml", "labels.tsv"})
    outcome, results = outcomes(path, loaders)
    assert not outcome.ran_code
    assert {written.partition("/")[0] for written in outcome.written} <= {
        "runs"
    }  # a fit makes its folder before it reads all of a checkpoint
    assert outcome.megabytes < MEGABYTES
    assert "Traceback" not in outcome.output
    assert sorted({*os.listdir(path.parent), "labels.yaml", "labels.tsv"} - {"__pycache__"}) == before
    for result in results:
        assert result["value"] == 2 or str(result["value"]).startswith("refused: "), result
        assert result["seconds"] < SECONDS, result
        assert len(str(result["value"])) < 2000, result


LABELS = {
    "model": {"name": "classification"},
    "data": {"name": "labelled_text", **dict.fromkeys(("train", "validation"), "labels.tsv")},
    "trainer": TINY["trainer"],
}
"""A recipe whose model starts from a checkpoint."""

PIECES = ("calls_a_function_in_a_part", "calls_a_function_for_a_tensor")
"""Sharded checkpoints whose description is sound: their pieces are refused when they are read."""

RESUMED = ("calls_a_function", "has_many_layers", "imports_a_component", "deletes_files", "calls_a_function_in_its_rest", *PIECES)

COMMANDS: dict[str, list[str]] = {
    "generate": ["generate", "{}", "abc"],
    "attention": ["attention", "{}", "--text", "abc", "--out", "map.html"],
    "export": ["export", "{}", "--out", "out.safetensors"],
    "test": ["test", "--ckpt_path", "{}"],
    "predict": ["predict", "--ckpt_path", "{}"],
    "fit": ["fit", "--ckpt_path", "{}", *QUIET],
    "init_from": ["fit", "--config", "{labels}", "--model.init_from", "{}", *QUIET],
}


def commands(path: Path, *names: str) -> dict[str, Callable[[], object]]:
    labels = path.with_name("labels.yaml")
    labels.write_text(yaml.safe_dump(LABELS))
    path.with_name("labels.tsv").write_text("so good\tpraise\nso bad\tblame\n")

    def run(name: str) -> int:
        return main([word.format(path, labels=labels) for word in COMMANDS[name]])

    return {name: partial(run, name) for name in names}


@pytest.mark.parametrize("name", FILES)
def test_files(good: dict[str, Any], folder: Path, name: str) -> None:
    path = folder / "hostile.ckpt"
    FILES[name](good, path)
    read = {"Task.load": lambda: Task.load(path), "load_checkpoint": lambda: Task.load(path) and load_checkpoint(path)}
    assert_refused(path, read | commands(path, *COMMANDS))
    if name not in SOUND_UNTIL_BUILT:
        assert_refused(path, {"AtomicCheckpointIO": lambda: AtomicCheckpointIO().load_checkpoint(path)})


SOUND_UNTIL_BUILT = {
    name
    for name in (*FILES, *FOLDERS)
    if name.startswith(
        (
            "describes",
            "has_many_layers",
            "has_wide",
            "has_a_huge",
            "has_a_broken",
            "imports",
            "names",
            "has_lists",
            "has_a_header",
            "deletes",
        )
    )
}
"""Plain data that is wrong only as a description of a task: what reads plain data alone may return it."""


@pytest.mark.parametrize("name", FOLDERS)
def test_folders(good: dict[str, Any], folder: Path, name: str) -> None:
    path = folder / "hostile.ckpt"
    FOLDERS[name](good, path)
    assert_refused(path, {"Task.load": lambda: Task.load(path)} | commands(path, *COMMANDS))
    if name not in SOUND_UNTIL_BUILT:
        assert_refused(path, {"AtomicCheckpointIO": lambda: AtomicCheckpointIO().load_checkpoint(path)})


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_files(good: dict[str, Any], folder: Path, name: str) -> None:
    path = folder / "hostile.safetensors"
    EXPORTED[name](good, path)
    assert_refused(path, {"load_exported": lambda: load_exported(path)} | commands(path, "generate", "attention"))


@pytest.mark.parametrize("name", STATES)
def test_states_that_cannot_be_resumed_are_rejected(good: dict[str, Any], folder: Path, name: str) -> None:
    path = folder / "hostile.ckpt"
    STATES[name](good, path)
    outcome = survive(commands(path, "fit")["fit"], seconds=60, megabytes=2000)
    assert (outcome.value, outcome.signal) == (2, None), outcome.output
    assert not outcome.ran_code
    assert "Traceback" not in outcome.output
    assert "in the checkpoint" in outcome.output


@pytest.mark.parametrize("name", [*FILES, *FOLDERS])
def test_resuming_sets_a_damaged_checkpoint_aside(good: dict[str, Any], folder: Path, name: str) -> None:
    path = folder / "run" / "checkpoints" / "last.ckpt"
    path.parent.mkdir(parents=True)
    {**FILES, **FOLDERS}[name](good, path)
    outcome = survive(lambda: str(newest_checkpoint(path.parent)), seconds=SECONDS, megabytes=MEGABYTES)
    assert outcome.signal is None, outcome
    assert outcome.value == ("None" if path.with_name("last.ckpt.damaged").exists() else str(path) if outcome.error is None else None)
    assert outcome.error in (None, "MissingComponentError"), outcome
    assert (not outcome.ran_code, outcome.written) == (True, ())
    assert outcome.megabytes < MEGABYTES
    if outcome.value == str(path):
        assert name in (*SOUND_UNTIL_BUILT, *PIECES)


@pytest.mark.parametrize("name", RESUMED)
def test_resuming_a_run_does_no_harm(good: dict[str, Any], folder: Path, tiny_recipe: str, name: str) -> None:
    def resume() -> int:
        path = Path("runs/tiny/version_0/checkpoints/last.ckpt")
        path.parent.mkdir(parents=True)
        {**FILES, **FOLDERS}[name](good, path)
        return main(["fit", "--config", tiny_recipe, "--resume", *QUIET])

    outcome = survive(resume, seconds=60, megabytes=2000)
    assert outcome.value in (0, 2), outcome.output  # a new run, or a message
    assert outcome.signal is None
    assert not outcome.ran_code
    assert "Traceback" not in outcome.output
    assert {written.partition("/")[0] for written in outcome.written} == {"runs"}


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_in_checkpoints(good: dict[str, Any], folder: Path, name: str) -> None:
    path = folder / "hostile.ckpt"
    RECIPES[name](good, path)
    before = sorted(os.listdir(folder))
    outcome = survive(lambda: main([word.format(path) for word in COMMANDS["fit"]]), seconds=60, megabytes=2000)
    assert (outcome.value, outcome.signal) == (2 if name == "imports_data" else 0, None), outcome.output
    assert not outcome.ran_code
    assert "Traceback" not in outcome.output
    assert sorted(name for name in os.listdir(folder) if name != "__pycache__") == before
    assert {written.partition("/")[0] for written in outcome.written} <= {"runs"}
    if name not in ("imports_data", "is_called_upwards"):
        assert "note: not used from the checkpoint's recipe: trainer." in outcome.output
        assert "add --trust" in outcome.output


def test_trust_accepts_the_whole_trainer_section(good: dict[str, Any], folder: Path) -> None:
    path = folder / "hostile.ckpt"
    imports_a_callback(good, path)
    outcome = survive(lambda: main(["fit", "--ckpt_path", str(path), "--trust", *QUIET]), seconds=60, megabytes=2000)
    assert outcome.value == 0, outcome.output
    assert outcome.ran_code  # so the other tests can fail


def test_a_good_checkpoint_resumes_without_a_note(good: dict[str, Any], folder: Path) -> None:
    path = folder / "good.ckpt"
    torch.save(good, path)
    outcome = survive(lambda: main(["fit", "--ckpt_path", str(path), *QUIET]), seconds=60, megabytes=2000)
    assert outcome.value == 0, outcome.output
    assert "not used" not in outcome.output
    assert sys.modules.get("evil") is None
