import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningCLI

from attnkit import half
from attnkit.callback.finite_check import KEPT
from attnkit.checkpoint import load_checkpoint
from attnkit.recipe import read_yaml
from attnkit.strategy import data_share
from attnkit.task import Task
from attnkit.train.output import gather_lines
from attnkit.train.runs import new_run
from tests.cli.conftest import write_tiny_recipe
from tests.commands import run
from tests.train.conftest import printed_recipe

Command = Callable[..., Any]
SHORT = ["--trainer.max_steps", 1, "--trainer.limit_val_batches", 0]


def test_fit_prints_the_components_and_the_next_commands(attnkit: Command, tiny: str) -> None:
    outcome = attnkit("fit", "--config", tiny, "--model.stack.attention", "cosine", "--model.stack.position", "learned")
    assert outcome.status == 0
    assert (
        "model: seq2seq (max_length=6)\n  stack: encoder_decoder (d_model=8, num_heads=2, num_layers=1)\n    attention: cosine\n"
        in outcome.out
    )
    assert "    position: learned\n" in outcome.out
    assert "note: model.stack.attention: cosine replaces additive, so hidden_dim=4 no longer applies" in outcome.err
    path = "runs/tiny/version_0/checkpoints/best.ckpt"
    assert f"Checkpoint: {path}\n  attnkit test --ckpt_path {path}\n  attnkit generate {path} TEXT...\n" in outcome.out
    run = Path("runs/tiny/version_0")
    assert (run / "metrics.csv").exists()
    assert list(run.glob("events.out.tfevents*"))
    assert (run / "checkpoints/last.ckpt").exists()
    assert Task.load(path).hparams["stack"]["attention"] == {"name": "cosine"} | Task.load(path).hparams["stack"]["attention"]


def test_without_validation_data_fit_notes_it_and_suggests_no_test(attnkit: Command, tiny: str) -> None:
    Path("only.tsv").write_text("ab\tba\nbc\tcb\nca\tac\n")
    fit = ("fit", "--config", tiny, "--data.corpus", "only.tsv", "--trainer.max_steps=3")
    outcome = attnkit(*fit)
    assert outcome.status == 0, outcome.err
    assert "note: there are no validation data, so there are no validation metrics and no best checkpoint." in outcome.err
    assert "ModelCheckpoint" not in outcome.err + outcome.out
    assert "Total length" not in outcome.err + outcome.out
    path = "runs/tiny/version_0/checkpoints/last.ckpt"
    assert f"Checkpoint: {path}\n  attnkit generate {path} TEXT...\n" in outcome.out
    for command, part in (("validate", "validation"), ("test", "test")):
        outcome = attnkit(command, "--ckpt_path", path)
        assert outcome.status == 2
        assert f"there is no {part} data: set data.corpus.{part} to a file or a hub data set" in outcome.err
    outcome = attnkit(*fit, "--data.corpus.validation_fraction=0.4")
    assert outcome.status == 0, outcome.err
    assert "no validation data" not in outcome.err
    assert Path("runs/tiny/version_1/checkpoints/best.ckpt").exists()


