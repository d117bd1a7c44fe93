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
import yaml
from lightning.pytorch import LightningModule
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

import attnkit as package
from attnkit.ablation import Study
from attnkit.ablation.fairness import checklist
from attnkit.ablation.results import Results
from attnkit.cli import AttnkitCLI
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import read_json, status_of, write_json
from attnkit.worker.inspection import Inspector, layered
from attnkit.worker.recorder import Recorder
from attnkit.worker.run import main
from tests.ablation.conftest import RECIPE as TASK
from tests.ablation.conftest import SEEDS, write_recipe

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


class Noisy(Net):
    monitor = ("val/loss", "min")

    def __init__(self, num_classes: int, *, d_model: int = 8) -> None:
        assert d_model < 64, "too wide"
        super().__init__(num_classes, d_model=d_model)

    def training_step(self, batch, batch_idx):
        return functional.cross_entropy(functional.dropout(self.model(batch[0]), 0.2), batch[1])


class Shuffled(Numbers):
    def setup(self, stage):
        self.order = torch.randperm(self.size)

    def train_dataloader(self):
        return DataLoader([self.loader().dataset[i] for i in self.order], batch_size=self.batch_size, shuffle=True)


class Alone(LightningModule):
    def __init__(self, *, lazy: bool = False, late: bool = False, from_values: bool = False, width: int = 1) -> None:
        super().__init__()
        self.layer = torch.nn.LazyLinear(1) if lazy else torch.nn.Linear(3, width)
        self.late, self.size = late, int(torch.ones(()).item()) if from_values else 1

    def setup(self, stage):
        if self.late and not hasattr(self, "more"):
            self.more = torch.nn.Linear(1, 2)

    def train_dataloader(self):
        return DataLoader(torch.ones(4, 3), batch_size=2)

    val_dataloader = train_dataloader

    def training_step(self, batch, batch_idx):
        return self.layer(batch).square().mean()

    def validation_step(self, batch, batch_idx):
        self.log("loss", self.layer(batch).square().mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)
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
    assert type(first.model.model.stack.encoder.layers[0].mixer.attention).__name__ == "Manhattan"
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
        (["fit", "--data", "text_pairs"], "data must be Numbers or a subclass of it"),
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


OWN: dict[str, Any] = {
    "model": {"class_path": "stranger_model.Noisy", "init_args": {"d_model": 8}},
    "data": {"class_path": "stranger_model.Shuffled", "init_args": {"size": 12}},
    "trainer": {"accelerator": "cpu"},
    "fit": {"trainer": {"max_epochs": 2}},
}
ALONE = {"model": "stranger_model.Alone", "trainer": {"accelerator": "cpu", "max_epochs": 1}}


