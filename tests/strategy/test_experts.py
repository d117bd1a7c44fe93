"""A mixture of experts over two processes: weights, and the bias that counts of all processes move, are those of one."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.strategy.conftest import TASK, fit_alone, largest_difference, make_batch, make_task, make_words

pytestmark = pytest.mark.slow

EXPERTS = {
    "name": "mixture_of_experts", "num_experts": 4, "expert": {"name": "mlp", "ffn_dim": 8}, "shared": {"name": "glu", "ffn_dim": 8},
    "bias_rate": 0.125, "balance_loss": 0.0,
}  # fmt: skip
STRATEGIES = ["ddp", "fsdp2", "fsdp2_tp2"]


@pytest.fixture(scope="module")
def given(run_processes: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    task = TASK | {"stack": TASK["stack"] | {"feed_forward": EXPERTS}}
    words = [[make_words(n) for n in step] for step in ([3, 1], [2, 5])]
    whole = [make_batch([w for rank in step for w in rank]) for step in words]
    ranks = [[make_batch(step[rank]) for step in words] for rank in range(2)]
    alone = make_task(stack=task["stack"])
    start = {name: weight.clone() for name, weight in alone.state_dict().items()}
    trainer = fit_alone(alone, whole, max_epochs=1)
    payload: dict[str, Any] = {
        strategy: ("fit", {"task": task, "weights": start, "strategy": strategy, "train": [whole] if "tp" in strategy else ranks})
        for strategy in STRATEGIES
    }
    return {"start": start, "end": alone.state_dict(), "logged": dict(trainer.callback_metrics), "runs": run_processes(2, payload)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_processes_reach_the_weights_and_bias_of_one(given: dict[str, Any], strategy: str) -> None:
    run = given["runs"][strategy]
    biases = [name for name in given["end"] if name.endswith("feed_forward.bias")]
    assert biases
    assert any(given["end"][name].any() for name in biases)
    assert largest_difference(given["start"], given["end"]) > 1e-3
    assert largest_difference(run["weights"], given["end"]) < 1e-9
    shares = [name for name in given["logged"] if "share_" in name]
    assert len(shares) == 4 * len(biases)
    for name in shares:
        torch.testing.assert_close(run["logged"][name].double().cpu(), given["logged"][name].double(), rtol=1e-6, atol=1e-6)