@pytest.mark.parametrize(("precision", "native", "says"), [("bf16-mixed", False, 1), ("bf16-mixed", True, 0), ("32-true", False, 0)])
def test_fit_notes_a_processor_without_bfloat16(
    precision: str, native: bool, says: int, attnkit: Command, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("half", "train.run"):
        monkeypatch.setattr(f"attnkit.{module}.has_bfloat16", lambda: native)
    opened: list[bool] = []
    monkeypatch.setattr(Task, "on_train_end", lambda task: opened.append(half._is_open))
    outcome = attnkit("fit", "--config", tiny, *SHORT, "--trainer.precision", precision)
    assert outcome.status == 0, outcome.err
    assert outcome.err.count("note: this processor has no bfloat16 instructions") == says
    assert opened == [not native]


def test_a_second_run_gets_a_new_version_folder(attnkit: Command, tiny: str) -> None:
    for number in range(2):
        assert attnkit("fit", "--config", tiny, *SHORT).status == 0
        assert Path(f"runs/tiny/version_{number}/config.yaml").exists()


@pytest.mark.parametrize("has_stepped", [False, True])
def test_a_run_that_stops_at_a_step_that_is_not_finite_keeps_its_recipe(has_stepped: bool, tmp_path: Path) -> None:
    run = tmp_path / "version_0"

    def stop() -> None:
        (run / "config.yaml").touch()
        if has_stepped:
            (run / KEPT).touch()
        raise SystemExit(3)

    with pytest.raises(SystemExit), new_run(tmp_path):
        stop()
    assert (run / "config.yaml").exists() == run.exists() == has_stepped


def test_the_printed_recipe_uses_names_and_round_trips(attnkit: Command, tiny: str) -> None:
    first = printed_recipe(attnkit, "fit", "--config", tiny, "--model.stack.norm", "{name: rms_norm, eps: 1e-5}", "--trainer.max_epochs", 7)
    assert first["model"]["stack"]["norm"] == {"name": "rms_norm", "eps": 1e-5, "learned": True}
    assert first["trainer"]["max_epochs"] == 7
    assert first["seed_everything"] == 42
    assert "class_path" not in yaml.safe_dump(first)
    Path("again.yaml").write_text(yaml.safe_dump(first), encoding="utf-8")
    assert printed_recipe(attnkit, "fit", "--config", "again.yaml") == first


def test_the_saved_recipe_is_the_printed_one(attnkit: Command, tiny: str) -> None:
    printed = printed_recipe(attnkit, "fit", "--config", tiny, *SHORT)
    attnkit("fit", "--config", tiny, *SHORT)
    assert read_yaml(Path("runs/tiny/version_0/config.yaml").read_text(), where="") == printed


def test_recipes_are_merged_and_flags_take_precedence(attnkit: Command, tiny: str) -> None:
    Path("more.yaml").write_text("model: {stack: {d_model: 16}, label_smoothing: 0.2}\ntrainer: {max_epochs: 5}")
    merged = printed_recipe(
        attnkit, "fit", "--model.label_smoothing", "0.3", "--trainer.max_epochs=9", "--config", tiny, "--config", "more.yaml"
    )
    assert merged["model"]["stack"]["d_model"] == 16
    assert merged["model"]["stack"]["attention"]["hidden_dim"] == 4
    assert merged["model"]["label_smoothing"] == 0.3
    assert merged["trainer"]["max_epochs"] == 9
    assert merged["trainer"]["accelerator"] == "cpu"


def test_a_recipes_callbacks_replace_the_default_checkpoints(attnkit: Command, tiny: str) -> None:
    Path("callbacks.yaml").write_text(
        "trainer: {callbacks: [{class_path: ModelCheckpoint, init_args: {filename: mine}}, {class_path: LearningRateMonitor}]}"
    )
    assert attnkit("fit", "--config", tiny, "--config", "callbacks.yaml").status == 0
    assert [p.name for p in Path("runs").rglob("*.ckpt")] == ["mine.ckpt"]
    assert "lr-" in Path("runs/tiny/version_0/metrics.csv").read_text()


def test_help_is_short_and_names_the_components(attnkit: Command) -> None:
    out = attnkit("fit", "--help").out
    assert len(out.splitlines()) < 40
    assert "  attention      additive, " in out
    assert "--trainer.max_epochs (default: null)\n      " in attnkit("fit", "--trainer.help").out


@pytest.mark.parametrize(
    ("arguments", "start"),
    [
        (["--model.stack.attention.help", "additive"], "attention.additive: "),
        (["--config", "tiny.yaml", "--model.stack.attention.help"], "attention.additive: "),
        (["--model", "seq2seq", "--model.stack.cross_attention.help"], "attentions:\n"),
        (["--model.help", "seq2seq"], "task.seq2seq: "),
        (["--data.help"], "datasets:\n"),
    ],
)
def test_help_describes_a_slot(attnkit: Command, tiny: str, arguments: list[str], start: str) -> None:
    outcome = attnkit("fit", *arguments)
    assert outcome.status == 0
    assert outcome.out.startswith(start)


def test_help_rejects_an_unknown_slot(attnkit: Command) -> None:
    outcome = attnkit("fit", "--model.stack.atention.help", "additive")
    assert outcome.status == 2
    assert "have no slot 'atention'. Did you mean 'attention'?" in outcome.err


def test_barebones_trains_and_writes_nothing(attnkit: Command, tiny: str) -> None:
    before = {*Path().iterdir()}
    recipe = yaml.safe_load(Path(tiny).read_text())
    for key in ("enable_progress_bar", "enable_model_summary", "log_every_n_steps"):
        del recipe["trainer"][key]
    Path(tiny).write_text(yaml.safe_dump(recipe))
    outcome = attnkit("fit", "--config", tiny, "--trainer.barebones", "true")
    assert outcome.status == 0, outcome.err
    assert {*Path().iterdir()} == before


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path: Path) -> None:
    recipe = write_tiny_recipe(tmp_path)
    outcome = run("attnkit", "fit", "--config", recipe, "--trainer.strategy", "ddp", "--trainer.devices", "2", cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout.count("Checkpoint: ") == 1
    assert outcome.stdout.count("model: seq2seq") == 1
    assert [p.name for p in tmp_path.joinpath("runs/tiny").iterdir()] == ["version_0"]


def test_private_lightning_interfaces_of_the_command_line_exist() -> None:
    assert "_parse_ckpt_path" in vars(LightningCLI)  # overridden: a checkpoint is read as a layer of the recipe
    assert re.search(r"self\._parse_ckpt_path\(\)", Path(str(sys.modules[LightningCLI.__module__].__file__)).read_text())
    for hook in ("add_core_arguments_to_parser", "parse_arguments", "instantiate_classes", "instantiate_trainer"):
        assert callable(getattr(LightningCLI, hook))
    assert isinstance(Trainer(logger=False, accelerator="cpu", enable_checkpointing=False).strategy.checkpoint_io, object)


def test_non_finite_training_has_its_own_exit_status(attnkit: Any, tiny: str) -> None:
    outcome = attnkit("fit", "--config", tiny, "--model.optimizer", "sgd", "--model.optimizer.lr", 1e38, "--trainer.max_epochs", 9)
    assert outcome.status == 3
    assert "attnkit: error: " in outcome.err
    assert "not finite" in outcome.err.splitlines()[-1]
    saved = [load_checkpoint(path) for path in Path("runs/tiny/version_0/checkpoints").glob("*.ckpt")]
    assert all(weight.isfinite().all() for checkpoint in saved for weight in checkpoint["state_dict"].values())


def test_early_stopping_and_best_checkpoints_accept_any_metric(attnkit: Any, tiny: str) -> None:
    watch = {"class_path": "EarlyStopping", "init_args": {"monitor": "val/token_accuracy", "mode": "max", "patience": 1}}
    keep = {"monitor": "val/perplexity", "save_top_k": 2, "filename": "{epoch}", "save_last": False}
    recipe = yaml.safe_load(Path(tiny).read_text())
    recipe["trainer"] |= {"callbacks": [watch, {"class_path": "ModelCheckpoint", "init_args": keep}], "max_epochs": 30}
    recipe["model"]["optimizer"] = {"name": "sgd", "lr": 0.0}
    Path("early.yaml").write_text(yaml.safe_dump(recipe))
    assert attnkit("fit", "--config", "early.yaml").status == 0
    assert sorted(path.name for path in Path("runs/early/version_0/checkpoints").iterdir()) == ["epoch=0.ckpt", "epoch=1.ckpt"]
    watch["init_args"]["monitor"] = "val/tokn_accuracy"
    Path("early.yaml").write_text(yaml.safe_dump(recipe))
    wrong = attnkit("fit", "--config", "early.yaml")
    assert wrong.status == 2
    assert "`val/tokn_accuracy`" in wrong.err
    assert "`val/token_accuracy`" in wrong.err
    recipe["trainer"]["callbacks"] = [{"class_path": "ModelCheckpoint", "init_args": keep | {"monitor": "val/perplexty"}}]
    Path("early.yaml").write_text(yaml.safe_dump(recipe))
    wrong = attnkit("fit", "--config", "early.yaml")
    assert wrong.status == 2
    assert "val/perplexty" in wrong.err
    assert "val/perplexity" in wrong.err


def test_one_flag_averages_weights_which_later_commands_use(attnkit: Any, tiny: str) -> None:
    flags = ("--trainer.callbacks+=EMAWeightAveraging", "--trainer.callbacks.decay=0.5", "--trainer.max_epochs=3")
    outcome = attnkit("fit", "--config", tiny, *flags)
    assert outcome.status == 0, outcome.err
    assert ".ckpt (averaged weights)" in outcome.out
    path = Path("runs/tiny/version_0/checkpoints/last.ckpt")
    if not path.exists():  # the last step may be that of `best.ckpt`
        path = next(path.parent.iterdir())
    checkpoint = torch.load(path, weights_only=True)
    averaged, current = checkpoint["state_dict"], checkpoint["current_model_state"]
    loaded = Task.load(path).state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in averaged.items())
    assert any(not torch.equal(current[name], value) for name, value in averaged.items())
    assert attnkit("export", path, "--out", "m.safetensors").out == "Wrote m.safetensors (averaged weights)\n"


