"""A stranger's repository is trained, resumed, tested and checked."""

import os
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import attnkit as package
from attnkit.cli import AttnkitCLI
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError
from attnkit.testing import Check, checks_for
from tests.cli.stranger import MAIN, forget, stranger
from tests.commands import run

Command = Callable[..., Any]
pytestmark = pytest.mark.usefixtures("repository")


def test_main_py_trains_and_prints_how_to_use_the_checkpoint(repository: Path) -> None:
    assert len(MAIN.strip().splitlines()) == 3
    done = run("main", "fit", "--config", "mine.yaml", cwd=repository)
    assert done.returncode == 0, done.stderr
    assert "attention: manhattan (width=2.0)" in done.stdout
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    printed = f"python main.py test --ckpt_path {path} --imports stranger_attention"
    assert f"Checkpoint: {path}\n  {printed}\n" in done.stdout
    assert "test/loss" in run(*printed.replace("python main.py", "main").split(), cwd=repository).stdout
    wrong = run("main", "fit", "--model.d_modle", "3", cwd=repository)
    assert wrong.returncode == 2
    assert "Did you mean 'd_model'?" in wrong.stderr
    assert "Traceback" not in wrong.stderr


def test_a_custom_module_is_trained_resumed_and_tested(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
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


def test_a_resumed_run_keeps_the_order_and_dropout_of_an_uninterrupted_one(repository: Path) -> None:
    fit = ["fit", "--config", "mine.yaml", "--data.shuffle", "true", "--model.dropout", "0.5"]
    whole = stranger(*fit, "--trainer.max_epochs", "4")
    stranger(*fit, "--trainer.max_epochs", "2")
    resumed = stranger(*fit, "--trainer.max_epochs", "4", "--resume")
    assert resumed.trainer.global_step == whole.trainer.global_step == 12
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name])


def test_the_attnkit_command_accepts_the_same_classes_by_path(attnkit: Command, repository: Path) -> None:
    flags = ["--config", "mine.yaml", "--model.class_path", "stranger_model.Net", "--data", "stranger_model.Numbers"]
    assert (outcome := attnkit("fit", *flags, "--data.batch_size", 6)).status == 0, outcome.err
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    printed = f"test --ckpt_path {path} --imports stranger_attention --imports stranger_model"
    assert f"  attnkit {printed}\n" in outcome.out
    assert attnkit("test", "--ckpt_path", path).status == 0
    forget()
    assert "--imports stranger_model" in attnkit("test", "--ckpt_path", path).err
    assert attnkit(*printed.split()).status == 0
    assert "load_from_checkpoint" in attnkit("generate", path, "x").err


