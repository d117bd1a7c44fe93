"""Every recipe that comes with attnkit: its first line says how it is run, and it trains, generates and is tested, a little."""

from pathlib import Path

import pytest

from attnkit.cli.main import main
from attnkit.cli.recipe import recipe_folder, recipe_names

RECIPES = recipe_names()
SHORT = (
    "--trainer.max_epochs=1",
    "--trainer.limit_train_batches=1",
    "--trainer.limit_val_batches=1",
    "--trainer.log_every_n_steps=1",
    "--trainer.enable_progress_bar=false",
)


def test_there_are_recipes() -> None:
    assert {"g2p/transformer", "g2p/transformer_full"} <= set(RECIPES)


@pytest.mark.parametrize("name", RECIPES)
def test_the_first_line_is_the_command_that_runs_it(name: str) -> None:
    first = (recipe_folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()[0]
    assert first == f"# attnkit fit --config {name}"


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_trains_generates_and_is_tested(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", name, *SHORT]) == 0
    checkpoint = str(tmp_path / "runs" / name / "version_0" / "checkpoints" / "best.ckpt")
    assert "sequence_error_rate" in capfd.readouterr().out
    assert main(["generate", checkpoint, "attention"]) == 0
    assert len(capfd.readouterr().out.splitlines()) == 1
    assert main(["test", "--ckpt_path", checkpoint, "--trainer.limit_test_batches=1"]) == 0
    assert "test/token_error_rate" in capfd.readouterr().out


def test_one_piece_of_a_recipe_is_swapped_by_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    swap = ("--model.stack.attention=additive", "--model.stack.attention.hidden_dim=8", "--model.stack.position=learned")
    assert main(["fit", "--config", "g2p/transformer", *swap, *SHORT]) == 0
    shown = capfd.readouterr().out
    assert "attention: additive (hidden_dim=8)" in shown
    assert "position: learned" in shown
    assert main(["generate", "runs/g2p/transformer/version_0/checkpoints/best.ckpt", "attention", "--beam_size=3"]) == 0


@pytest.mark.parametrize("name", RECIPES)
def test_the_stack_of_a_recipe_is_swapped_for_its_recurrent_twin_by_one_flag(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["fit", "--config", name, "--model.stack=recurrent_encoder_decoder", *SHORT]) == 0
    shown = capfd.readouterr()
    assert "stack: recurrent_encoder_decoder (d_model=1" in shown.out
    assert "recurrent_encoder_decoder replaces encoder_decoder, so" in shown.err