def test_averages_that_were_never_updated_are_reported(attnkit: Any, tiny: str) -> None:
    start = "--trainer.callbacks.update_starting_at_step=1000"
    outcome = attnkit("fit", "--config", tiny, "--trainer.callbacks+=EMAWeightAveraging", start)
    assert ".ckpt (averaged weights, not yet updated: those of the initial model)\n" in outcome.out, outcome.err


def test_a_fit_without_batches_is_rejected(attnkit: Any, tiny: str) -> None:
    outcome = attnkit("fit", "--config", tiny, "--trainer.limit_train_batches", 0)
    assert (outcome.status, outcome.out) == (2, "")
    assert "error: trainer.limit_train_batches is 0, so nothing would be trained; to validate, use attnkit validate" in outcome.err
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("flags", "is_missing"),
    [
        (["--trainer.max_epochs", 1, "--trainer.check_val_every_n_epoch", 2], True),
        (["--trainer.max_epochs", 2, "--trainer.check_val_every_n_epoch", 2], False),  # Lightning warns after the first epoch
        (["--trainer.fast_dev_run", 1], False),
    ],
)
def test_a_run_that_ends_before_its_first_validation_notes_it(attnkit: Command, tiny: str, flags: list[Any], is_missing: bool) -> None:
    outcome = attnkit("fit", "--config", tiny, *flags)
    assert outcome.status == 0, outcome.err
    assert "could not find the monitored key" not in outcome.err
    assert outcome.err.count("the run ended before its first validation, so there are no validation metrics and no best.ckpt") == is_missing