def study(recipe: Any, **settings: Any) -> Study:
    """Return a study of two seeds, whose files are in the current folder."""
    Path("own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    Path("s.yaml").write_text(yaml.safe_dump({"recipe": "own.yaml", "seeds": 2, **settings}), encoding="utf-8")
    return Study.from_yaml("s.yaml")


def answer(recipe: Any, overrides: dict[str, Any], *, match: Any = None) -> dict[str, Any]:
    """Return the inspection of a composition, made in this process."""
    Path("own.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")
    return Inspector("own.yaml", match=match, baseline=[]).answer(layered(overrides))


def trained_as(name: str, overrides: dict[str, Any], *, seeds: dict[str, int] = SEEDS, test: bool = False) -> dict[str, Any]:
    """Train the recipe `OWN` in this process as a run of a study, and return its result."""
    folder = Path(name).absolute()
    write_json(folder / "job.json", {"recipe": answer(OWN, overrides)["recipe"], "seeds": seeds, "test": test})
    main(folder)
    assert status_of(folder)["status"] == "ok", status_of(folder)
    return dict(read_json(folder / "result.json"))


def results_of(asked: Study) -> Results:
    """Carry out the runs of a study in this process."""
    plan = asked.plan()
    plan.lock()
    for run in plan.runs:
        folder = plan.run_folder(run.key)
        write_json(folder / "job.json", run.job)
        assert main(folder.absolute()) == 0, status_of(folder)
    return Results(plan)


def test_an_own_attention_is_ablated_by_name_and_by_class_path(repository: Path, attnkit: Command) -> None:
    write_recipe(repository)
    path = "stranger_attention.Manhattan"
    levels = ["manhattan", path, {"class_path": path, "init_args": {"width": 2.0}}]
    recipe = {**TASK, "imports": ["stranger_attention"]}
    asked = study(recipe, factors={"model.stack.attention": levels[2:]}, set={"trainer.max_epochs": 1})
    planned = study(recipe, factors={"model.stack.attention": levels}).plan()
    assert [v.name for v in planned.variants[1:]] == ["attention=manhattan", f"attention={path}", f"attention={path}(width=2.0)"]
    last = planned.inspections[f"attention={path}(width=2.0)"]
    assert last.recipe is not None
    assert last.recipe["model"]["stack"]["attention"] == {"name": path, "width": 2.0}
    assert not last.limits
    asked = study(recipe, factors={"model.stack.attention": levels[2:]}, set={"trainer.max_epochs": 1})
    results = results_of(asked)
    assert results.complete
    assert not results.unpaired()
    assert attnkit("ablate", "report", "s.yaml").status == 0


@pytest.mark.slow
def test_own_classes_are_ablated_from_plan_to_report(attnkit: Command) -> None:
    study(OWN, factors={"model.d_model": [16]}, metric="test/loss")
    planned = attnkit("ablate", "plan", "s.yaml")
    assert planned.status == 0, planned.err
    assert "  baseline: 1,018 parameters, about" in planned.out
    assert "note: stranger_model.Noisy is not a task of attnkit: its FLOPs are unknown" in planned.out
    assert "note: stranger_model.Shuffled takes no seed" in planned.out
    ran = attnkit("ablate", "run", "s.yaml", "--jobs", 2)
    assert ran.status == 0, ran.err + ran.out
    assert "d_model=16 " in ran.out
    folder = Path("runs/ablations/s")
    for name in ("report.md", "report.html"):
        text = (folder / name).read_text(encoding="utf-8")
        assert "is not a task of attnkit: its FLOPs are unknown" in text
    assert "[x] all variants saw the same batches in the same order" in (folder / "report.md").read_text(encoding="utf-8")
    key = next(Path("runs/ablations/runs").iterdir()).name
    assert "batches: the same" in attnkit("ablate", "reproduce", "s.yaml", key).out


def test_each_seed_of_a_study_does_for_own_classes_what_it_is_for() -> None:
    one = trained_as("one", {})
    assert trained_as("again", {})["metrics"] == one["metrics"]
    assert one["batches"] == 6, "the section fit of the recipe says two epochs"
    wide = trained_as("wide", {"model.init_args.d_model": 16})
    assert wide["parameters"] > one["parameters"]
    assert wide["batch_hash"] == one["batch_hash"], "the module drew more numbers, and the order of the data followed"
    assert trained_as("data", {}, seeds=SEEDS | {"data": 9})["batch_hash"] != one["batch_hash"]
    for kind in ("initialisation", "dropout"):
        other = trained_as(kind, {}, seeds=SEEDS | {kind: 9})
        assert other["batch_hash"] == one["batch_hash"]
        assert other["metrics"]["val/loss"] != one["metrics"]["val/loss"]


def test_a_run_of_own_classes_that_was_cut_short_between_epochs_ends_as_one_that_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = trained_as("whole", {})
    end = Recorder.on_train_batch_end

    def cut(self: Recorder, trainer: Any, *others: Any) -> None:
        end(self, trainer, *others)
        if trainer.current_epoch == 1:
            raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_train_batch_end", cut)
        with pytest.raises(AssertionError):
            trained_as("cut", {})
    Path("cut/status.json").unlink()
    assert main(Path("cut").absolute()) == 0
    resumed = read_json(Path("cut/result.json"))
    assert [resumed[key] for key in ("metrics", "batches", "batch_hash")] == [whole[key] for key in ("metrics", "batches", "batch_hash")]


def test_own_modules_are_counted_and_what_cannot_be_known_is_said() -> None:
    assert answer(ALONE, {})["parameters"] == 4
    assert answer(ALONE, {"model.from_values": True})["parameters"] == 4, "a constructor that needs values cannot be run on meta"
    lazy = answer(ALONE, {"model.lazy": True})
    assert lazy["parameters"] is None
    assert "the parameters of stranger_model.Alone are counted in its runs only: it has lazy modules" in lazy["limits"]
    assert not lazy["counts_flops"]
    assert "stranger_model.Noisy cannot be built: AssertionError: too wide" in answer(OWN, {"model.d_model": 64})["error"]


def test_own_modules_are_matched_by_parameters_and_by_nothing_else() -> None:
    match = {"on": "params", "adjust": "model.width", "tolerance": 0.5}
    assert answer({**ALONE, "model": {"name": ALONE["model"], "width": 3}}, {"model.width": 1}, match=match)["adjusted"] == 3
    with pytest.raises(ConfigurationError, match=r"match: the FLOPs of stranger_model\.Alone, which is not a task .* match on params"):
        answer(ALONE, {}, match=match | {"on": "flops"})
    with pytest.raises(
        ConfigurationError, match=r"match: the parameters .* not known before a training \(it has lazy modules\); leave match"
    ):
        answer({**ALONE, "model": {"name": ALONE["model"], "lazy": True}}, {}, match=match)


def test_a_budget_that_an_own_module_cannot_count_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"budget: the FLOPs of 'baseline' cannot be counted, .*: use steps, tokens or seconds"):
        study(ALONE, factors={"model.width": [2]}, budget={"flops": 100}).plan()
    with pytest.raises(AssertionError, match="budget: batches have no tokens, which are int64 values other than 0: use steps or seconds"):
        results_of(study(ALONE, factors={"model.width": [2]}, budget={"tokens": 100}, metric="loss"))


def test_a_module_with_dataloaders_of_its_own_is_reported_as_it_was_trained() -> None:
    results = results_of(study(ALONE, factors={"model.late": [True]}, metric="loss"))
    assert results.complete
    assert [results.parameters(name) for name in ("baseline", "late=true")] == [4, 8]
    found = {text: holds for holds, text in checklist(results)}
    assert found["the plan counted other parameters than were trained, in late=true"] is False
