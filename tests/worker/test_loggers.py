"""Loggers of a recipe in the runs of a study."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit.worker.folder import read_json, status_of, write_json
from attnkit.worker.inspection import Inspector
from attnkit.worker.job import Job
from attnkit.worker.run import main
from tests.ablation.conftest import SEEDS
from tests.worker.conftest import run

pytestmark = pytest.mark.usefixtures("small_recipe")


def test_a_logger_of_the_recipe_logs_under_the_name_of_the_run_and_checkpoints_stay_in_its_folder() -> None:
    plain = run("plain")
    given = [{"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}}, {"class_path": "lightning.pytorch.loggers.CSVLogger"}]
    logged = run("logged", {"trainer": {"logger": given, "log_every_n_steps": 1}})
    assert logged["metrics"] == plain["metrics"]
    for file in ("logs/logged/version_0/metrics.csv", "logged/logged/version_0/metrics.csv"):
        assert "val/loss" in Path(file).read_text().splitlines()[0]
        options = yaml.unsafe_load(Path(file).with_name("hparams.yaml").read_text())
        assert options["seeds"] == SEEDS
        assert options["model"]["stack"]["d_model"] == 8
    assert read_json(Path("logged/provenance.json"))["data"] == read_json(Path("plain/provenance.json"))["data"]
    assert {file.name for file in Path("logged/checkpoints").iterdir()} == {file.name for file in Path("plain/checkpoints").iterdir()}
    assert list(Path("logs").rglob("*.ckpt")) == []


EXCLUSIVE = """
import time
from pathlib import Path
from lightning.pytorch.loggers import CSVLogger

class Exclusive(CSVLogger):
    def __init__(self, save_dir: str) -> None:
        super().__init__(save_dir)
        self.existed = Path("data base").exists()

    @property
    def experiment(self):
        if not self.existed:
            time.sleep(1)
            with open("data base", "x"):  # an error if there is one now
                self.existed = True
        return super().experiment

class Refusing(CSVLogger):
    def __init__(self, save_dir: str) -> None:
        raise ValueError("no server answers")
"""


def with_logger(name: str) -> dict[str, Any]:
    Path("own_loggers.py").write_text(EXCLUSIVE)
    given = {"class_path": f"own_loggers.{name}", "init_args": {"save_dir": "logs"}}
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed([{"imports": ["own_loggers"]}, {"trainer": {"logger": given}}])
    return {"recipe": recipe, "seeds": SEEDS, "test": False}


def test_runs_that_begin_at_once_make_their_loggers_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    job = with_logger("Exclusive")
    folders = [Path("runs", name).absolute() for name in ("one", "other")]
    for folder in folders:
        write_json(folder / "job.json", job)
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda folder: Job(folder=folder, directory=Path.cwd()).carry_out(), folders))
    assert codes == [0, 0], [(folder / "stderr.txt").read_text() for folder in folders]
    assert {folder.name for folder in Path("runs").iterdir()} == {"one", "other", ".loggers"}


def test_a_logger_that_refuses_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    write_json(Path("one/job.json"), with_logger("Refusing"))
    main(Path("one").absolute())
    assert status_of(Path("one"))["message"] == "ConfigurationError: trainer: no server answers"
    assert status_of(Path("one"))["kind"] == "configuration"
