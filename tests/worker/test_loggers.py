"""Loggers of a recipe in the runs of a study: each run is one record in each, even if it is killed and continues."""

import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnkit.ablation.discard import forget
from attnkit.lightning_internals import read_rows
from attnkit.registry.class_path import find
from attnkit.worker.folder import RECORDS, read_json, status_of, write_json
from attnkit.worker.inspection import Inspector
from attnkit.worker.job import Job
from attnkit.worker.loggers import Records, open_records, with_named_loggers
from attnkit.worker.recorder import Recorder
from attnkit.worker.run import main
from attnkit.worker.warm import shared
from tests.ablation.conftest import SEEDS
from tests.worker.conftest import run

pytestmark = pytest.mark.usefixtures("small_recipe")

RUNS: dict[str, list[dict[str, Any]]] = {}
"""What the stand-in of MLflow has stored, by experiment."""


class CutError(Exception):
    """Ends a training, as a kill would."""


def train(name: str, loggers: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch, *, cut_at: tuple[int, ...] = ()) -> None:
    """Train with loggers, as a study would; it is cut at some steps, and goes on each time."""
    folder = Path(name).absolute()
    layer = {"trainer": {"logger": loggers, "log_every_n_steps": 1, "max_epochs": 3}}
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed([layer])
    write_json(folder / "job.json", {"recipe": recipe, "seeds": SEEDS, "test": False, "name": "baseline seed 0"})
    end = Recorder.on_train_batch_end
    for step in cut_at:

        def cut(self: Recorder, trainer: Any, *others: Any, step: int = step) -> None:
            end(self, trainer, *others)
            if trainer.global_step == step:
                raise CutError

        with monkeypatch.context() as patch:
            patch.setattr(Recorder, "on_train_batch_end", cut)
            main(folder)
        assert status_of(folder)["message"] == "CutError: "
        (folder / "status.json").unlink()
    main(folder)
    assert status_of(folder)["status"] == "ok"


def without_speed(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if not name.startswith("speed/")}


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    return without_speed({tag: [(one.step, one.value) for one in events.Scalars(tag)] for tag in events.Tags()["scalars"]})


