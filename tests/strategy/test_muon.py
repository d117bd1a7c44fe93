"""The optimizer `muon` where matrices are sharded or split: it orthogonalises whole matrices, not the part that a process has."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.strategy.conftest import TASK, fit_alone, largest_difference, make_batch, make_task, make_words

pytestmark = pytest.mark.slow

MUON = {"optimizer": {"name": "muon", "lr": 0.02, "weight_decay": 0.1}}


def test_two_processes_reach_the_weights_of_one(run_processes: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    words = [[make_words(n) for n in sizes] for sizes in ((3, 5), (1, 4))]  # [step][process]
    whole = [make_batch([w for part in step for w in part]) for step in words]
    ranks = [[make_batch(step[rank]) for step in words] for rank in range(2)]
    alone = make_task(**MUON)
    start = {name: weight.clone() for name, weight in alone.state_dict().items()}
    fit_alone(alone, whole, max_epochs=2)
    payload: dict[str, Any] = {}
    for name, train in (("fsdp2", ranks), ("fsdp2_tp2", [whole])):
        path = str(tmp_path / f"{name}.ckpt")
        fit = {"task": TASK | MUON, "weights": start, "train": train, "strategy": name}
        payload[f"{name} begins"] = "fit", fit | {"save": path}
        payload[name] = "fit", fit | {"load": path, "trainer": {"max_epochs": 2}}
    results = run_processes(2, payload)
    assert largest_difference(start, dict(alone.state_dict())) > 1e-2
    for name in ("fsdp2", "fsdp2_tp2"):
        assert results[name]["steps"] == 4
        assert largest_difference(results[name]["weights"], dict(alone.state_dict())) < 1e-9, name
