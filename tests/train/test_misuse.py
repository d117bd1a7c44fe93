"""A mistake gets one message, and status 2."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.utilities import rank_zero_only

Command = Callable[..., Any]


STOPPING = "error: trainer.callbacks: EarlyStopping has no argument 'moniter'. Did you mean 'monitor'?"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "missing model: add --config RECIPE"),
        (["--config", "tini.yaml"], "no recipe of that name comes with attnkit. Did you mean 'tiny.yaml'?"),
        (["--config", "tiny.yaml", "--config", "typo.yaml"], "unknown argument 'modle.name'. Did you mean 'model'?"),
        (["--config", "tiny.yaml", "--modle.stack", "x"], "unknown argument 'modle.stack'. Did you mean 'model'?"),
        (["--config", "tiny.yaml", "--model", "seqseq"], "model: unknown task 'seqseq'. Did you mean 'seq2seq'?"),
        (["--config", "tiny.yaml", "--data", "text_pair"], "data: unknown dataset 'text_pair'. Did you mean 'text_pairs'?"),
        (["--config", "tiny.yaml", "--data", "cmudict"], "data: unknown dataset 'cmudict'. 'cmudict' is a corpus."),
        (["--config", "tiny.yaml", "--data.corpus", "kjv"], "the corpus 'kjv' holds running text, not pairs of texts. Corpora of pairs of"),
        (["--config", "tiny.yaml", "--trainer.max_epoch", "3"], "unknown argument 'trainer.max_epoch'. Did you mean 'trainer.max_epochs'?"),
        (["--config", "tiny.yaml", "--config", "trainer.yaml"], "unknown argument 'trainer.max_epoch'. Did you mean 'trainer.max_epochs'?"),
        (["--config", "tiny.yaml", "--trainer.epochs", "3"], "Did you mean 'trainer.max_epochs' or 'trainer.min_epochs'?"),
        (["--config", "tiny.yaml", "--seed", "3"], "unknown argument 'seed'. Did you mean 'data.seed' or 'seed_everything'?"),
        (["--config", "tiny.yaml", "--attention", "additive"], "unknown argument 'attention'. Did you mean 'model.stack.attention'?"),
        (["--config", "tiny.yaml", "--max_epochs", "3"], "unknown argument 'max_epochs'. Did you mean 'trainer.max_epochs'?"),
        (["--config", "tiny.yaml", "--trainer.accelerator", "gpu"], "torch finds no GPU: set it to auto or cpu"),
        (
            ["--config", "tiny.yaml", "--model.stack.attention", "cosine", "--model.stack.backend", "flex"],
            "attnkit: error: backend 'flex' cannot compute this call: ",
        ),
        (["--config", "tiny.yaml", "--trainer.max_epochs", "x"], "trainer.max_epochs must be int or null, but is x"),
        (["--config", "tiny.yaml", "--trainer.callbacks", "EarlyStoping"], "but is EarlyStoping. Did you mean 'EarlyStopping'?"),
        (["--config", "tiny.yaml", "--trainer.callbacks", "[{class_path: EarlyStopping, init_args: {moniter: a}}]"], STOPPING),
        (["--config", "tiny.yaml", "--trainer.callbacks", "EarlyStopping", "--trainer.callbacks.moniter", "a"], STOPPING),
        (["--config", "tiny.yaml", "--config", "callback.yaml"], STOPPING),
        (["--config", "tiny.yaml", "--trainer.callbacks", "EarlyStopping"], "error: trainer.callbacks: EarlyStopping needs monitor"),
        (
            ["--config", "tiny.yaml", "--trainer.callbacks+=EarlyStopping", "--trainer.callbacks.patience=soon"],
            "error: trainer.callbacks: EarlyStopping: patience must be int, but is soon.",
        ),
        (
            ["--config", "tiny.yaml", "--trainer.callbacks", "lightning.pytorch.callbacks.EarlyStoping"],
            "there is no class 'lightning.pytorch.callbacks.EarlyStoping' (module 'lightning.pytorch.callbacks' has no attribute "
            "'EarlyStoping'). Did you mean 'EarlyStopping'?",
        ),
        (
            ["--config", "tiny.yaml", "--trainer.callbacks", "attnkit.callback.Divergance"],
            "there is no class 'attnkit.callback.Divergance' (module 'attnkit.callback' has no attribute 'Divergance'). Did you mean "
            "'Divergence'?",
        ),
        (
            ["--config", "tiny.yaml", "--trainer.callbacks", "torch.nn.Linear"],
            "trainer.callbacks: torch.nn.Linear is not a subclass of Callback",
        ),
        (
            ["--config", "tiny.yaml", "--trainer.callbacks", "[{classpath: EarlyStopping}]"],
            "trainer.callbacks: Callback has no argument 'classpath'. Did you mean 'class_path'?",
        ),
        (["--config", "tiny.yaml", "--trainer.logger", "{class_path: CSVLogger, init_args: {save_dirr: a}}"], "Did you mean 'save_dir'?"),
        (["--config", "tiny.yaml", "--trainer", "3"], "error: trainer must be a mapping, but is 3"),
        (["--config", "tiny.yaml", "--trainer.precision", "bf-16"], "but is bf-16. Did you mean 'bf16'?"),
        (["--config", "tiny.yaml", "--trainer.accelerator", "gpus"], "trainer: You selected an invalid accelerator name"),
        (["--config", "tiny.yaml", "--trainer.precision", "16-mixed"], "16-mixed needs a GPU; on a CPU, use bf16-mixed or 32-true"),
        (["--config", "tiny.yaml", "--trainer.precision", "transformer-engine"], "pip install 'transformer-engine[pytorch]'"),
        (["--config", "tiny.yaml", "--seed_everything", "x"], "seed_everything must be bool or int, but is x"),
        (["--config", "tiny.yaml", "--seed_everything", "-1"], "seed_everything must be from 0 to 4294967295, but is -1"),
        (
            ["--config", "tiny.yaml", "--model.optimizer.lr", "nan"],
            "model.optimizer: optimizer 'adamw': lr must be float, but is 'nan' (str)",
        ),
        (["--config", "tiny.yaml", "--model.optimizer.lr", ".inf"], "model.optimizer: optimizer 'adamw': lr must be finite, but is inf"),
        (["--config", "tiny.yaml", "--model.optimizer.lr", "-1"], "model.optimizer: adamw: Invalid learning rate: -1"),
        (["--config", "tiny.yaml", "--trainer.gradient_clip_val", ".nan"], "trainer.gradient_clip_val must be a number, but is nan"),
        (["--config", "tiny.yaml", "--resum"], "unknown argument 'resum'. Did you mean 'resume'?"),
        (["--config", "tiny.yaml", "--data.corpus", "pairs.TSV"], "there is no data file 'pairs.TSV'"),
        (["--config", "tiny.yaml", "extra"], "unknown argument 'extra'"),
        (["--config", "tiny.yaml", "--model.stack.num_heads", "3"], "3"),
        (["--config", "tiny.yaml", "--model.stack.attention.hidden_dim", "0"], "hidden_dim must be positive, but is 0"),
        (
            ["--config", "tiny.yaml", "--model.stack.position", "learned", "--model.stack.position.max_length", "2"],
            "tokens does not fit into positions that end at 2; shorten it, raise the position's max_length",
        ),
        (
            ["--config", "tiny.yaml", "--model.stack.position", "rotary", "--model.stack.attention", "additive"],
            "position 'rotary' does not work with attention 'additive'",
        ),
        (["--config", "tiny.yaml", "--data.corpus.train", "nowhere.tsv"], "there is no data file 'nowhere.tsv'"),
        (["--ckpt_path", "nowhere.ckpt"], "no checkpoint at nowhere.ckpt"),
        (["--config", "tiny.yaml", "--ckpt_path", "best"], "`fit` needs the path of a checkpoint"),
        (
            ["--config", "tiny.yaml", "--trainer.callbacks", "LearningRateFinder"],
            "set the learning rate yourself; for attnkit's tasks",
        ),
        (
            [
                "--config",
                "tiny.yaml",
                "--trainer.callbacks",
                "StochasticWeightAveraging",
                "--trainer.callbacks.swa_lrs",
                "0.1",
                "--trainer.callbacks.device",
                "cpu",
            ],
            "StochasticWeightAveraging averages after the last checkpoint is written, so no file would hold the average",
        ),
        *(
            (
                ["--config", "tiny.yaml", "--trainer.callbacks", "EMAWeightAveraging", "--trainer.precision", precision],
                f"with precision {precision}, each validation would round the weights that EMAWeightAveraging averages",
            )
            for precision in ("bf16-true", "64-true")
        ),
        *(
            (["--config", "tiny.yaml", f"--trainer.{key}", "0"], f"trainer.{key} must be at least 1, but is 0")
            for key in ("accumulate_grad_batches", "check_val_every_n_epoch", "val_check_interval")
        ),
        (
            ["--config", "tiny.yaml", "--trainer.val_check_interval", "99"],
            "trainer: `val_check_interval` (99) must be less than or equal",
        ),
        (["--config", "tiny.yaml", "--trainer.callbacks", "DeviceStatsMonitor"], "trainer: `DeviceStatsMonitor` cannot log CPU stats"),
    ],
)
def test_a_mistake_gets_one_message_and_status_2(
    attnkit: Command, tiny: str, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    for module in ("accelerators.cpu", "callbacks.device_stats_monitor"):
        monkeypatch.setattr(f"lightning.pytorch.{module}._PSUTIL_AVAILABLE", False)
    Path("typo.yaml").write_text("modle: {name: seq2seq}")
    Path("trainer.yaml").write_text("trainer: {max_epoch: 3}")
    Path("callback.yaml").write_text("trainer: {callbacks: [{class_path: EarlyStopping, init_args: {moniter: a}}]}")
    outcome = attnkit("fit", *arguments)
    assert outcome.status == 2
    (error,) = [line for line in outcome.err.splitlines() if line.startswith("attnkit: error: ")]
    assert message in error
    for internal in ("Traceback", "Parser key", "Namespace", "NestedArg"):
        assert internal not in outcome.err


def test_a_checkpoint_that_lightning_saved_on_slurm_is_not_continued_unasked(
    attnkit: Command, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NTASKS", "JOB_ID", "JOB_NAME"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    Path("hpc_ckpt_1.ckpt").touch()
    outcome = attnkit("fit", "--config", tiny)
    assert outcome.status == 2
    path = Path("hpc_ckpt_1.ckpt").absolute()
    assert f"Lightning would continue {path}, which one of its runs saved when SLURM sent it a signal. Pass --ckpt_path" in outcome.err


def test_a_signal_of_slurm_that_would_end_the_run_is_rejected(attnkit: Command, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NTASKS", "JOB_ID", "JOB_NAME"):
        monkeypatch.setenv(f"SLURM_{name}", "1")
    for name in ("PROCID", "LOCALID", "NODEID"):
        monkeypatch.setenv(f"SLURM_{name}", "0")
    plugin = "lightning.pytorch.plugins.environments.SLURMEnvironment"
    outcome = attnkit("fit", "--config", tiny, "--trainer.plugins", plugin, "--trainer.plugins.requeue_signal", "SIGUSR2")
    assert outcome.status == 2
    assert "trainer.plugins: requeue_signal must be SIGUSR1 or SIGTERM, but is SIGUSR2" in outcome.err


def test_a_single_process_that_the_environment_numbers_as_another_than_the_first_is_rejected(
    attnkit: Command, tiny: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would train without logs, in the folder of the first run, whose checkpoints it would replace."""
    monkeypatch.setattr(rank_zero_only, "rank", 1)  # Lightning reads the environment once
    for name in ("RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_RANK", "1")
    outcome = attnkit("fit", "--config", tiny)
    assert outcome.status == 2
    assert "a single process, but LOCAL_RANK=1 in the environment numbers it as one of several: start it with `env -u" in outcome.err
    assert not list(Path("runs").rglob("*.ckpt"))


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
def test_evaluation_requires_a_checkpoint(attnkit: Command, tiny: str, command: str) -> None:
    outcome = attnkit(command, "--config", tiny)
    assert outcome.status == 2
    assert f"`{command}` needs a trained model: add --ckpt_path PATH" in outcome.err


@pytest.mark.parametrize("command", ["validate", "test", "predict"])
@pytest.mark.parametrize("word", ["best", "last"])
def test_evaluation_requires_an_explicit_checkpoint_path(attnkit: Command, tiny: str, command: str, word: str) -> None:
    outcome = attnkit(command, "--config", tiny, "--ckpt_path", word)
    assert outcome.status == 2
    assert f"`{command}` needs the path of a checkpoint, which `fit` prints: --ckpt_path FOLDER/{word}.ckpt" in outcome.err


@pytest.mark.parametrize("tuner", ["BatchSizeFinder", "LearningRateFinder"])
def test_tuners_are_rejected_for_a_resumed_run(attnkit: Command, trained: Path, tiny: str, tuner: str) -> None:
    outcome = attnkit("fit", "--ckpt_path", trained, "--trainer.max_epochs", 2, "--trainer.callbacks", tuner)
    assert outcome.status == 2
    assert f"trainer.callbacks: {tuner} would restart the resumed run from its first step. Remove it; the value" in outcome.err
