"""A stranger's subclass of AttnkitCLI has the hooks and arguments of LightningCLI."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

from attnkit.checkpoint import load_checkpoint
from attnkit.checkpoint.description import saved_recipe
from attnkit.cli import AttnkitCLI
from attnkit.registry import ConfigurationError
from tests.cli.stranger import stranger

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("repository")


PLAIN = ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false", "--trainer.log_every_n_steps", "1"]


class Hooked(AttnkitCLI):
    """All that LightningCLI lets a subclass do."""

    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_argument("--shout", type=str, default="hello")
        parser.add_lightning_class_args(EarlyStopping, "stopping")
        parser.set_defaults({"stopping.monitor": "val/loss"})
        parser.link_arguments("data.batch_size", "model.d_model", compute_fn=lambda size: 2 * size)
        parser.link_arguments("data.num_classes", "model.num_classes", apply_on="instantiate")
        parser.link_arguments("shout", "trainer.profiler", compute_fn=lambda word: None)

    def before_fit(self) -> None:
        self.called = [self.config.fit.shout]

    def after_fit(self) -> None:
        self.called.append("after")


def test_the_hooks_of_lightning_cli_are_called(capsys: pytest.CaptureFixture[str]) -> None:
    defaults = {"max_epochs": 1, "callbacks": [ModelCheckpoint(monitor="val/loss")]}
    args = ["fit", "--data.batch_size", "8", "--stopping.patience", "7", "--shout", "hey"]
    cli = stranger(*args, *PLAIN, cli=Hooked, trainer_defaults=defaults)
    assert cli.called == ["hey", "after"]  # type: ignore[attr-defined]
    assert cli.model.hparams["d_model"] == 16
    kinds = [type(callback) for callback in cli.trainer.callbacks]
    assert kinds.count(ModelCheckpoint) == 1
    [stopping] = [callback for callback in cli.trainer.callbacks if isinstance(callback, EarlyStopping)]
    assert (stopping.monitor, stopping.patience) == ("val/loss", 7)
    assert cli.trainer.max_epochs == 1
    assert "attnkit test --ckpt_path" in (printed := capsys.readouterr().out)
    assert "--imports stranger_model\n" in printed


class Bare(LightningModule):
    """No data module and no optimizer of its own."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.ones(2, self.layer.in_features))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).sum()


def test_the_saved_recipe_contains_the_tuned_values() -> None:
    sizes = "{class_path: BatchSizeFinder, init_args: {max_trials: 2, steps_per_trial: 1, init_val: 3}}"
    rates = "{class_path: LearningRateFinder, init_args: {num_training_steps: 20, attr_name: rate}}"
    tuned = ["--trainer.callbacks", f"[{sizes}, {rates}]", "--data.size", "512", "--trainer.max_steps", "2"]
    cli = stranger("fit", "--config", "mine.yaml", *tuned, "--trainer.limit_val_batches", "0")
    size = cli.datamodule.batch_size  # type: ignore[attr-defined]
    assert size != 4
    assert cli.model.rate != 0.05
    [folder] = Path("runs").glob("*/version_0")
    written = yaml.safe_load((folder / "config.yaml").read_text())
    assert (written["data"]["batch_size"], written["model"]["rate"]) == (size, cli.model.rate)
    checkpoint = load_checkpoint(folder / "checkpoints" / "last.ckpt")
    assert checkpoint["attnkit"]["arguments"] == {k: v for k, v in written["model"].items() if k != "name"}
    assert saved_recipe(checkpoint)["data"] == written["data"]


def test_a_module_with_dataloaders_accepts_an_optimizer_from_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "Bare", Bare, raising=False)
    monkeypatch.setattr(Bare, "__module__", "sys")  # the path of a class must lead to it
    args = ["fit", "--model.width", "3", "--trainer.max_epochs", "1", "--optimizer", "SGD", "--optimizer.lr", "0.5"]
    cli = AttnkitCLI(Bare, args=[*args, *PLAIN])
    assert isinstance(cli.trainer.optimizers[0], torch.optim.SGD)
    assert cli.datamodule is None


class Sgd(AttnkitCLI):
    """Adds an optimizer to the command line, with a default of its own."""

    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.add_optimizer_args(torch.optim.SGD)
        parser.set_defaults({"optimizer.lr": 0.3})


def test_an_optimizer_added_by_a_subclass_replaces_the_modules() -> None:
    args = ["fit", "--trainer.fast_dev_run", "true", "--optimizer.momentum", "0.5", *PLAIN]
    with pytest.warns(UserWarning, match="configure_optimizers` will be overridden by `Sgd"):
        cli = stranger(*args, cli=Sgd)
    [optimizer] = cli.trainer.optimizers
    assert (type(optimizer), optimizer.defaults["lr"], optimizer.defaults["momentum"]) == (torch.optim.SGD, 0.3, 0.5)


def test_an_optimizer_cannot_be_added_to_a_task(tiny: str) -> None:
    with pytest.raises(ConfigurationError, match=r"the optimizer of attnkit's tasks is model\.optimizer"):
        Sgd(args=["fit", "--config", tiny, *PLAIN])


@pytest.mark.parametrize("as_flag", [True, False])
def test_a_named_value_that_a_link_replaces_is_reported(capsys: pytest.CaptureFixture[str], as_flag: bool) -> None:
    reason = "it is linked to data.batch_size, which sets it to 16"
    Path("mine.yaml").write_text(yaml.safe_dump({"model": {} if as_flag else {"d_model": 12}, "data": {"batch_size": 8}}))
    command = ["fit", "--config", "mine.yaml", "--trainer.fast_dev_run", "true", *PLAIN]
    if as_flag:
        with pytest.raises(ConfigurationError, match=f"model.d_model cannot be 12: {reason}"):
            stranger(*command, "--model.d_model", "12", cli=Hooked)
    else:
        assert stranger(*command, cli=Hooked).model.hparams.d_model == 16
        assert f"note: model.d_model=12 in the recipe has no effect: {reason}" in capsys.readouterr().err


class Defaulted(AttnkitCLI):
    def add_arguments_to_parser(self, parser: Any) -> None:
        parser.set_defaults({"trainer.max_epochs": 1, "model.d_model": 8})


def test_set_defaults_rejects_model_arguments() -> None:
    with pytest.raises(ConfigurationError, match=r"set_defaults: model\.d_model is not an argument of this parser"):
        stranger("fit", cli=Defaulted)
