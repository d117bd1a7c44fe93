"""A stranger's repository: its own LightningModule, data module and attention, a `main.py` of three lines and a recipe with `imports`."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

import attnkit as package
from attnkit.cli import AttnkitCLI
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError

Command = Callable[..., Any]

ATTENTION = """
import attnkit
from attnkit.attention import Attention

@attnkit.attentions.register("manhattan")
class Manhattan(Attention):
    r'''Minus the sum of absolute differences.

    Equation:
        $$e = -\\\\sum_i |q_i - k_i|$$

    Paper: Nobody 2026, https://example.org

    Args:
        head_dim: Width of a head.
        num_heads: Query heads.
        num_kv_heads: Key and value heads (default: as many).
        width: What the sum is divided by.

    Example:
        >>> Manhattan(head_dim=4).width
        1.0
    '''

    def __init__(self, *, head_dim: int, num_heads: int = 1, num_kv_heads: int | None = None, width: float = 1.0) -> None:
        super().__init__(head_dim=head_dim, num_heads=num_heads, num_kv_heads=num_kv_heads)
        self.width = width

    def score(self, query, key):
        return -(query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1) / self.width
"""

MODEL = """
import torch
from lightning.pytorch import LightningDataModule, LightningModule
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import attnkit
from attnkit.registry import AttentionSpec


