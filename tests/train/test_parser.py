"""The parser of the trainer's arguments."""

from typing import Any

import pytest
from lightning.pytorch import Trainer

NUMBERS = ("limit_train_batches", "limit_val_batches", "overfit_batches", "val_check_interval")


@pytest.mark.parametrize("order", [float | int | None, int | float | None])
@pytest.mark.parametrize("name", NUMBERS)
def test_limits_of_1_mean_one_batch_and_1_0_all_batches(
    attnkit: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any, name: str, order: Any
) -> None:
    monkeypatch.setitem(Trainer.__init__.__wrapped__.__annotations__, name, order)  # which of both it is depends on earlier imports
    for given in ("1", "1.0"):
        shown = attnkit("fit", "--config", "g2p/transformer", f"--trainer.{name}={given}", "--print_config").out
        assert f"\n  {name}: {given}\n" in shown


@pytest.mark.parametrize("given", ["0.5", "7", "00:00:10:00"])
def test_val_check_interval_round_trips_through_a_saved_recipe(attnkit: Any, tmp_path: Any, given: str) -> None:
    """Lightning takes text for a time, so a fraction of an epoch must stay a number."""
    shown = attnkit("fit", "--config", "g2p/transformer", "--trainer.val_check_interval", given, "--print_config").out
    assert f"\n  val_check_interval: {given}\n" in shown
    (tmp_path / "config.yaml").write_text(shown)
    assert attnkit("fit", "--config", tmp_path / "config.yaml", "--print_config").out == shown


def test_a_default_that_is_a_word_of_an_enumeration_is_written_as_text(attnkit: Any, tmp_path: Any) -> None:
    command = ("fit", "--config", "g2p/transformer", "--trainer.callbacks+=Timer", "--trainer.callbacks.duration=00:00:01:00")
    shown = attnkit(*command, "--print_config").out
    assert "\n      interval: step\n" in shown
    (tmp_path / "config.yaml").write_text(shown)
    assert attnkit("fit", "--config", tmp_path / "config.yaml", "--print_config").out == shown
