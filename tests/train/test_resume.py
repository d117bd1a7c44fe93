"""`attnkit fit --resume`: real kills of real commands."""

import os
import signal
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from attnkit.cli.main import main
from attnkit.lightning_internals import read_rows
from attnkit.ownership import owned, owner_of
from attnkit.task.seq2seq import Seq2Seq
from attnkit.train.logs import truncate_logs
from tests.cli.conftest import TINY
from tests.commands import run, started

Command = Callable[..., Any]
RUN = Path("runs/tiny/version_0")
SAVED = RUN / "checkpoints"


@pytest.fixture
def rng(seed: int) -> Random:
    return Random(seed)


def write_recipe(folder: Path, rng: Random) -> None:
    """Write a tiny recipe with dropout, averaged weights, several validations in an epoch and accumulated gradients."""
    folder.mkdir(exist_ok=True)
    words = ["".join(rng.choices("abcdef", k=rng.randint(1, 6))) for _ in range(100)]
    pairs = "".join(f"{word}\t{word[::-1].upper()}\n" for word in words)
    (folder / "words.tsv").write_text(f"source\ttarget\n{pairs}", encoding="utf-8")
    recipe: dict[str, Any] = yaml.safe_load(yaml.safe_dump(TINY))
    recipe["model"]["stack"]["dropout"] = 0.2
    recipe["data"]["batch_tokens"] = 64
    average = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging", "init_args": {"decay": 0.9}}
    save = {"class_path": "attnkit.callback.LastCheckpoint", "init_args": {"every_n_steps": 3}}
    best = {"class_path": "ModelCheckpoint", "init_args": {"filename": "best", "monitor": "val/loss"}}
    recipe["trainer"] |= {"max_epochs": 2, "val_check_interval": 0.5, "limit_val_batches": 2, "accumulate_grad_batches": 2}
    recipe["trainer"]["callbacks"] = [average, best, save]
    (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe), encoding="utf-8")


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return all that TensorBoard reads in a run's folder."""
    events = EventAccumulator(str(run), size_guidance={"scalars": 0}, purge_orphaned_data=False)
    events.Reload()
    tags = [tag for tag in events.Tags()["scalars"] if not tag.startswith("speed/")]
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in tags}


def exact_rows(path: Path) -> list[dict[str, str]]:
    """Return what is in a CSV file, but for what takes another time in each run."""
    return [{name: value for name, value in row.items() if not name.startswith("speed/")} for row in read_rows(path)[1]]


