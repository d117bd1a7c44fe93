"""Layers that read more than the stream of the one before, and layers behind the stack: two processes end with the weights of one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.strategy.conftest import TOKENIZER, fit_alone, largest_difference, make_task

pytestmark = pytest.mark.slow

TASK: dict[str, Any] = {
    "name": "causal_lm", "tokenizer": TOKENIZER.spec, "multi_token": "sequential",
    "optimizer": {"name": "adamw", "lr": 0.01}, "schedule": {"name": "constant"},
    "stack": {
        "name": "decoder", "d_model": 16, "num_layers": 4, "num_heads": 2, "position": "rotary", "layers": [{"share": True}, {}],
        "mixer": {"name": "multi_head", "value_residual": 0.4}, "residual": {"name": "hyper_connections", "num_streams": 2}, "skips": True,
    },
}  # fmt: skip
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "ddp": ("ddp", {}),
    "fsdp2": ("fsdp2", {}),
    "fsdp2, recomputed": ("fsdp2", {"activation_checkpointing": "layer"}),
}


def cut(tokens: torch.Tensor) -> dict[str, Any]:
    return {"tokens": tokens[:, : int((tokens > 0).sum(1).max())]}


@pytest.fixture(scope="module")
def given(run_processes: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    whole = [torch.randint(5, 10, (rows, 9)) * (torch.arange(9) < torch.randint(4, 10, (rows, 1))) for rows in (5, 3)]
    ranks = [[cut(tokens[:1]) for tokens in whole], [cut(tokens[1:]) for tokens in whole]]
    alone = make_task(**TASK)
    start = {name: weight.clone() for name, weight in alone.state_dict().items()}
    trainer = fit_alone(alone, [cut(tokens) for tokens in whole], max_epochs=1)
    payload: dict[str, Any] = {
        name: ("fit", {"task": TASK | options, "weights": start, "train": ranks, "strategy": strategy})
        for name, (strategy, options) in RUNS.items()
    }
    logged = trainer.callback_metrics["train/model.multi_token/loss_2"]
    return {"start": start, "end": alone.state_dict(), "logged": logged, "runs": run_processes(2, payload)}


@pytest.mark.parametrize("name", RUNS)
def test_two_processes_reach_the_weights_of_one(given: dict[str, Any], name: str) -> None:
    for part in ("value_residual", "skips", "multi_token"):
        changed = {key for key in given["end"] if part in key}
        assert changed, part
        assert all((given["end"][key] != given["start"][key]).any() for key in changed), part
    run = given["runs"][name]
    assert largest_difference(run["weights"], given["end"]) < 1e-9
    torch.testing.assert_close(run["logged"]["train/model.multi_token/loss_2"].double(), given["logged"].double(), rtol=1e-6, atol=1e-6)