class Numbers(LightningDataModule):
    '''Which of two numbers occurs more often.'''

    num_classes = 2

    def __init__(self, *, size: int = 16, batch_size: int = 4) -> None:
        super().__init__()
        self.size, self.batch_size = size, batch_size

    def loader(self):
        numbers = torch.randint(3, 5, (self.size, 5), generator=torch.Generator().manual_seed(1))
        return DataLoader(TensorDataset(numbers, (numbers == 4).sum(1) // 3), batch_size=self.batch_size)

    train_dataloader = val_dataloader = test_dataloader = loader


class Net(LightningModule):
    def __init__(self, num_classes: int, *, d_model: int = 8, rate: float = 0.1, attention: AttentionSpec = "additive") -> None:
        super().__init__()
        self.save_hyperparameters()
        self.model = attnkit.compose(
            stack="encoder", d_model=d_model, num_layers=1, num_heads=2, attention=attention, vocab_size=5, num_classes=num_classes
        )
        self.rate = rate

    def step(self, batch, name):
        loss = functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log(f"{name}/loss", loss)
        return loss

    def training_step(self, batch, batch_idx):
        return self.step(batch, "train")

    def validation_step(self, batch, batch_idx):
        self.step(batch, "val")

    def test_step(self, batch, batch_idx):
        self.step(batch, "test")

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.rate)


class Wider(Net):
    pass
"""

MAIN = """
from attnkit.cli import AttnkitCLI
from stranger_model import Net, Numbers
if __name__ == "__main__": AttnkitCLI(Net, Numbers)
"""

RECIPE = """
imports: [stranger_attention]
model: {attention: {class_path: manhattan, init_args: {width: 2.0}}, rate: 0.05}
trainer: {accelerator: cpu, enable_progress_bar: false, log_every_n_steps: 1}
fit:
  data: {size: 12}
  trainer: {max_epochs: 1}
"""


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toys: None) -> Iterator[Path]:
    """The repository, which is the current folder; its modules are forgotten afterwards."""
    for name, text in (("stranger_attention.py", ATTENTION), ("stranger_model.py", MODEL), ("main.py", MAIN), ("mine.yaml", RECIPE)):
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    for name in ("stranger_attention", "stranger_model"):
        sys.modules.pop(name, None)
    package.attentions._classes.pop("manhattan", None)


def stranger(*args: str, run: bool = True, cli: type[AttnkitCLI] = AttnkitCLI, **options: Any) -> AttnkitCLI:
    module = import_module("stranger_model")
    return cli(module.Net, module.Numbers, args=args, run=run, **options)


def test_main_py_trains_and_says_how_to_use_the_checkpoint(repository: Path) -> None:
    assert len(MAIN.strip().splitlines()) == 3
    done = subprocess.run([sys.executable, "main.py", "fit", "--config", "mine.yaml"], cwd=repository, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "attention: manhattan (width=2.0)" in done.stdout
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    assert f"Checkpoint: {path}\n  python main.py test --ckpt_path {path}\n" in done.stdout
    wrong = subprocess.run([sys.executable, "main.py", "fit", "--model.d_modle", "3"], cwd=repository, capture_output=True, text=True)
    assert wrong.returncode == 2
    assert "Did you mean 'd_model'?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_it_is_trained_resumed_and_tested(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = stranger("fit", "--config", "mine.yaml")
    assert type(first.model.model.stack.encoder.layers[0].self_attention.attention).__name__ == "Manhattan"
    assert first.trainer.global_step == 3
    saved = read_yaml(Path("runs/mine/version_0/config.yaml").read_text(), where="config.yaml")
    assert saved["imports"] == ["stranger_attention"]
    assert saved["model"]["name"] == "stranger_model.Net"
    assert "num_classes" not in saved["model"]
    assert first.model.hparams["attention"] == {"name": "manhattan", "width": 2.0}
    resumed = stranger("fit", "--config", "mine.yaml", "--resume", "--trainer.max_epochs", "2")
    assert resumed.trainer.global_step == 6
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    tested = stranger("test", "--ckpt_path", path)
    assert "test/loss" in tested.trainer.callback_metrics
    assert tested.model.rate == 0.05
    module = import_module("stranger_model")
    loaded = module.Net.load_from_checkpoint(path, weights_only=True)
    assert all(torch.equal(weight, resumed.model.state_dict()[name]) for name, weight in loaded.state_dict().items())


def test_the_attnkit_command_takes_the_same_classes_by_their_paths(attnkit: Command, repository: Path) -> None:
    flags = ["--config", "mine.yaml", "--model.class_path", "stranger_model.Net", "--data", "stranger_model.Numbers"]
    assert (outcome := attnkit("fit", *flags, "--data.batch_size", 6)).status == 0, outcome.err
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    assert attnkit("test", "--ckpt_path", path).status == 0
    forget()
    assert "--imports stranger_model" in attnkit("test", "--ckpt_path", path).err
    assert attnkit("test", "--ckpt_path", path, "--imports", "stranger_model", "--imports", "stranger_attention").status == 0
    assert "load_from_checkpoint" in attnkit("generate", path, "x").err


def test_the_attention_passes_the_kit(attnkit: Command) -> None:
    outcome = attnkit("check", "manhattan", "--imports", "stranger_attention")
    assert outcome.status == 0, outcome.out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["fit", "--model.d_modle", "3"], r"task 'stranger_model.Net' has no argument 'd_modle'. Did you mean 'd_model'"),
        (["fit", "--model.d_model", "wide"], "d_model must be int, but is 'wide'"),
        (["fit", "--data.size", "1.5"], r"model|data: dataset 'stranger_model.Numbers': size must be int, but is 1.5"),
        (["fit", "--model.attention", "rotary"], "model.attention: unknown attention 'rotary'. 'rotary' is a position."),
        (["fit", "--model", "seq2seq"], "model must be Net or a subclass of it, which 'seq2seq' is not"),
        (["fti"], "unknown command 'fti'. Did you mean 'fit'"),
        (["fit", "--data", "text_pairs"], "data is Numbers here"),
    ],
)
def test_mistakes_are_explained_as_those_of_names(args: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stranger(*args)


def test_a_subclass_can_be_chosen() -> None:
    assert type(stranger("--model", "stranger_model.Wider", "--trainer.logger", "false", run=False).model).__name__ == "Wider"


def test_what_nothing_gives_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_module("stranger_model").Numbers, "num_classes")
    with pytest.raises(ConfigurationError, match=r"needs num_classes: add it, .*, or give the data module an"):
        stranger("fit")
    built = stranger("--model.num_classes", "3", "--trainer.logger", "false", run=False)
    assert built.model.hparams["num_classes"] == 3


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


def test_the_hooks_of_lightning_cli_work() -> None:
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


class Bare(LightningModule):
    """No data module and no optimizer of its own."""

    def __init__(self, width: int = 2) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(width, 1)

    def train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(torch.ones(2, self.layer.in_features))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.layer(batch).sum()


def test_a_module_with_dataloaders_and_an_optimizer_of_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "Bare", Bare, raising=False)
    monkeypatch.setattr(Bare, "__module__", "sys")  # the path of a class must lead to it
    args = ["fit", "--model.width", "3", "--trainer.max_epochs", "1", "--optimizer", "SGD", "--optimizer.lr", "0.5"]
    cli = AttnkitCLI(Bare, args=[*args, *PLAIN])
    assert isinstance(cli.trainer.optimizers[0], torch.optim.SGD)
    assert cli.datamodule is None


def test_classes_can_be_imported_from_their_packages() -> None:
    for registry, room in ((package.tasks, "attnkit.task"), (package.datasets, "attnkit.data")):
        for name in registry.built_in():
            cls = registry.get(name)
            assert getattr(import_module(room), cls.__name__) is cls
    with pytest.raises(AttributeError, match="Seq3Seq"):
        _ = import_module("attnkit.task").Seq3Seq


def test_the_help_shows_the_arguments_of_the_classes(capsys: pytest.CaptureFixture[str]) -> None:
    for args, text in ((["fit", "--help"], "--model.help"), (["fit", "--model.help"], "d_model: int = 8"), (["--help"], "fit,validate")):
        with pytest.raises(SystemExit) as end:
            stranger(*args)
        assert not end.value.code
        assert text in capsys.readouterr().out
    assert os.path.exists("main.py")


def test_a_checkpoint_of_a_task_cannot_pose_as_one_of_an_own_class(attnkit: Command, trained: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    checkpoint["attnkit"]["arguments"] = {**checkpoint["hyper_parameters"], "max_length": 12}
    for task in ("seq2seq", "attnkit.task.seq2seq.Seq2Seq"):  # what describes a task is compared with its weights before it is built
        checkpoint["attnkit"]["task"] = task
        torch.save(checkpoint, tmp_path / "posing.ckpt")
        printed = read_yaml(attnkit("fit", "--ckpt_path", "posing.ckpt", "--print_config").out, where="")
        assert printed["model"]["max_length"] == 6
