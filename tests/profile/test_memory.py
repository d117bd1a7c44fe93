"""The estimated memory of a step, against that of a real one."""

import random
from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything

import attnkit
from attnkit.profile.measurement import measure
from attnkit.profile.memory import step_memory
from attnkit.registry import ConfigurationError
from tests.task.conftest import TOKENIZER

pytestmark = [
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
]

SIZE = {"d_model": 48, "num_layers": 2, "num_heads": 2}
ADAMW = {"name": "adamw", "lr": 0.001}


def test_the_estimate_equals_what_torch_allocates(rng: random.Random) -> None:
    """Not estimated: kernels' workspaces, and scalars and counters of Lightning, below 64 KiB in all, or 2 % of the step's 4 MiB."""
    task = {"name": "causal_lm", "stack": {"name": "decoder", **SIZE}, "tokenizer": TOKENIZER.spec, "optimizer": ADAMW}
    batch = {"tokens": torch.randint(5, 10, (rng.randint(6, 10), rng.randint(48, 80)))}
    for precision in ("32-true", "bf16-mixed"):
        seed_everything(1, verbose=False)
        estimate = step_memory(attnkit.tasks.build(task), batch, precision=precision).peak
        measured = measure({"model": task, "batch": batch, "precision": precision, "mesh": (1, 1), "strategy": "ddp"})["peak"]
        assert estimate == pytest.approx(measured, rel=0.02)


def test_fire_is_estimated_as_it_computes_many_pairs() -> None:
    stack = {"name": "decoder", **SIZE, "d_model": 8, "num_layers": 1, "position": "fire"}
    task = {"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec, "optimizer": ADAMW}
    batch = {"tokens": torch.randint(5, 10, (4, 180))}
    measured = measure({"model": task, "batch": batch, "precision": "32-true", "mesh": (1, 1), "strategy": "ddp"})["peak"]
    assert step_memory(attnkit.tasks.build(task), batch).peak == pytest.approx(measured, rel=0.02)


def test_optimizer_state_matches_the_optimizer() -> None:
    sizes = {}
    for optimizer in ({"name": "sgd", "lr": 1.0}, {"name": "sgd", "lr": 1.0, "momentum": 0.9}, ADAMW):
        task: Any = {"name": "causal_lm", "stack": {"name": "decoder", **SIZE}, "tokenizer": TOKENIZER.spec, "optimizer": optimizer}
        memory = step_memory(attnkit.tasks.build(task), {"tokens": torch.randint(5, 10, (2, 5))})
        sizes[str(optimizer)] = memory.optimizer / memory.parameters
    assert list(sizes.values()) == [0, 1, 2]


def test_doubling_the_batch_doubles_the_activations() -> None:
    task: Any = {"name": "causal_lm", "stack": {"name": "decoder", **SIZE}, "tokenizer": TOKENIZER.spec, "optimizer": ADAMW}
    one, two = (step_memory(attnkit.tasks.build(task), {"tokens": torch.randint(5, 10, (n, 33))}) for n in (8, 16))
    assert two.forward == pytest.approx(2 * one.forward, rel=0.01)
    assert two.parameters == one.parameters == sum(p.numel() for p in _built(task).parameters()) * 4


def test_an_unknown_precision_is_refused() -> None:
    task = {"name": "causal_lm", "stack": {"name": "decoder", **SIZE}, "tokenizer": TOKENIZER.spec}
    with pytest.raises(ConfigurationError, match=r"no estimate for the precision 'bf16-mixd'. Did you mean 'bf16-mixed'"):
        step_memory(attnkit.tasks.build(task), {"tokens": torch.ones(1, 2)}, precision="bf16-mixd")


def _built(task: Any) -> torch.nn.Module:
    built: Any = attnkit.tasks.build(task)
    module: torch.nn.Module = built.build_model()
    return module