def test_fit_counts_validation_inputs_also_in_the_training_data(attnkit: Command, tiny: str, caplog: pytest.LogCaptureFixture) -> None:
    Path("other.tsv").write_text("source\ttarget\nabc\tABC\nbac\tBAC\n")
    flags = ["--data.corpus.validation", "other.tsv", "--trainer.max_epochs", 1]
    attnkit("fit", "--config", tiny, *flags)
    assert "validation: 2 examples; 1 also in the training data, no unknown tokens" in caplog.text
    assert caplog.text.count("also in the training data") == 1
    assert attnkit("validate", "--ckpt_path", "runs/tiny/version_0/checkpoints/last.ckpt").status == 0
    assert caplog.text.count("also in the training data") == 1
    data = [
        "--data",
        "labelled_text",
        "--data.corpus",
        "words.tsv",
        "--data.corpus.columns",
        "[source, target]",
        "--data.classes",
        "[ABC, BA, CAB, BAC]",
        *flags,
    ]
    model = ["--model", "classification", "--model.stack", "{name: encoder, d_model: 8, num_layers: 1, num_heads: 2}"]
    outcome = attnkit("fit", *model, *data, "--data.tokenizer", "character", "--trainer.log_every_n_steps", 1)
    assert outcome.status == 0, outcome.err
    assert "validation: 2 texts; 1 also in the training data, no unknown tokens" in caplog.text


@pytest.mark.parametrize("tensor_parallel", [False, True])
def test_predictions_of_several_processes_keep_the_input_order(monkeypatch: pytest.MonkeyPatch, tensor_parallel: bool) -> None:
    trainers = [
        SimpleNamespace(
            world_size=2, is_global_zero=rank == 0,
            distributed_sampler_kwargs={"num_replicas": 1, "rank": 0} if tensor_parallel else {"num_replicas": 2, "rank": rank},
        )
        for rank in (0, 1)
    ]  # fmt: skip
    whole = [["a", "b", "c"], ["d"], ["e", "f"]]
    shares = [whole, whole] if tensor_parallel else [[batch[rank::2] for batch in whole] for rank in (0, 1)]

    def gather(found: list[Any], own: Any) -> None:
        found[:] = [(data_share(trainer).rank, share) for trainer, share in zip(trainers, shares, strict=True)]  # type: ignore[arg-type]
        assert own in found

    monkeypatch.setattr(torch.distributed, "all_gather_object", gather)
    lines = [gather_lines(trainer, share) for trainer, share in zip(trainers, shares, strict=True)]  # type: ignore[arg-type]
    assert lines == [list("abcdef"), []]
