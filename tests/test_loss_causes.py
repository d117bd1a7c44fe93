"""The comparison of docs/_tools/loss_causes.py sees each difference, and omits what it says it omits."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "docs/_tools"))

from loss_causes import equal_batches, of_losses, of_updates

OLD, TODAY = "model.stack.decoder.layers.0.self_attention.", "model.stack.decoder.layers.0.mixer."


def found(prefix: str, **changed: Any) -> dict[str, Any]:
    initial = {f"{prefix}query.weight": torch.ones(2, 2), f"{prefix}key.bias": torch.zeros(2)}
    final = {f"{prefix}query.weight": torch.full((2, 2), 3.0), f"{prefix}key.bias": torch.ones(2)}
    return {"losses": [4.0, 2.0], "batches": [{"tokens": torch.arange(3)}] * 2, "initial": initial, "final": final, **changed}


def test_equal_runs_differ_in_nothing_although_names_of_weights_have_changed() -> None:
    before, after = found(OLD), found(TODAY)
    assert (of_losses(before, after), of_updates(before, after), equal_batches(before, after)) == (0.0, 0.0, 2)


def test_the_largest_relative_difference_of_a_loss() -> None:
    assert of_losses(found(OLD), found(TODAY, losses=[4.4, 1.5])) == pytest.approx(0.25)


def test_updates_are_compared_and_biases_of_keys_are_not() -> None:
    final = {f"{TODAY}query.weight": torch.full((2, 2), 2.5), f"{TODAY}key.bias": -torch.ones(2)}
    assert of_updates(found(OLD), found(TODAY, final=final)) == pytest.approx(0.25)


@pytest.mark.parametrize("batch", [{"tokens": torch.tensor([0, 1, 3])}, {"tokens": torch.arange(3), "label": torch.arange(3)}, {}])
def test_a_batch_with_other_tensors_is_not_equal(batch: dict[str, torch.Tensor]) -> None:
    assert equal_batches(found(OLD), found(TODAY, batches=[{"tokens": torch.arange(3)}, batch])) == 1