def assert_equal_runs(first: Path, second: Path) -> None:
    assert exact_rows(first / RUN / "metrics.csv") == exact_rows(second / RUN / "metrics.csv")
    assert scalars(first / RUN) == scalars(second / RUN)
    for name in ("last.ckpt", "best.ckpt"):
        one, other = (torch.load(folder / SAVED / name, weights_only=True) for folder in (first, second))
        assert one["global_step"] == other["global_step"]
        for key in ("state_dict", "current_model_state"):
            assert all(torch.equal(one[key][weight], value) for weight, value in other[key].items())


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing stopped."""
    folder = tmp_path_factory.mktemp("whole")
    write_recipe(folder, Random(0))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert main(["fit", "--config", "tiny.yaml"]) == 0
    return folder


@pytest.mark.slow
def test_a_killed_command_resumes_exactly(whole: Path, tmp_path: Path, rng: Random) -> None:
    killed = tmp_path / "killed"
    write_recipe(killed, Random(0))
    fit = ("attnkit", "fit", "--config", "tiny.yaml", "--resume")
    size = (whole / RUN / "metrics.csv").stat().st_size
    point = rng.randrange(size)
    print(f"kill at {point} of {size} bytes of metrics.csv")
    with started(*fit, cwd=killed) as process:
        metrics, saved = killed / RUN / "metrics.csv", killed / SAVED / "last.ckpt"  # before the first one, it would start anew
        until = time.monotonic() + 120
        while process.poll() is None and time.monotonic() < until and not (saved.exists() and metrics.stat().st_size >= point):
            time.sleep(0.01)
        time.sleep(rng.random() / 50)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert run(*fit, cwd=killed).returncode == 0
    assert [path.name for path in (killed / "runs/tiny").iterdir()] == ["version_0"]
    assert_equal_runs(whole, killed)


@pytest.mark.parametrize(
    ("number", "moment"),
    [(signal.SIGTERM, "objective"), (signal.SIGINT, "last of an epoch"), (signal.SIGINT, "validation_step")],
)
def test_a_signal_saves_a_checkpoint_before_exiting(
    number: signal.Signals, moment: str, attnkit: Command, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: Random
) -> None:
    stopped = tmp_path / "stopped"
    write_recipe(stopped, Random(0))
    monkeypatch.chdir(stopped)
    method = "validation_step" if moment == "validation_step" else "objective"
    call = 17 if moment == "last of an epoch" else rng.randrange(2, 20 if method == "objective" else 8)  # 18 batches; 4 of validations
    calls = iter(range(100))
    step = getattr(Seq2Seq, method)

    def signalled(*arguments: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return step(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Seq2Seq, method, signalled)
        outcome = attnkit("fit", "--config", "tiny.yaml")
    assert outcome.status == 128 + number
    steps = torch.load(SAVED / "last.ckpt", weights_only=True)["global_step"]
    assert steps > (call // 2 if method == "objective" else 3)  # when the step was complete; 4 come before the first validation
    assert "Ctrl-C again ends it at once" in outcome.err
    assert outcome.err.endswith(
        f"note: stopped by {number.name}\nIts state is saved. Continue with:\n  attnkit fit --config tiny.yaml --resume\n"
    )
    assert attnkit("fit", "--config", "tiny.yaml", "--resume").status == 0
    assert_equal_runs(whole, stopped)


@pytest.mark.parametrize("moment", ["setup", "validation_step"], ids=["before the model is built", "sanity check"])
def test_a_signal_before_the_first_step_leaves_nothing(
    moment: str, attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recipe(tmp_path, Random(0))
    monkeypatch.setattr(Seq2Seq, moment, lambda *_, **__: os.kill(os.getpid(), signal.SIGINT))
    outcome = attnkit("fit", "--config", "tiny.yaml")
    assert outcome.status == 130
    assert outcome.err.endswith("Nothing was saved, because no step finished. Start again with:\n  attnkit fit --config tiny.yaml\n")
    assert list((tmp_path / "runs/tiny").iterdir()) == []


def test_a_run_without_its_own_folder_is_resumed_by_checkpoint_path(
    attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recipe(tmp_path, Random(0))
    objective, calls = Seq2Seq.objective, iter(range(100))

    def signalled(*arguments: Any) -> Any:
        if next(calls) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return objective(*arguments)

    monkeypatch.setattr(Seq2Seq, "objective", signalled)
    outcome = attnkit("fit", "--config", "tiny.yaml", "--trainer.logger", "false")
    assert outcome.status == 130
    assert outcome.err.endswith("\n  attnkit fit --config tiny.yaml --trainer.logger false --ckpt_path checkpoints/last.ckpt\n")


def test_a_live_run_is_neither_resumed_nor_cleaned(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    SAVED.mkdir(parents=True)
    (RUN / "config.yaml").touch()
    (SAVED / ".last.ckpt.1.tmp").touch()
    (SAVED / "last.ckpt").write_bytes(b"PK damaged")
    with owned(RUN):
        outcome = attnkit("fit", "--config", "tiny.yaml", "--resume")
    assert outcome.status == 2
    assert f"runs/tiny/version_0 is in use by process {os.getpid()}, since 20" in outcome.err
    assert f"stop it with `kill {os.getpid()}` (it saves its state first)" in outcome.err
    assert {path.name for path in SAVED.iterdir()} == {".last.ckpt.1.tmp", "last.ckpt"}


def test_a_folder_without_versions_has_one_owner(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    (tmp_path / "checkpoints").mkdir()
    with owned(tmp_path / "checkpoints"):
        outcome = attnkit("fit", "--config", "tiny.yaml", "--trainer.logger", "false")
    assert outcome.status == 2
    assert "checkpoints is in use by process" in outcome.err


def test_failed_starts_leave_nothing_for_resume_to_find(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    assert attnkit("fit", "--config", "tiny.yaml", "--trainer.max_epochs", 1).status == 0
    assert attnkit("fit", "--config", "tiny.yaml", "--data.corpus", "missing.tsv").status != 0
    assert attnkit("fit", "--config", "tiny.yaml", "--trainer.accelerator", "abacus").status == 2
    assert [path.name for path in (tmp_path / "runs/tiny").iterdir()] == ["version_0"]
    (tmp_path / "runs/tiny/version_1").mkdir()  # left by an older version, or by a kill
    outcome = attnkit("fit", "--config", "tiny.yaml", "--resume", "--trainer.max_epochs", 1)
    assert outcome.status == 0
    assert "resuming from runs/tiny/version_0/checkpoints/last.ckpt" in outcome.err


def test_a_trial_run_leaves_no_folder(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    assert attnkit("fit", "--config", "tiny.yaml", "--trainer.fast_dev_run", "true").status == 0
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_simultaneous_runs_get_separate_folders_and_a_second_sigint_ends_one(tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    fit = ("attnkit", "fit", "--config", "tiny.yaml")
    with ExitStack() as ending:
        runs = [
            ending.enter_context(started(*fit, "--trainer.max_epochs", "1", "--model.optimizer.lr", f"0.{lr}", cwd=tmp_path))
            for lr in (1, 2, 3)
        ]
        endless = ("--trainer.max_epochs", "100000", "--model.optimizer.lr", "0.5")
        stopped = ending.enter_context(started(*fit, *endless, cwd=tmp_path, err=tmp_path / "err"))
        assert [process.wait(400) for process in runs] == [0, 0, 0]
        versions = tmp_path / "runs/tiny"
        [mine] = [path.parent for path in versions.glob("*/config.yaml") if "lr: 0.5" in path.read_text()]
        until = time.monotonic() + 300
        while not (mine / "checkpoints/last.ckpt").exists() and time.monotonic() < until:
            time.sleep(0.05)
        os.kill(stopped.pid, signal.SIGINT)
        while "Ctrl-C again" not in (tmp_path / "err").read_text() and stopped.poll() is None:
            time.sleep(0.01)
        os.kill(stopped.pid, signal.SIGINT)
        assert stopped.wait(60) in (-signal.SIGINT, 130)
    assert sorted(path.name for path in versions.iterdir()) == [f"version_{n}" for n in range(4)]
    for path in versions.iterdir():
        assert owner_of(path) is None
        epochs = [int(row["step"]) for row in read_rows(path / "metrics.csv")[1]]
        assert epochs == sorted(epochs)
        if path != mine:
            assert torch.load(path / "checkpoints/last.ckpt", weights_only=True)["global_step"] == max(epochs) + 1


@pytest.mark.slow
def test_sigterm_saves_a_checkpoint_in_two_processes(tmp_path: Path, rng: Random) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    for folder in (whole, stopped):
        write_recipe(folder, Random(0))
    fit = ("attnkit", "fit", "--config", "tiny.yaml", "--resume", "--trainer.devices", "2", "--trainer.strategy", "ddp")
    finished = run(*fit, cwd=whole)
    assert finished.returncode == 0, finished.stderr
    point = rng.randrange((whole / RUN / "metrics.csv").stat().st_size // 2)
    with started(*fit, cwd=stopped, err=tmp_path / "err") as process:
        metrics = stopped / RUN / "metrics.csv"
        until = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < until and (not metrics.exists() or metrics.stat().st_size < point):
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGTERM)  # the first process; the other one is not told
        status, messages = process.wait(300), (tmp_path / "err").read_text()
    assert status == 143, messages
    assert messages.count("note: stopped by SIGTERM") == messages.count("Continue with:") == 1
    assert torch.load(stopped / SAVED / "last.ckpt", weights_only=True)["global_step"] > 0
    assert run(*fit, cwd=stopped).returncode == 0
    assert_equal_runs(whole, stopped)


def test_a_damaged_checkpoint_is_set_aside_for_the_previous_one(attnkit: Command, tmp_path: Path, monkeypatch: Any) -> None:
    write_recipe(tmp_path, Random(0))
    assert attnkit("fit", "--config", "tiny.yaml", "--trainer.max_epochs", 2).status == 0
    content = bytearray((SAVED / "last.ckpt").read_bytes())
    (SAVED / "best.ckpt").write_bytes(content[: len(content) // 2])
    with zipfile.ZipFile(SAVED / "last.ckpt") as archive:
        tensor = archive.read(max(archive.infolist(), key=lambda entry: entry.file_size))
    content[content.index(tensor) + len(tensor) // 2] ^= 1  # nothing but its checksum tells
    (SAVED / "last.ckpt").write_bytes(content)
    (SAVED / ".last.ckpt.1.tmp").touch()  # left by a kill
    outcome = attnkit("fit", "--config", "tiny.yaml", "--resume", "--trainer.max_epochs", 2)
    assert outcome.status == 0
    assert outcome.err.count("warning: ") == 2
    assert "is truncated or damaged" in outcome.err
    assert "resuming from runs/tiny/version_0/checkpoints/previous.ckpt" in outcome.err
    assert not list(SAVED.glob(".*"))
    assert {path.name for path in SAVED.glob("*.damaged")} == {"last.ckpt.damaged", "best.ckpt.damaged"}
    assert (SAVED / "last.ckpt").exists()


def test_resume_without_a_checkpoint_starts_a_new_run(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    outcome = attnkit("fit", "--config", "tiny.yaml", "--resume", "--trainer.max_epochs", 1)
    assert outcome.status == 0
    assert "--resume found no checkpoint of this recipe: starting a new run" in outcome.err
    again = attnkit("fit", "--config", "tiny.yaml", "--ckpt_path", "last", "--trainer.max_epochs", 1)  # nothing is left to do
    assert again.status == 0
    assert "resuming from runs/tiny/version_0/checkpoints/last.ckpt" in again.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["test", "--resume", "--ckpt_path", "x.ckpt"], "--resume is only for `fit`"),
        (["fit", "--resume", "--config", "tiny.yaml", "--ckpt_path", "x.ckpt"], "remove --resume or --ckpt_path"),
        (["fit", "--resume", "--config", "tiny.yaml", "--config", "start.yaml"], "remove --resume or ckpt_path in the recipe"),
        (["fit", "--resume", "--model", "seq2seq"], "add --config RECIPE"),
    ],
)
def test_resume_is_rejected_where_it_does_not_apply(attnkit: Command, tiny: str, arguments: list[str], message: str) -> None:
    Path("start.yaml").write_text("ckpt_path: x.ckpt")
    outcome = attnkit(*arguments)
    assert outcome.status == 2
    assert message in outcome.err


def test_resuming_does_not_change_the_saved_recipe(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    saved = Path("runs/tiny/version_0/config.yaml")
    assert attnkit("fit", "--config", "tiny.yaml", "--trainer.max_steps", 2).status == 0
    first = saved.read_text()
    assert attnkit("fit", "--config", "tiny.yaml", "--resume", "--trainer.max_steps", 4).status == 0
    assert saved.read_text() == first.replace("max_steps: 2", "max_steps: 4") != first


def test_logs_are_truncated_to_the_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "metrics.csv").write_text("step,loss\n0,3\n1,2\n2,")
    for name in ("events.out.tfevents.1", "events.out.tfevents.2"):
        (tmp_path / name).write_bytes(b"12345")
    truncate_logs(tmp_path, {"rows": 1, "events": {"events.out.tfevents.1": 3}})
    assert read_rows(tmp_path / "metrics.csv") == (["step", "loss"], [{"step": "0", "loss": "3"}])
    assert {path.name: path.read_bytes() for path in tmp_path.glob("events*")} == {"events.out.tfevents.1": b"123"}


def test_a_resumed_run_reports_settings_that_differ_from_the_checkpoint(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    assert attnkit("fit", "--config", "tiny.yaml", "--trainer.max_steps", 4).status == 0
    own = ["--trainer.max_steps", 6, "--model.optimizer.lr", 0.01, "--data.batch_tokens", 128, "--trainer.gradient_clip_val", 2.0]
    flags = attnkit("fit", "--config", "tiny.yaml", "--resume", *own)
    assert flags.status == 0
    assert "the checkpoint: " not in flags.err  # the command says all of it
    outcome = attnkit(
        "fit", "--config", "tiny.yaml", "--resume", "--trainer.max_steps", 7, "--model.stack.attention", "cosine", "--print_config"
    )
    assert outcome.status == 0
    assert [line for line in outcome.err.splitlines() if "the checkpoint: " in line] == [
        "note: from the checkpoint: model.optimizer.lr=0.01, trainer.gradient_clip_val=2.0; "
        "changed since the checkpoint: data.batch_tokens 64 (was 128)"
    ]


def test_a_drawn_seed_is_recorded_and_kept(attnkit: Command, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("fit", "--config", tiny, "--seed_everything=true", "--trainer.limit_val_batches=0")
    for drawn, flags in ((7, ()), (8, ("--resume", "--trainer.max_epochs=2"))):
        monkeypatch.setenv("PL_GLOBAL_SEED", str(drawn))
        outcome = attnkit(*command, *flags)
        assert outcome.status == 0, outcome.err
        assert yaml.safe_load((RUN / "config.yaml").read_text())["seed_everything"] == 7
    assert "Set it to 7" in attnkit("fit", "--config", tiny, "--seed_everything=1", "--resume").err
