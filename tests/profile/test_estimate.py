"""The estimate of a step: its FLOPs, and the effect of changes."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from attnkit.profile.estimate import Job, alternatives, changes, estimate, recomputation
from attnkit.profile.flops import forward_flops
from attnkit.profile.machine import Machine, StepTime
from attnkit.profile.partition import Mesh, Traffic
from attnkit.registry import tasks
from tests.task.conftest import TOKENIZER

STACK = {"name": "decoder", "d_model": 16, "num_layers": 2, "num_heads": 2, "attention": "scaled_dot_product"}
MODEL = {"name": "causal_lm", "stack": STACK, "tokenizer": TOKENIZER.spec}
ROWS, LENGTH = 4, 12
BATCH = {"tokens": torch.full((ROWS, LENGTH + 1), 5)}  # the last column is only a target
JOB = Job(model=MODEL, batches=[BATCH], precision="32-true", mesh=Mesh(data=1, tensor=1), strategy="ddp")


def test_operations_follow_the_formula_and_count_padding() -> None:
    formula = forward_flops(tasks.build(MODEL))
    row = sum(c * LENGTH**a for (a, _), c in formula.items())
    whole = estimate(JOB)
    assert whole.operations == whole.model_flops == 3 * ROWS * row
    padded = {"tokens": torch.cat([BATCH["tokens"], torch.tensor([[5] * 7 + [0] * (LENGTH - 6)])])}
    short = estimate(replace(JOB, batches=[padded]))
    assert short.operations == 3 * (ROWS + 1) * row
    assert short.model_flops == 3 * ROWS * row + 3 * sum(c * 6**a for (a, _), c in formula.items())
    assert (short.rows, short.tokens) == (ROWS + 1, ROWS * LENGTH + 6)


def test_recomputing_layers_costs_one_more_forward_pass() -> None:
    head = 2 * 16 * len(TOKENIZER) * LENGTH
    linear, square = (forward_flops(tasks.build(MODEL))[term] for term in ((1, 0), (2, 0)))
    row = (linear - square) * LENGTH + 2 * square * LENGTH**2  # torch counts the whole square
    found = recomputation({**MODEL, "activation_checkpointing": "layer"}, {"tokens": BATCH["tokens"][:, :-1]})
    last = 2 * (2 * 16 * 64) * LENGTH  # torch skips the last product of each layer, whose output is not needed
    assert found == pytest.approx((3 * row + row - head - last) / (3 * row), rel=1e-9)
    assert recomputation(MODEL, BATCH) == 1


def test_two_micro_batches_double_compute_but_ddp_communicates_once() -> None:
    for strategy, times in (("ddp", 1), ("fsdp2", 2)):
        one = replace(JOB, mesh=Mesh(data=4, tensor=1), strategy=strategy)
        first, second = estimate(one), estimate(replace(one, micro_batches=2))
        assert second.operations == 2 * first.operations
        assert sum(second.sent.parts.values()) == times * sum(first.sent.parts.values()) > 0
        assert second.peak >= first.peak


def test_changes_are_estimated_until_a_combination_fits() -> None:
    job = replace(JOB, mesh=Mesh(data=2, tensor=1))
    named, planned = dict(changes(job)), estimate(job)
    found = dict(alternatives(job, memory=None))
    assert {"--model.activation_checkpointing layer", "--precision bf16-mixed", "--strategy fsdp2"} < set(found)
    assert f"batches of half the rows, --accumulate {2}" in found
    for words in ("--model.activation_checkpointing layer", "batches of half the rows, --accumulate 2"):
        assert found[words] == estimate(named[words])
    assert found["--strategy fsdp2"].parts != planned.parts
    halved = found["batches of half the rows, --accumulate 2"]
    assert halved.peak < planned.peak
    assert halved.operations == planned.operations
    combined = 3  # all changes at once, with all rows, half and a quarter of them
    assert len(dict(alternatives(job, memory=1))) == len(found) + combined


def test_an_unsplittable_stack_is_offered_only_applicable_changes() -> None:
    lstm = {**MODEL, "stack": {"name": "recurrent_decoder", "d_model": 16, "num_layers": 1, "cell": "lstm"}}
    offered = [words for words, _ in alternatives(replace(JOB, model=lstm, mesh=Mesh(data=2, tensor=1)), memory=None)]
    assert "--strategy fsdp2" in offered
    assert not any("--mesh" in words for words in offered)


def test_the_slowest_resource_bounds_the_step() -> None:
    sent = Traffic(overlapped={"gradients": 4e9}, exposed={"activations": 1e9})
    work: Any = {"kind": "bf16", "operations": 1e12, "touched": 2e9, "traffic": sent, "efficiency": 0.5}
    slow = {"tflops": {"bf16": 2.0}, "memory_bandwidth": 10.0, "bandwidth": 10.0}
    fast = {"tflops": {"bf16": 2000.0}, "memory_bandwidth": 1000.0, "bandwidth": 1000.0}
    bounds = [StepTime.of(Machine(**{**fast, name: rate}), **work).bound for name, rate in slow.items()]  # type: ignore[arg-type]
    assert bounds == ["matrix products", "memory bandwidth", "the network"]
    time = StepTime.of(Machine(**slow), **work)  # type: ignore[arg-type]
    assert (time.products, time.memory, time.overlapped, time.exposed) == (1.0, 0.2, 0.4, 0.1)
    assert (time.shortest, time.longest) == (1.1, 1.5)
    assert StepTime.of(Machine(), **work).shortest is None