def test_a_custom_module_may_have_a_registered_name(attnkit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(package.tasks._classes, "net", import_module("stranger_model").Net)
    outcome = attnkit("fit", "--config", "mine.yaml", "--model", "net", "--data", "stranger_model.Numbers")
    assert outcome.status == 0, outcome.err
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    assert torch.load(path, weights_only=True)["attnkit"]["task"] == "net"
    assert attnkit("test", "--ckpt_path", path).status == 0
    for command in (("generate", path, "x"), ("export", path, "--out", "net.safetensors")):
        outcome = attnkit(*command)
        assert (outcome.status, "holds net, a user's own LightningModule: use its load_from_checkpoint" in outcome.err) == (2, True)


def test_a_custom_attention_passes_attnkit_check(attnkit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def rules_of_its_own(*words: str, docs: bool) -> list[Check]:
        return [rule for rule in checks_for(*words, docs=docs) if not re.search(r"\[|compiles", rule.name)]

    # without the layers of each position, which take most of the time
    monkeypatch.setattr("attnkit.cli.check.checks_for", rules_of_its_own)
    outcome = attnkit("check", "manhattan", "--imports", "stranger_attention")
    assert outcome.status == 0, outcome.out
    assert "13 of 13 checks passed" in outcome.out
    monkeypatch.setattr(import_module("stranger_attention").Manhattan, "score", lambda self, query, key: query @ key.mT + key.mean())
    assert attnkit("check", "manhattan").status == 1


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
def test_mistakes_in_custom_classes_are_explained(args: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        stranger(*args)


def test_a_subclass_can_be_selected() -> None:
    assert type(stranger("--model", "stranger_model.Wider", "--trainer.logger", "false", run=False).model).__name__ == "Wider"


@pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning")
def test_the_trainer_of_a_fit_tests_the_averaged_weights_of_a_checkpoint() -> None:
    fitted = stranger("fit", "--config", "mine.yaml", "--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.5")
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    fitted.trainer.test(fitted.model, fitted.datamodule, ckpt_path=path, weights_only=True)
    loaded = import_module("stranger_model").Net.load_from_checkpoint(path, weights_only=True)
    assert all(torch.equal(weight, fitted.model.state_dict()[name]) for name, weight in loaded.state_dict().items())


def test_a_program_that_runs_the_trainer_keeps_lightnings_handling_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"NTASKS": "1", "JOB_ID": "7", "JOB_NAME": "job", "PROCID": "0", "LOCALID": "0", "NODEID": "0"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    Path("hpc_ckpt_1.ckpt").touch()  # `trainer.fit` may name another one
    trainer = stranger("--trainer.logger", "false", "--trainer.accelerator", "cpu", run=False).trainer
    assert trainer._accelerator_connector.cluster_environment.auto_requeue


def test_arguments_may_be_a_mapping_as_in_lightning_cli() -> None:
    module = import_module("stranger_model")
    trainer = {"accelerator": "cpu", "max_epochs": 1, "enable_progress_bar": False, "logger": False, "log_every_n_steps": 1}
    content = {"model": {"d_model": 16}, "data": {"class_path": "stranger_model.Numbers", "init_args": {"size": 12}}, "trainer": trainer}
    fitted = AttnkitCLI(module.Net, module.Numbers, args={"fit": content})
    assert (fitted.trainer.global_step, fitted.model.hparams["d_model"]) == (3, 16)
    assert AttnkitCLI(module.Net, module.Numbers, args=content, run=False).datamodule.size == 12
    with pytest.raises(ConfigurationError, match=r"args must have the section of one command .* its keys are: model, data, trainer"):
        AttnkitCLI(module.Net, module.Numbers, args=content)
    with pytest.raises(ConfigurationError, match=r"no argument 'd_modle'. Did you mean 'd_model'"):
        AttnkitCLI(module.Net, module.Numbers, args={"model": {"d_modle": 16}}, run=False)
    with pytest.raises(ConfigurationError, match=r"trainer.callbacks\[0\] must be plain data"):
        AttnkitCLI(module.Net, module.Numbers, args={"trainer": {"callbacks": [object()]}}, run=False)


def test_an_argument_without_a_source_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(import_module("stranger_model").Numbers, "num_classes")
    with pytest.raises(ConfigurationError, match=r"needs num_classes: add it, .*, or give the data module an"):
        stranger("fit")
    built = stranger("--model.num_classes", "3", "--trainer.logger", "false", run=False)
    assert built.model.hparams["num_classes"] == 3


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


def test_a_task_checkpoint_cannot_pose_as_that_of_a_custom_class(attnkit: Command, trained: Path, tmp_path: Path) -> None:
    checkpoint = torch.load(trained, weights_only=True)
    checkpoint["attnkit"]["arguments"] = {**checkpoint["hyper_parameters"], "max_length": 12}
    for task in ("seq2seq", "attnkit.task.seq2seq.Seq2Seq"):  # what describes a task is compared with its weights before it is built
        checkpoint["attnkit"]["task"] = task
        torch.save(checkpoint, tmp_path / "posing.ckpt")
        printed = read_yaml(attnkit("fit", "--ckpt_path", "posing.ckpt", "--print_config").out, where="")
        assert printed["model"]["max_length"] == 6


def test_fsdp2_names_the_hook_a_module_lacks(repository: Path) -> None:
    with pytest.raises(ConfigurationError, match="override `configure_model` in Net, and call torch's `fully_shard`"):
        stranger("fit", "--config", "mine.yaml", "--trainer.strategy", "fsdp2")
