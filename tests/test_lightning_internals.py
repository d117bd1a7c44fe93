"""Each private part of Lightning that attnkit needs is as attnkit expects. A failure here means that an upgrade has changed it."""

import inspect
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.loggers.csv_logs import ExperimentWriter
from lightning.pytorch.plugins import MixedPrecision
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.strategies.launchers import subprocess_script
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import Tensor, nn
from torch.utils.data import DataLoader

from attnkit.lightning_internals import (
    METRICS,
    RunLogger,
    averaged,
    averaged_steps,
    batches_done,
    clips_what_it_sees,
    disable_requeue,
    in_training_step,
    is_accumulating,
    is_resuming,
    log_step,
    normalise_progress,
    observing_processes,
    read_rows,
    requeued_checkpoint,
    restart_epoch,
    set_data_parallel_size,
    trainer_of,
    validates_next,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
]
BATCHES = 4


class Line(LightningModule):
    """A linear map that notes which batches it is trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)
        self.seen: list[float] = []

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        self.seen.append(float(batch))
        return self.layer(batch).sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.fixture
def fit(tmp_path: Path) -> Callable[..., tuple[Trainer, Line]]:
    def run(*callbacks: Callback, ckpt_path: Path | None = None, val: bool = False, **settings: Any) -> tuple[Trainer, Line]:
        options: dict[str, Any] = {"max_epochs": 2, "logger": False, "enable_checkpointing": False, **settings}
        module = Line()
        trainer = Trainer(
            accelerator="cpu", callbacks=list(callbacks), enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
            num_sanity_val_steps=0, **options,
        )  # fmt: skip
        batches = DataLoader(torch.arange(float(BATCHES)).view(-1, 1))
        trainer.fit(module, batches, batches if val else None, ckpt_path=ckpt_path, weights_only=True)
        return trainer, module

    return run


class Save(Callback):
    """Saves a checkpoint in a hook, after `steps` steps."""

    def __init__(self, hook: str, steps: int, path: Path) -> None:
        self.steps, self.path = steps, path
        self.found: list[Any] = []
        setattr(self, hook, self.save)

    def save(self, trainer: Trainer, *_: Any) -> None:
        if trainer.global_step == self.steps and not self.path.exists():
            trainer.save_checkpoint(self.path)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        self.found.append(normalise_progress(checkpoint, trainer))


@pytest.mark.parametrize(
    ("hook", "steps", "progress"),
    [
        ("on_train_batch_start", 2, (0, 2, False, True)),
        ("on_train_batch_end", 2, (0, 2, False, False)),
        ("on_validation_end", 2, (0, 2, False, False)),
        ("on_train_epoch_end", 4, (1, 0, False, False)),
        ("on_train_epoch_start", 4, (1, 0, False, False)),
    ],
)
def test_a_settled_checkpoint_records_its_progress_and_resumes_there(
    fit: Any, tmp_path: Path, hook: str, steps: int, progress: tuple[int, int, bool, bool]
) -> None:
    save = Save(hook, steps, tmp_path / "x.ckpt")
    fit(save, val=True, val_check_interval=2)
    assert save.found[0] == progress


def test_the_saved_loop_contains_the_settled_counters(fit: Any, tmp_path: Path) -> None:
    counts = {"ready", "started", "processed", "completed"}
    found: dict[str, Any] = {}

    class Look(Callback):
        def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
            found.update(checkpoint["loops"]["fit_loop"])

    fit(Look(), Save("on_train_batch_start", 1, tmp_path / "x.ckpt"))
    for name in ("epoch_progress", "epoch_loop.batch_progress"):
        assert counts <= set(found[name]["total"])
        assert counts <= set(found[name]["current"])
    assert "is_last_batch" in found["epoch_loop.batch_progress"]
    assert "_batches_that_stepped" in found["epoch_loop.state_dict"]


def test_a_resumed_epoch_continues_after_its_finished_batches(fit: Any, tmp_path: Path) -> None:
    class Restart(Callback):
        said: tuple[bool, int] | None = None
        fetched = 0

        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.said = is_resuming(trainer), batches_done(trainer)
            fetcher = trainer.fit_loop._data_fetcher
            restart_epoch(trainer)
            assert fetcher is trainer.fit_loop._data_fetcher
            assert fetcher is not None
            self.fetched = fetcher.fetched

    restart = Restart()
    _, whole = fit(restart)
    assert restart.said == (False, 0)
    assert whole.seen == [0, 1, 2, 3] * 2
    save = Save("on_train_batch_start", 3, tmp_path / "x.ckpt")
    fit(save)
    trainer, rest = fit(restart, ckpt_path=tmp_path / "x.ckpt")
    assert restart.said == (True, 3)
    assert trainer.global_step == 2 * BATCHES
    assert len(rest.seen) == 2 * BATCHES - 3


def test_accumulation_is_detected(fit: Any) -> None:
    class Ask(Callback):
        answers: list[bool]

        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            self.answers.append(is_accumulating(trainer))

    ask = Ask()
    ask.answers = []
    fit(ask, accumulate_grad_batches=3, max_epochs=1)
    assert ask.answers == [True, True, False, False]  # the last batch ends a step


@pytest.mark.parametrize(
    ("settings", "expected"), [({}, [3]), ({"val_check_interval": 2}, [1, 3]), ({"check_val_every_n_epoch": 3}, []), ({"val": False}, [])]
)
def test_a_following_validation_is_predicted(fit: Any, settings: dict[str, Any], expected: list[int]) -> None:
    followed: list[int] = []
    validated: list[int] = []

    class Ask(Callback):
        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
            followed.extend([batch_idx] if validates_next(trainer) else [])

        def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            validated.append(trainer.fit_loop.batch_idx)

    fit(Ask(), **({"val": True} | settings))
    assert followed == validated == 2 * expected


def test_a_step_can_log_in_a_hook_that_lightning_forbids(fit: Any) -> None:
    class Log(Callback):
        def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
            with in_training_step(pl_module):
                pl_module.log("x", 1.0, batch_size=1)
            with pytest.raises(MisconfigurationException, match="on_save_checkpoint"):
                pl_module.log("x", 1.0, batch_size=1)

        def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
            trainer.save_checkpoint(f"{trainer.default_root_dir}/now.ckpt")

    trainer, _ = fit(Log(), max_steps=1)
    assert trainer.callback_metrics["x"] == 1.0


def test_fast_logging_matches_lightning_and_checks_once_per_epoch(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    log = LightningModule.log
    monkeypatch.setattr(LightningModule, "log", lambda self, name, *args, **kwargs: (asked.append(name), log(self, name, *args, **kwargs)))

    class Log(Callback):
        def __init__(self, *, quickly: bool) -> None:
            self.quickly, self.found = quickly, []

        def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
            assert isinstance(pl_module, Line)
            values = {"x": pl_module.layer.weight.sum() + len(pl_module.seen), "y": torch.tensor(batch_idx, dtype=torch.float64)}
            values = values if batch_idx != 1 else {"x": values["x"]}
            log_step(pl_module, values, prog_bar=True) if self.quickly else pl_module.log_dict(values, prog_bar=True)

        def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
            self.found.append([dict(x) for x in (trainer.callback_metrics, trainer.progress_bar_metrics, trainer.logged_metrics)])

        def on_train_end(self, trainer: Trainer, *_: Any) -> None:
            self.on_train_batch_start(trainer)

    quick, slow = Log(quickly=True), Log(quickly=False)
    for callback in (quick, slow):
        torch.manual_seed(1)
        fit(callback)
    assert quick.found == slow.found
    assert len(quick.found) == 2 * BATCHES + 1
    assert quick.found[-1][0]["y"] == BATCHES - 1
    assert len(asked) == 2 * 2 + 2 * (2 * BATCHES - 1)  # twice in each of two epochs; and, when not quick, each value


class Sees(Callback):
    def on_before_optimizer_step(self, *_: Any) -> None:
        pass


class Scaled(MixedPrecision):
    def clip_grad_by_norm(self, optimizer: Any, clip_val: float) -> None:
        pass


@pytest.mark.parametrize(
    ("later", "settings", "expected"),
    [
        ([], {}, True),
        ([Callback()], {"precision": "bf16-mixed"}, True),
        ([Sees()], {}, False),
        ([], {"plugins": [MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu"))]}, False),
        ([], {"plugins": [Scaled("bf16-mixed", "cpu")]}, False),
    ],
)
def test_a_callback_detects_whether_it_sees_clipped_gradients(fit: Any, later: list[Callback], settings: Any, expected: bool) -> None:
    class Ask(Sees):
        answer: bool

        def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
            self.answer = clips_what_it_sees(trainer, self)

    ask = Ask()
    fit(Sees(), ask, *later, **settings)
    assert ask.answer is expected


def test_a_modules_own_hook_runs_before_clipping(fit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    monkeypatch.setattr(Sees, "on_before_optimizer_step", lambda self, *_: order.append("callback"))
    monkeypatch.setattr(Line, "on_before_optimizer_step", lambda self, optimizer: order.append("module"), raising=False)
    monkeypatch.setattr(Line, "configure_gradient_clipping", lambda self, *_, **__: order.append("clip"))
    sees = Sees()
    trainer, _ = fit(sees, max_steps=1)
    assert order == ["callback", "module", "clip"]
    assert not clips_what_it_sees(trainer, sees)


def test_trainer_of_returns_the_modules_trainer_or_none(fit: Any) -> None:
    assert trainer_of(Line()) is None
    trainer, module = fit(max_epochs=1)
    assert trainer_of(module) is trainer


def test_averaged_weights_apply_only_inside_the_block(fit: Any) -> None:
    found: list[float] = []

    class Look(Callback):
        def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
            weight = pl_module.layer.weight
            found.append(weight.item())
            with averaged(trainer, pl_module):
                found.append(weight.item())
            found.append(weight.item())

    _, module = fit(Look(), EMAWeightAveraging(decay=0.5), val=True, max_epochs=1)
    before, inside, after = found
    assert before == after != inside
    assert inside == module.layer.weight.item()  # Lightning puts them in place at the end


@pytest.mark.parametrize(("start", "steps"), [(0, True), (10**6, False)])
def test_averaged_steps_reports_whether_averages_were_updated(fit: Any, start: int, steps: bool) -> None:
    trainer, _ = fit(EMAWeightAveraging(update_starting_at_step=start), max_epochs=2)
    assert averaged_steps(trainer) is not None
    assert bool(averaged_steps(trainer)) is steps
    assert averaged_steps(fit(max_epochs=1)[0]) is None


def test_the_data_parallel_size_is_set_before_the_mesh_is_built() -> None:
    strategy = ModelParallelStrategy(tensor_parallel_size=2)
    assert strategy._data_parallel_size == "auto"
    set_data_parallel_size(strategy, 3)
    source = inspect.getsource(ModelParallelStrategy.setup_environment)
    assert 'self._data_parallel_size == "auto"' in source
    assert "_setup_device_mesh(\n            self._data_parallel_size," in source


def test_the_launcher_passes_its_processes_to_the_observer() -> None:
    before = subprocess_script._launch_process_observer
    with observing_processes(lambda processes: None):
        assert subprocess_script._launch_process_observer is not before
    assert subprocess_script._launch_process_observer is before
    source = inspect.getsource(subprocess_script._SubprocessScriptLauncher.launch)
    assert "_launch_process_observer(self.procs)" in source


def test_metrics_are_appended_to_an_existing_file(tmp_path: Path) -> None:
    for step, metrics in enumerate(({"a": 1.0}, {"a": 2.0, "b": 3.0}, {"b": 4.0})):
        logger = RunLogger(tmp_path, "run", 0)
        logger.log_metrics(metrics, step=step)
        logger.save()
        assert logger.experiment.rows == step + 1
    names, rows = read_rows(tmp_path / "run" / "version_0" / METRICS)
    assert set(names) == {"a", "b", "step"}
    assert [(row["step"], row["a"], row["b"]) for row in rows] == [("0", "1.0", ""), ("1", "2.0", "3.0"), ("2", "", "4.0")]


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        (ExperimentWriter, ("_check_log_dir_exists", "_rewrite_with_new_header")),
        (CSVLogger, ("experiment", "_experiment")),
        (LightningCLI, ("_parse_ckpt_path", "_run_subcommand")),
    ],
)
def test_lightning_calls_every_overridden_method(kind: type, names: tuple[str, ...]) -> None:
    source = "".join(inspect.getsource(base) for base in kind.__mro__[:-1])
    for name in names:
        assert name == "_experiment" or hasattr(kind, name)
        assert f".{name}" in source


def test_lightnings_handler_of_slurms_signal_is_turned_off(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {"NTASKS": "1", "JOB_ID": "7", "JOB_NAME": "job", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    trainer = Trainer(accelerator="cpu", devices=1, logger=False, default_root_dir=tmp_path)
    connector = trainer._signal_connector
    try:
        connector.register_signal_handlers()
        assert signal.getsignal(signal.SIGUSR1) not in (None, signal.SIG_DFL)
        connector.teardown()
        disable_requeue(trainer)
        connector.register_signal_handlers()
        assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    finally:
        connector.teardown()
    assert requeued_checkpoint(trainer) is None
    (tmp_path / "hpc_ckpt_2.ckpt").touch()
    assert requeued_checkpoint(trainer) == str(tmp_path / "hpc_ckpt_2.ckpt")
    monkeypatch.delenv("SLURM_NTASKS")
    assert requeued_checkpoint(trainer) is None
