"""A task of one's own: its arguments are declared once, and are all that its checkpoint needs."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler, LearningRateFinder
from torch import nn

import attnkit
from attnkit.registry import ConfigurationError, OptimizerSpec, ScheduleSpec, keywords_of
from attnkit.task import Sums, Task, TaskConfig

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
]


@dataclass(frozen=True, kw_only=True)
class LineConfig(TaskConfig):
    width: int = 2
    optimizer: OptimizerSpec = "sgd"
    schedule: ScheduleSpec = "constant"


class Line(Task):
    """Fits a line."""

    config: LineConfig

    @keywords_of(LineConfig)
    def __init__(self, config: LineConfig) -> None:
        super().__init__(config)

    def build_model(self) -> nn.Module:
        return nn.Linear(self.config.width, 1, bias=False)

    def objective(self, batch: Any) -> Sums:
        error = (self.model(batch["x"]) - batch["y"]).square().sum()
        return Sums(loss=error, nll=error.detach(), targets=torch.tensor(len(batch["y"])))


class Shifted(Line):
    """Has parameters in two groups of most optimizers."""

    def build_model(self) -> nn.Module:
        return nn.Linear(self.config.width, 1)


class Mode(Enum):
    FAST = "fast"
    SLOW = "slow"


@dataclass
class Options:
    mode: Mode = Mode.FAST
    sizes: tuple[int, int] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class BentConfig(LineConfig):
    mode: Mode = Mode.FAST
    options: Options = field(default_factory=Options)
    path: Path = Path("x")


class Bent(Line):
    """Fits a line, and takes objects."""

    config: BentConfig

    @keywords_of(BentConfig)
    def __init__(self, config: BentConfig) -> None:
        super().__init__(config)  # although the base has fewer options


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, cls in (("line", Line), ("bent", Bent)):
        monkeypatch.setitem(attnkit.tasks._classes, name, cls)


def test_arguments_are_stored_as_plain_data() -> None:
    task = Line(width=3, optimizer={"name": "sgd", "lr": 0.1})
    assert dict(task.hparams) == {
        "width": 3,
        "optimizer": attnkit.optimizers.resolve({"name": "sgd", "lr": 0.1}).plain(),
        "schedule": {"name": "constant", "warmup_steps": 0},
        "init_from": None,
        "activation_checkpointing": "none",
        "compile": False,
    }
    assert (task.registered_name, task.parameter_count) == ("line", 3)


def test_arguments_that_are_not_plain_data_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"lr must be float, but is <object"):
        Line(optimizer={"name": "sgd", "lr": object()})


def test_an_optimizer_that_decays_weights_by_its_base_spares_vectors(monkeypatch: pytest.MonkeyPatch, fit: Callable[..., Any]) -> None:
    class Short(torch.optim.AdamW):
        def __init__(self, params: Any, lr: float = 1e-3) -> None:
            super().__init__(params, lr=lr)

    monkeypatch.setitem(attnkit.optimizers._classes, "short", Short)
    task = Shifted(width=2, optimizer="short")
    optimizer = fit(task, [{"x": torch.ones(2, 2), "y": torch.zeros(2, 1)}]).optimizers[0]
    assert [(len(g["params"]), g["weight_decay"]) for g in optimizer.param_groups] == [(1, 0.01), (1, 0.0)]


def test_a_custom_task_is_rebuilt_from_its_checkpoint(fit: Callable[..., Any], tmp_path: Path) -> None:
    task = Line(width=1, optimizer={"name": "sgd", "lr": 0.2})
    x = torch.tensor([[1.0], [2.0]])
    fit(task, [{"x": x, "y": 3 * x}] * 20).save_checkpoint(tmp_path / "line.ckpt")
    found = Line.load(tmp_path / "line.ckpt")
    assert found.config.width == 1
    assert torch.equal(found.model.weight, task.model.weight)  # type: ignore[arg-type]
    assert found.model.weight.item() == pytest.approx(3.0, abs=1e-3)  # type: ignore[operator]


def test_enums_dataclasses_and_paths_are_rebuilt_from_a_checkpoint(fit: Callable[..., Any], tmp_path: Path) -> None:
    options = Options(mode=Mode.SLOW, sizes=(3, 4))
    task = Bent(width=1, mode=Mode.SLOW, options=options)
    assert task.config.options is options
    assert (task.hparams["mode"], task.hparams["path"]) == ("SLOW", "x")
    assert task.hparams["options"] == {"mode": "SLOW", "sizes": [3, 4]}
    fit(task, [{"x": torch.ones(2, 1), "y": torch.ones(2, 1)}]).save_checkpoint(tmp_path / "bent.ckpt")
    found = Bent.load(tmp_path / "bent.ckpt").config
    assert (found.mode, found.options, found.path) == (Mode.SLOW, options, Path("x"))
    assert attnkit.tasks.build({"name": "bent", "options": {"mode": "SLOW"}}).config.options == Options(mode=Mode.SLOW)


class Own(Line):
    """Has an optimizer of its own, and perhaps a scheduler."""

    scheduled = True

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.5)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {"optimizer": optimizer, "lr_scheduler": scheduler} if self.scheduled else optimizer


@pytest.mark.parametrize(("scheduled", "lr"), [(True, 0.05), (False, 0.5)])
def test_a_subclass_may_choose_its_optimizer(fit: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, scheduled: bool, lr: float) -> None:
    monkeypatch.setattr(Own, "scheduled", scheduled)
    trainer = fit(attnkit.tasks.build({"name": f"{__name__}.Own"}), [{"x": torch.ones(3, 2), "y": torch.ones(3, 1)}])
    [group] = trainer.optimizers[0].param_groups
    assert (group["lr"], group["momentum"]) == (pytest.approx(lr), 0.5)


def test_a_trained_task_is_copied_without_the_state_of_its_optimizer(fit: Callable[..., Any], tmp_path: Path) -> None:
    task, x = Line(width=100_000, optimizer="adam"), torch.ones(1, 100_000)
    fit(task, [{"x": x, "y": torch.ones(1, 1)}])
    torch.save(task, tmp_path / "task.pt")
    assert (tmp_path / "task.pt").stat().st_size < 1.5 * x.nbytes


def test_a_tuner_cannot_set_the_learning_rate_of_a_task(fit: Callable[..., Any]) -> None:
    task = attnkit.tasks.build({"name": f"{__name__}.Line"})
    task.lr = 0.1
    with pytest.raises(ConfigurationError, match=r"the learning rate of a task is that of model\.optimizer"):
        fit(task, [{"x": torch.ones(3, 2), "y": torch.ones(3, 1)}] * 4, callbacks=[LearningRateFinder(num_training_steps=3)])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("adam", {"name": "adamw", "amsgrad": True}, "adamw with amsgrad=True cannot continue with the state of adam in the checkpoint"),
        ("adam", "nadam", "nadam cannot continue with the state of adam in the checkpoint: keep adam, or start a new run"),
        ("rmsprop", {"name": "rmsprop", "momentum": 0.5}, "with momentum=0.5 cannot continue .* keep rmsprop as it was"),
        ("adam", {"name": "adamw", "lr": 0.5}, None),
        ("adam", "sgd", None),
        ("rprop", "sgd", "sgd cannot continue with the state of rprop"),
    ],
)
def test_a_run_continues_with_a_usable_state(fit: Callable[..., Any], tmp_path: Path, old: Any, new: Any, message: str | None) -> None:
    batches = [{"x": torch.ones(2, 1), "y": torch.ones(2, 1)}]
    fit(Shifted(width=1, optimizer=old), batches).save_checkpoint(tmp_path / "a.ckpt")
    with nullcontext() if message is None else pytest.raises(ConfigurationError, match=rf"model\.optimizer: .*{message}"):
        assert fit(Shifted(width=1, optimizer=new), batches, max_epochs=2, ckpt_path=tmp_path / "a.ckpt").global_step == 2


@pytest.mark.parametrize("trainer", [{"accumulate_grad_batches": 2}, {"callbacks": [GradientAccumulationScheduler({1: 2})]}])
def test_lbfgs_accumulates_no_gradients(fit: Callable[..., Any], trainer: dict[str, Any]) -> None:
    batches = [{"x": torch.ones(2, 1), "y": torch.ones(2, 1)}] * 2
    task = Line(width=1, optimizer="lbfgs")
    with pytest.raises(ConfigurationError, match=r"lbfgs evaluates a step several times, so trainer\.accumulate_grad_batches must be 1"):
        fit(task, batches, **trainer)
    fit(task, batches)
    assert task.model.weight.item() == pytest.approx(1.0, abs=1e-3)  # type: ignore[operator]