@pytest.mark.parametrize("cut_at", [(1,), (8, 9)], ids=["before the first checkpoint", "twice, after one"])
def test_a_resumed_run_has_the_rows_and_events_of_an_uninterrupted_one(cut_at: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cuts in (("whole", ()), ("cut", cut_at)):
        given = [{"class_path": kind, "init_args": {"save_dir": f"{name}_logs/{kind}"}} for kind in ("CSVLogger", "TensorBoardLogger")]
        train(name, given, monkeypatch, cut_at=cuts)
    whole, cut = (Path(f"{name}_logs/CSVLogger/baseline seed 0") for name in ("whole", "cut"))
    assert [folder.name for folder in cut.iterdir()] == ["version_0"]
    rows = [[without_speed(row) for row in read_rows(folder / "version_0/metrics.csv")[1]] for folder in (whole, cut)]
    assert rows[0] == rows[1]
    assert len(rows[0]) > 9
    whole, cut = (Path(f"{name}_logs/TensorBoardLogger/baseline seed 0") for name in ("whole", "cut"))
    assert [folder.name for folder in cut.iterdir()] == ["version_0"]
    assert scalars(whole / "version_0") == scalars(cut / "version_0")
    assert read_json(Path("whole/provenance.json"))["data"] == read_json(Path("cut/provenance.json"))["data"]


def test_a_run_restarted_after_an_error_gets_a_new_record(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = [{"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}}]
    train("run", logger, monkeypatch)
    write_json(Path("run/status.json"), {"status": "failed", "kind": "error", "message": "a mistake in the code"})
    forget(Path("run"))
    train("run", logger, monkeypatch)
    assert sorted(folder.name for folder in Path("logs/baseline seed 0").iterdir()) == ["version_0", "version_1"]


class Client:
    """The part of MLflow's client that runs use; it keeps everything in `RUNS`."""

    def __init__(self, uri: str) -> None:
        self.uri = uri

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=name, lifecycle_stage="active") if name in RUNS else None

    def create_experiment(self, *, name: str, artifact_location: str | None) -> str:
        RUNS[name] = []
        return name

    def create_run(self, *, experiment_id: str, tags: dict[str, str]) -> Any:
        run: dict[str, Any] = {"id": f"{experiment_id}-{len(RUNS[experiment_id])}", "status": ["RUNNING"], **tags}
        run |= {"metrics": defaultdict(list), "params": {}}
        RUNS[experiment_id].append(run)
        return self.get_run(run["id"])

    def _run(self, run_id: str) -> dict[str, Any]:
        [run] = [run for runs in RUNS.values() for run in runs if run["id"] == run_id]
        return run

    def get_run(self, run_id: str) -> Any:
        info = SimpleNamespace(run_id=run_id, experiment_id=run_id.rpartition("-")[0])
        return SimpleNamespace(info=info, data=SimpleNamespace(metrics={k: v[-1].value for k, v in self._run(run_id)["metrics"].items()}))

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return list(self._run(run_id)["metrics"][key])

    def log_batch(self, *, run_id: str, metrics: Any = (), params: Any = ()) -> None:
        for metric in metrics:
            self._run(run_id)["metrics"][metric.key].append(metric)
        for param in params:
            assert self._run(run_id)["params"].setdefault(param.key, param.value) == param.value, "MLflow refuses another value"

    def update_run(self, run_id: str, status: str) -> None:
        self._run(run_id)["status"].append(status)

    set_terminated = update_run


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in for MLflow, which need not be installed."""
    parts = {
        "mlflow": {"set_tracking_uri": lambda uri: None},
        "mlflow.tracking": {"MlflowClient": Client, "context": SimpleNamespace()},
        "mlflow.entities": {"Metric": SimpleNamespace, "Param": SimpleNamespace},
        "mlflow.utils": {},
        "mlflow.utils.mlflow_tags": {"MLFLOW_RUN_NAME": "name"},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("lightning.pytorch.loggers.mlflow._MLFLOW_AVAILABLE", True)
    RUNS.clear()


@pytest.mark.usefixtures("mlflow")
@pytest.mark.parametrize("prefix", ["", "ours"])
def test_a_resumed_run_is_one_mlflow_run_with_each_value_once(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cuts in (("whole", ()), ("cut", (1, 8))):
        given = {"class_path": "MLFlowLogger", "init_args": {"experiment_name": name, "tracking_uri": "nowhere", "prefix": prefix}}
        train(name, [given], monkeypatch, cut_at=cuts)
    ([whole], [cut]) = RUNS["whole"], RUNS["cut"]
    assert cut["name"] == "baseline seed 0"
    assert cut["params"] == whole["params"]
    assert cut["status"] == ["RUNNING", "FAILED", "RUNNING", "FAILED", "RUNNING", "FINISHED"]
    one, other = (
        {key: [(m.step, m.value) for m in found] for key, found in run["metrics"].items() if "speed/" not in key} for run in (whole, cut)
    )
    assert one == other
    assert any(key.startswith(prefix) for key in one)
    assert read_json(Path("cut") / RECORDS)["names"] == [cut["id"]]


def test_a_resumed_run_keeps_its_wandb_id_and_other_runs_differ() -> None:
    recipe = {"trainer": {"logger": {"class_path": "WandbLogger", "init_args": {"offline": True}}}}
    records = Records()

    def id_of(records: Records, **arguments: Any) -> Any:
        given = {"trainer": {"logger": {"class_path": "WandbLogger", "init_args": arguments}}} if arguments else recipe
        [logger] = with_named_loggers(given, "baseline seed 0", Path("runs/a1b2"), records)["trainer"]["logger"]
        return logger["init_args"].get("id")

    assert id_of(records) == id_of(records) == f"a1b2-{records.token[:8]}"
    assert id_of(Records()) != id_of(records), "the same run elsewhere, as `reproduce` makes it"
    assert id_of(Records(token=records.token, names=("kept",))) == "kept"
    assert id_of(records, id="mine") == "mine"
    assert id_of(records, version="mine") is None


def test_a_resumed_run_logs_each_value_to_wandb_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "wandb.sdk", "wandb.sdk.lib", "wandb.wandb_run"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(RunDisabled=object, Run=object))
    monkeypatch.setattr("lightning.pytorch.loggers.wandb._WANDB_AVAILABLE", True)
    found: list[dict[str, Any]] = []
    recipe = {"trainer": {"logger": {"class_path": "WandbLogger", "init_args": {"offline": True, "prefix": "ours"}}}}

    def log(steps: Sequence[int], identity: str) -> None:
        [spec] = with_named_loggers(recipe, "baseline seed 0", tmp_path, Records(names=(identity,)))["trainer"]["logger"]
        logger = find(spec["class_path"])(**spec["init_args"], experiment=SimpleNamespace(id=identity, log=found.append))
        open_records([logger], tmp_path, checkpoint=None)
        for step in steps:
            logger.log_metrics({"train/loss": float(step)}, step)
            logger.log_metrics({"val/loss": float(step)}, step)

    log([1, 2, 3], "a")
    found.pop()  # killed before this one was written
    (tmp_path / "wandb-0.json").write_text('{"id": "a", "steps": {"train/loss": 3, "val/loss": 2}}')
    log([2, 3, 4], "a")
    assert [(next(iter(one)), one["trainer/global_step"]) for one in found] == [
        (f"ours-{part}/loss", step) for step in (1, 2, 3, 4) for part in ("train", "val")
    ]
    log([1], "b")
    assert len(found) == 10, "another record starts over"


def test_a_custom_logger_gets_only_its_name() -> None:
    Path("own_csv.py").write_text("from lightning.pytorch.loggers import CSVLogger\nclass Own(CSVLogger):\n    pass\n")
    sys.path.insert(0, str(Path.cwd()))
    try:
        recipe = {"trainer": {"logger": {"class_path": "own_csv.Own", "init_args": {"save_dir": "logs"}}}}
        [logger] = with_named_loggers(recipe, "baseline seed 0", Path("a1b2"), Records(names=(0,)))["trainer"]["logger"]
    finally:
        sys.path.remove(str(Path.cwd()))
    assert logger == {"class_path": "own_csv.Own", "init_args": {"save_dir": "logs", "name": "baseline seed 0"}}


def test_a_recipes_logger_uses_the_run_name_and_leaves_checkpoints_in_place() -> None:
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


def test_simultaneous_runs_create_their_loggers_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    job = with_logger("Exclusive")
    folders = [Path("runs", name).absolute() for name in ("one", "other")]
    for folder in folders:
        write_json(folder / "job.json", job)
    with ThreadPoolExecutor(2) as pool:
        codes = list(pool.map(lambda folder: Job(folder=folder, directory=Path.cwd()).carry_out(None, shared()), folders))
    assert codes == [0, 0], [(folder / "stderr.txt").read_text() for folder in folders]
    assert {folder.name for folder in Path("runs").iterdir()} == {"one", "other", ".loggers"}


def test_a_failing_logger_is_reported_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path.cwd())
    write_json(Path("one/job.json"), with_logger("Refusing"))
    main(Path("one").absolute())
    assert status_of(Path("one"))["message"] == "ConfigurationError: trainer: no server answers"
    assert status_of(Path("one"))["kind"] == "configuration"
