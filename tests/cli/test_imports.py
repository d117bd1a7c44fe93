"""Components of a user's own module on the command line, by `imports` in a recipe or `--imports`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

import attnkit as package
from attnkit.cli.components import summary
from attnkit.recipe import merge, read_yaml
from attnkit.testing import component, kit, transformer
from attnkit.worker.inspection import Inspector
from tests.cli.conftest import TINY, write_tiny_recipe
from tests.commands import run

Command = Callable[..., Any]
MODULE = """
import attnkit
from attnkit.attention.general import General

@attnkit.attentions.register("manhattan")
class Manhattan(General):
    '''Minus the sum of absolute differences.'''

    def score(self, query, key):
        return -(query[..., :, None, :] - key[..., None, :, :]).abs().sum(-1)
"""


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith("manhattans")]:
        del sys.modules[name]
    package.attentions._classes.pop("manhattan", None)


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A module of the current folder, which is not imported; and a recipe that names it."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "manhattans.py").write_text(MODULE)
    write_tiny_recipe(tmp_path)
    write_mine(tmp_path, "manhattan")
    forget()
    yield
    forget()


def write_mine(folder: Path, attention: str) -> None:
    stack = {**TINY["model"]["stack"], "attention": attention}
    (folder / "mine.yaml").write_text(yaml.safe_dump({**TINY, "imports": ["manhattans"], "model": {**TINY["model"], "stack": stack}}))


def test_a_recipe_with_imports_is_trained_resumed_and_used(attnkit: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_mine(tmp_path, "manhattans.Manhattan")
    assert (outcome := attnkit("fit", "--config", "mine.yaml")).status == 0, outcome.err
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    saved = read_yaml(Path("runs/mine/version_0/config.yaml").read_text(), where="config.yaml")
    assert saved["imports"] == ["manhattans"]
    assert saved["model"]["stack"]["attention"] == {"name": "manhattan"}  # the name of the class that is registered so
    assert torch.load(path, weights_only=True)["callbacks"]["attnkit_recipe"]["imports"] == ["manhattans"]
    forget()
    monkeypatch.syspath_prepend(".")
    Path("path.yaml").write_text(Path("mine.yaml").read_text().replace("imports:\n- manhattans\n", ""))
    continued = attnkit("fit", "--config", "path.yaml", "--ckpt_path", path, "--print_config")
    assert read_yaml(continued.out, where="")["imports"] == ["manhattans"]
    assert "did not import" not in continued.err
    forget()
    assert (outcome := attnkit("fit", "--config", "mine.yaml", "--resume", "--trainer.max_epochs", 2)).status == 0, outcome.err
    for command in (["test", "--ckpt_path", path], ["generate", path, "ab"], ["export", path, "--out", "a.safetensors"]):
        forget()
        refused = attnkit(*command)
        assert refused.status == 2
        assert "--imports manhattans" in refused.err
        assert "manhattans" not in sys.modules
        assert (outcome := attnkit(*command, "--imports", "manhattans")).status == 0, outcome.err
    forget()
    assert attnkit("generate", "a.safetensors", "ab", "--imports", "manhattans").status == 0


def test_a_recipe_that_names_a_registered_class_by_its_path_is_saved_with_its_module(attnkit: Command, monkeypatch: Any) -> None:
    monkeypatch.syspath_prepend(".")
    inspector = Inspector("tiny.yaml", match=None, baseline=[])
    for spec in ("manhattans.Manhattan", {"name": "manhattans.Manhattan"}):
        forget()
        recipe, _ = inspector.completed([{"model": {"stack": {"attention": spec}}}])  # the recipe of a run of a study
        assert (recipe["imports"], recipe["model"]["stack"]["attention"]) == (["manhattans"], {"name": "manhattan"})
    forget()
    printed = attnkit("fit", "--config", "tiny.yaml", "--model.stack.attention", "manhattans.Manhattan", "--print_config").out
    assert read_yaml(printed, where="")["imports"] == ["manhattans"]
    Path("whole.yaml").write_text(printed)
    forget()
    again = attnkit("fit", "--config", "whole.yaml", "--print_config")
    assert (again.status, again.out) == (0, printed), again.err


def test_the_path_of_a_registered_class_merges_like_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    package.attentions.get("manhattans.Manhattan")
    dropped: list[str] = []
    saved = {"attention": {"name": "manhattan", "width": 2.0}}
    by_path = {"attention": {"name": "manhattans.Manhattan", "width": 2.0}}
    for over in ("manhattans.Manhattan", {"name": "manhattans.Manhattan"}):
        assert merge(saved, {"attention": over}, dropped=dropped) == by_path
    for over in ("manhattan", {"name": "manhattan"}):  # the path says what to import
        assert merge(by_path, {"attention": over}, dropped=dropped) == by_path
    assert not dropped


def test_imports_in_a_checkpoint_need_explicit_consent(attnkit: Command) -> None:
    assert attnkit("fit", "--config", "mine.yaml", "--model.stack.attention", "cosine").status == 0
    path = "runs/mine/version_0/checkpoints/last.ckpt"
    forget()
    printed = attnkit("fit", "--ckpt_path", path, "--print_config")
    assert printed.err.count("note: did not import modules that the checkpoint's recipe lists: manhattans") == 1
    assert "if you trust them, add --imports manhattans, or --trust" in printed.err
    assert "imports" not in read_yaml(printed.out, where="")
    assert "manhattans" not in sys.modules
    assert "--trust" not in attnkit("test", "--ckpt_path", path).err
    trusted = attnkit("fit", "--ckpt_path", path, "--trust", "--print_config")
    assert read_yaml(trusted.out, where="")["imports"] == ["manhattans"]
    assert "manhattans" in sys.modules
    forget()
    asked = attnkit("fit", "--ckpt_path", path, "--imports", "manhattans", "--print_config")
    assert "imports manhattans" not in asked.err
    assert read_yaml(asked.out, where="")["imports"] == ["manhattans"]


def test_every_command_that_looks_up_names_accepts_imports(attnkit: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = component.survives_the_round_trip_through_its_spec  # test_stranger.py has an attention that keeps all rules
    monkeypatch.setitem(kit.RULES, "attentions", (rule,))
    monkeypatch.setattr(transformer, "RULES", {})
    flags = ["--config", "tiny.yaml", "--model.stack.attention", "manhattan"]
    assert "a recipe names it under imports, the command line after --imports" in attnkit("fit", *flags).err
    printed = attnkit("fit", *flags, "--imports=manhattans", "--print_config")
    assert read_yaml(printed.out, where="")["imports"] == ["manhattans"]
    for command, expected in (
        (("describe", "manhattan"), "Minus the sum of absolute differences."),
        (("list", "attention"), "  manhattan           Minus the sum of absolute differences."),
        (("check", "manhattan"), f"ok      attention.manhattan: {rule.__name__}"),
        (("plan", "mine.yaml"), "parameters"),
        (("plan", "tiny.yaml", "--model.stack.attention", "manhattan"), "parameters"),
        (("fit", "--config", "tiny.yaml", "--model.stack.attention.help", "manhattan"), "Minus the sum"),
    ):
        forget()
        outcome = attnkit(*command, "--imports", "manhattans")
        assert expected in outcome.out, outcome.err
    assert "needs a value, as in --imports MODULE" in attnkit("fit", "--imports").err


def test_list_shows_the_summary_of_the_class_that_a_name_means(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own:
        """Mine.

        Not the summary.
        """

    for registry in (package.norms, package.optimizers):
        monkeypatch.setattr(registry, "_classes", dict(registry._classes))
        monkeypatch.setattr(registry, "_overridden", set(registry._overridden))
    package.optimizers.register("signs")(Own)
    package.norms.register("rms_norm", override=True)(Own)
    assert summary(package.optimizers, "signs") == summary(package.norms, "rms_norm") == "Mine."
    assert package.optimizers.get("adamw").__doc__
    assert summary(package.optimizers, "adamw") == "from torch.optim"


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_every_process_of_a_run_imports_the_modules(tmp_path: Path, strategy: str) -> None:
    flags = ["--trainer.devices=2", f"--trainer.strategy={strategy}", "--trainer.max_steps=1", "--trainer.limit_val_batches=0"]
    done = run("attnkit", "fit", "--config", "mine.yaml", *flags, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
