"""`--resume` of runs with the user's own loggers, or without any."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger

from attnkit.ownership import owned, owner_of
from attnkit.registry import ConfigurationError
from attnkit.task.seq2seq import Seq2Seq
from attnkit.train.whereabouts import read_index
from tests.commands import started
from tests.train.test_resume import whole, write_recipe

__all__ = ["whole"]

Command = Callable[..., Any]
LIST = '[{"class_path": "TensorBoardLogger", "init_args": {"save_dir": "Z"}}, {"class_path": "CSVLogger", "init_args": {"save_dir": "Z"}}]'
OWN = {
    "csv": ("--trainer.logger", "CSVLogger", "--trainer.logger.save_dir", "Z"),
    "random version": ("--trainer.logger", "tests.train.test_whereabouts.RandomVersion"),
    "list": (f"--trainer.logger={LIST}",),
    "false": ("--trainer.logger", "false", "--trainer.default_root_dir", "Z"),
    "true": ("--trainer.logger", "true"),
}
FIT = ("fit", "--config", "tiny.yaml")


class RandomVersion(DummyLogger):
    """Names its runs at random, as W&B does, and has no folder."""

    def __init__(self) -> None:
        super().__init__()
        self.made: str | None = None

    @property
    def name(self) -> str:
        return "project"

    @property
    def version(self) -> str:
        self.made = self.made or os.urandom(4).hex()
        return self.made


def stop_at(call: int, number: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send this process a signal in a step."""
    step, calls = Seq2Seq.objective, iter(range(1000))

    def signalled(*arguments: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), number)
        return step(*arguments)

    monkeypatch.setattr(Seq2Seq, "objective", signalled)


def states() -> list[Path]:
    return sorted(Path().rglob("last.ckpt"), key=lambda path: path.stat().st_mtime_ns)


def steps(path: Path) -> int:
    return int(torch.load(path, weights_only=True)["global_step"])


@pytest.mark.slow
@pytest.mark.parametrize("flags", OWN.values(), ids=OWN)
def test_a_stopped_run_is_resumed_to_its_end(
    flags: tuple[str, ...], attnkit: Command, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)  # a run of the recipe with attnkit's loggers is another run
    [default] = states()
    uninterrupted = torch.load(default, weights_only=True)
    with monkeypatch.context() as patch:
        stop_at(7, signal.SIGTERM, patch)
        first = attnkit(*FIT, *flags, "--resume")
    assert first.status == 143
    assert "--resume found no checkpoint of this recipe: starting a new run" in first.err
    saved = states()[-1]
    assert 0 < steps(saved) < uninterrupted["global_step"]
    assert owner_of(saved.parent) is None
    second = attnkit(*FIT, *flags, "--resume")
    assert second.status == 0
    assert f"note: resuming from {saved}\n" in second.err
    last = states()[-1]
    note = f"note: the logger starts a new version, so the run now saves its state in {last.parent}\n"
    assert (note in second.err) is (last != saved) is ("false" not in flags)
    state = torch.load(last, weights_only=True)
    assert state["global_step"] == uninterrupted["global_step"]
    assert all(torch.equal(value, uninterrupted["state_dict"][name]) for name, value in state["state_dict"].items())
    third = attnkit(*FIT, *flags, "--resume")
    assert third.status == 0
    assert f"note: resuming from {last}\n" in third.err
    assert states()[-1] == last
    assert f"resuming from {default}" in attnkit(*FIT, "--resume").err


@pytest.mark.slow
@pytest.mark.parametrize("flags", [OWN["csv"], OWN["false"]], ids=["csv", "false"])
def test_a_killed_run_is_resumed_and_has_one_owner(
    flags: tuple[str, ...], attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_recipe(tmp_path, Random(0))
    fit = (*FIT, *flags, "--resume")
    with started("attnkit", *fit, "--trainer.max_epochs", "100000", cwd=tmp_path) as process:
        deadline = time.monotonic() + 120
        while not states() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGSTOP)
        refused = attnkit(*fit)
        assert refused.status == 2
        assert f"{states()[0].parent} is in use by process {process.pid}, since" in refused.err
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    [saved] = states()
    more = ("--trainer.max_steps", str(steps(saved) + 3), "--trainer.max_epochs", "-1")
    with monkeypatch.context() as patch:  # killed before its first checkpoint, which may be in another folder
        patch.setattr("attnkit.callback.LastCheckpoint._save", lambda *_: None)
        stop_at(1, signal.SIGTERM, patch)
        assert attnkit(*fit, *more).status == 143
    outcome = attnkit(*fit, *more)
    assert outcome.status == 0
    assert f"note: resuming from {saved}\n" in outcome.err


def test_a_checkpoint_of_another_recipe_in_the_same_folder_is_not_used(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    (tmp_path / "other.yaml").write_text((tmp_path / "tiny.yaml").read_text())
    shared = ("--trainer.logger", "false", "--trainer.max_epochs", "1")
    assert attnkit(*FIT, *shared).status == 0
    assert attnkit("fit", "--config", "other.yaml", *shared).status == 0
    assert "found no checkpoint of this recipe" in attnkit(*FIT, *shared, "--resume").err


def test_a_new_run_does_not_touch_the_folder_of_a_live_one(attnkit: Command, tmp_path: Path) -> None:
    write_recipe(tmp_path, Random(0))
    folder = tmp_path / "Z/lightning_logs/mine/checkpoints"
    folder.mkdir(parents=True)
    with owned(folder):
        outcome = attnkit(
            *FIT, "--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "Z", "--trainer.logger.version", "mine"
        )
    assert outcome.status == 2
    assert f"Z/lightning_logs/mine/checkpoints is in use by process {os.getpid()}" in outcome.err
    assert not (folder.parent / "config.yaml").exists()


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    assert read_index(tmp_path / "index.json") == []
    (tmp_path / "index.json").write_text("[1")
    with pytest.raises(ConfigurationError, match=r"index\.json is damaged: delete it"):
        read_index(tmp_path / "index.json")
