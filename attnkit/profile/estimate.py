"""Estimates of a training step (memory, FLOPs and communication of one process), and of changes to the job."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from attnkit.profile.flops import BACKWARD, Exponents, as_written, evaluate, fake_tensors, forward_flops, row_lengths
from attnkit.profile.machine import EFFICIENCY, SPARE, Machine, StepTime
from attnkit.profile.memory import step_memory
from attnkit.profile.partition import PEAK, Mesh, Traffic, communication, memory_parts, some_rows, split
from attnkit.registry import ConfigurationError, tasks

KINDS = {"32-true": "fp32", "bf16-mixed": "bf16", "bf16-true": "bf16", "16-mixed": "fp16", "16-true": "fp16"}
"""Number format of matrix products, by precision."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training step to estimate."""

    model: Mapping[str, Any]  # the task's spec
    batches: Sequence[Mapping[str, Any]]  # sample batches of one process, each a micro-batch
    precision: str  # one of `PRECISIONS`
    mesh: Mesh  # the processes
    strategy: str  # `ddp` or `fsdp2`
    micro_batches: int = 1  # number of micro-batches per step

    @property
    def largest(self) -> Mapping[str, Any]:
        """The batch with the most elements."""
        return max(self.batches, key=lambda batch: sum(x.numel() for x in batch.values() if isinstance(x, Tensor)))


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The cost of a step for one process."""

    rows: int  # rows of the largest batch
    tokens: int  # non-padding tokens of the largest batch, or its number of images
    parts: Mapping[str, float]  # bytes at peak memory with the largest batch, by purpose; the total is under `PEAK`
    sent: Traffic  # bytes sent, with batches of average size
    model_flops: float
    """FLOPs on non-padding tokens, forward and backward, with batches of average size, as the utilisation (MFU) counts them."""
    operations: float  # FLOPs that the device executes: the above plus those of padding and recomputation
    touched: float  # bytes read and written, if each tensor is read and written once
    kind: str  # number format of matrix products, such as `bf16`

    @property
    def peak(self) -> float:
        """Peak memory in bytes."""
        return self.parts[PEAK]

    def time(self, machine: Machine, efficiency: float = EFFICIENCY) -> StepTime:
        """Return the time of the step on a machine whose matrix products reach `efficiency` of its peak."""
        return StepTime.of(
            machine, kind=self.kind, operations=self.operations, touched=self.touched, traffic=self.sent, efficiency=efficiency
        )


def fits(peak: float, memory: float) -> bool:
    """Return whether `peak` bytes fit on a device with `memory` bytes, of which the fraction `SPARE` is reserved.

    Example:
        >>> fits(71e9, 80e9), fits(73e9, 80e9)
        (True, False)
    """
    return peak <= (1 - SPARE) * memory


def estimate(job: Job) -> Estimate:
    """Estimate the cost of a step; raise if the layers cannot be split as the mesh says, or the precision is unknown."""
    return _estimate(job, forward_flops(tasks.build(job.model)), recomputation(job.model, job.largest))


def _estimate(job: Job, formula: Mapping[Exponents, int], again: float) -> Estimate:
    whole: Any = tasks.build(job.model)
    memory = step_memory(tasks.build(split(job.model, job.mesh.tensor)), job.largest, precision=job.precision)
    real = [evaluate(formula, *row_lengths(whole, batch)) for batch in job.batches]
    padded = [evaluate(formula, *_padded(*row_lengths(whole, batch))) for batch in job.batches]
    s, t = row_lengths(whole, job.largest)
    largest = evaluate(formula, *_padded(s, t))
    average = sum(padded) / len(padded) / largest  # relative to the largest batch, whose tensors were counted
    share = job.mesh.data if job.strategy == "fsdp2" else 1
    update = (memory.gradients + 2 * memory.parameters + 2 * memory.optimizer) / share  # reads all, writes all except gradients
    sent = communication(memory, job.mesh, job.strategy, micro_batches=job.micro_batches)
    return Estimate(
        rows=len(s),
        tokens=int((s + t).sum()),
        parts=memory_parts(memory, job.mesh, job.strategy, accumulates=job.micro_batches > 1),
        sent=replace(sent, exposed={name: average * size for name, size in sent.exposed.items()}),
        model_flops=job.micro_batches * (1 + BACKWARD) * sum(real) / len(real) / job.mesh.tensor,
        operations=job.micro_batches * (1 + BACKWARD) * sum(padded) / len(padded) / job.mesh.tensor * again,
        touched=job.micro_batches * 2 * (average * memory.made + memory.parameters) + update,
        kind=KINDS[job.precision],
    )


def recomputation(model: Mapping[str, Any], batch: Mapping[str, Any]) -> float:
    """Return the factor by which activation checkpointing increases the FLOPs of a step: 1 without it, at most 4/3.

    The lengths in the batch matter, its number of rows does not.
    """
    if model.get("activation_checkpointing", "none") == "none":
        return 1.0
    with_it, without = (_counted({**model, **policy}, some_rows(batch, slice(1))) for policy in ({}, {"activation_checkpointing": "none"}))
    return with_it / without


def _counted(model: Mapping[str, Any], batch: Mapping[str, Any]) -> int:
    task: Any = tasks.build(model)
    with fake_tensors(torch.double) as fake:
        task.is_compiled = False
        task.configure_model()
        shapes = tree_map(lambda x: fake.from_tensor(x) if isinstance(x, Tensor) else x, dict(batch))
        inputs = [shapes[key] for key in ("src", "tgt", "tokens", "image") if key in shapes]
        inputs = [x.double() if x.is_floating_point() else x for x in inputs]
        with as_written(task.model), FlopCounterMode(display=False) as counter:
            further = {"further": True} if model.get("multi_token") else {}
            out = task.model.train()(*inputs, **further)
            outputs: list[Tensor] = out if further else [out[0] if isinstance(out, tuple) else out]
            torch.autograd.backward([x.sum() for x in outputs])
        return int(counter.get_total_flops())


def changes(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield changes that reduce the memory of a step, each with its command-line flags; some may not suit the model.

    The last ones combine the others, with smaller and smaller batches.
    """
    size = job.micro_batches
    combined, words = job, []
    if job.model.get("activation_checkpointing", "none") == "none":
        for policy in ("mixer", "layer"):
            changed = replace(job, model={**job.model, "activation_checkpointing": policy})
            yield f"--model.activation_checkpointing {policy}", changed
        combined, words = changed, ["--model.activation_checkpointing layer"]
    if job.precision == "32-true":
        yield "--precision bf16-mixed", replace(job, precision="bf16-mixed")
        combined, words = replace(combined, precision="bf16-mixed"), [*words, "--precision bf16-mixed"]
    if job.strategy == "ddp" and job.mesh.data > 1:
        yield "--strategy fsdp2", replace(job, strategy="fsdp2")
        combined, words = replace(combined, strategy="fsdp2"), [*words, "--strategy fsdp2"]
    if job.mesh.data % 2 == 0:
        mesh = Mesh(data=job.mesh.data // 2, tensor=2 * job.mesh.tensor)
        yield f"--mesh {mesh.data}x{mesh.tensor} --strategy fsdp2", replace(job, mesh=mesh, strategy="fsdp2")
    if job.mesh.processes == 1:
        yield "--gpus 8 --strategy fsdp2", replace(job, mesh=Mesh(data=8, tensor=1), strategy="fsdp2")
    if (halved := _halved(job)) is not None:
        yield f"batches of half the rows, --accumulate {2 * size}", halved
    if words:
        yield " ".join(words), combined
    smaller, part = _halved(combined), 2
    while smaller is not None:
        if words or part > 2:
            yield " ".join([*words, f"1/{part} of the rows, --accumulate {part * size}"]), smaller
        smaller, part = _halved(smaller), 2 * part


def _halved(job: Job) -> Job | None:
    rows = min(len(next(iter(batch.values()))) for batch in job.batches)
    if rows < 2:
        return None
    batches = [some_rows(batch, slice((len(next(iter(batch.values()))) + 1) // 2)) for batch in job.batches]
    return replace(job, batches=batches, micro_batches=2 * job.micro_batches)


def alternatives(job: Job, *, memory: float | None) -> Iterator[tuple[str, Estimate]]:
    """Yield the cost of each change that suits the model; with `memory` in bytes, combinations only until one fits."""
    done = False
    formula = forward_flops(tasks.build(job.model))  # no change affects it
    factors: dict[object, float] = {}
    for words, changed in changes(job):
        is_single = words.count("--") <= 1 or words.startswith(("--mesh", "--gpus", "batches"))
        if done and not is_single:
            return
        try:
            lengths = [x.shape[1:] for x in changed.largest.values() if isinstance(x, Tensor)]
            key = changed.model.get("activation_checkpointing"), *lengths
            if key not in factors:
                factors[key] = recomputation(changed.model, changed.largest)
            planned = _estimate(changed, formula, factors[key])
        except ConfigurationError:  # for instance, heads that cannot be split
            continue
        yield words, planned
        done = memory is None or fits(planned.peak, memory)


def _padded(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return s.max().expand_as(s), t.max().expand_as(t)
