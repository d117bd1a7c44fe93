"""A training step planned: its memory, operations and communication for one process; and the same with something changed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from attnkit.profile.flops import BACKWARD, Exponents, forward_flops, row_lengths
from attnkit.profile.machine import EFFICIENCY, SPARE, Machine, StepTime
from attnkit.profile.memory import step_memory
from attnkit.profile.partition import Mesh, Traffic, communication, memory_parts, some_rows, split
from attnkit.registry import ConfigurationError, tasks

KINDS = {"32-true": "fp32", "bf16-mixed": "bf16", "bf16-true": "bf16", "16-mixed": "fp16", "16-true": "fp16"}
"""The kind of numbers in products, by precision."""
PEAK = "at the peak"


@dataclass(frozen=True, kw_only=True)
class Job:
    """A training step that is to be planned.

    Attributes:
        model: The task's spec.
        batches: What one process gets, each a micro-batch.
        precision: One of `PRECISIONS`.
        mesh: The processes.
        strategy: `ddp` or `fsdp2`.
        micro_batches: Of a step.
    """

    model: Mapping[str, Any]
    batches: Sequence[Mapping[str, Any]]
    precision: str
    mesh: Mesh
    strategy: str
    micro_batches: int = 1

    @property
    def largest(self) -> Mapping[str, Any]:
        """The batch with most numbers."""
        return max(self.batches, key=_numbers)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What a step needs of one process.

    Attributes:
        rows: Of the largest batch.
        tokens: Of the largest batch, padding excluded; of images, their number.
        parts: Bytes at the peak, by what they are, with the largest batch; all together under `PEAK`.
        sent: Bytes, with batches of average size.
        model_flops: Operations on real tokens, forward and backward, with batches of average size: what the utilisation (MFU) counts.
        operations: What the device computes: these, and those of padding and recomputation.
        touched: Bytes read and written by a step that reads and writes each tensor once.
        kind: Of the numbers in products.
    """

    rows: int
    tokens: int
    parts: Mapping[str, float]
    sent: Traffic
    model_flops: float
    operations: float
    touched: float
    kind: str

    @property
    def peak(self) -> float:
        """Bytes at the peak."""
        return self.parts[PEAK]

    def time(self, machine: Machine, efficiency: float = EFFICIENCY) -> StepTime:
        """Return how long the step takes."""
        return StepTime.of(
            machine, kind=self.kind, operations=self.operations, touched=self.touched, traffic=self.sent, efficiency=efficiency
        )


def fits(peak: float, memory: float) -> bool:
    """Return whether a process that has `peak` bytes at the peak has room on a device with `memory` bytes, of which some are spared.

    Example:
        >>> fits(71e9, 80e9), fits(73e9, 80e9)
        (True, False)
    """
    return peak <= (1 - SPARE) * memory


def estimate(job: Job) -> Estimate:
    """Plan a step.

    Raises:
        ConfigurationError: The layers cannot be split so, or the precision is not known.
    """
    whole: Any = tasks.build(job.model)
    memory = step_memory(tasks.build(split(job.model, job.mesh.tensor)), job.largest, precision=job.precision)
    formula = forward_flops(whole)
    again = recomputation(job.model, job.largest)
    real = [_flops(formula, *row_lengths(whole, batch)) for batch in job.batches]
    padded = [_flops(formula, *_padded(*row_lengths(whole, batch))) for batch in job.batches]
    s, t = row_lengths(whole, job.largest)
    largest = _flops(formula, *_padded(s, t))
    average = sum(padded) / len(padded) / largest  # of the largest batch, whose tensors were counted
    share = job.mesh.data if job.strategy == "fsdp2" else 1
    step = (
        memory.gradients + 2 * memory.parameters + 2 * memory.optimizer
    ) / share  # the optimizer reads all, and writes all but gradients
    sent = communication(memory, job.mesh, job.strategy, micro_batches=job.micro_batches)
    return Estimate(
        rows=len(s),
        tokens=int((s + t).sum()),
        parts=memory_parts(memory, job.mesh, job.strategy, accumulates=job.micro_batches > 1),
        sent=replace(sent, between={name: average * size for name, size in sent.between.items()}),
        model_flops=job.micro_batches * (1 + BACKWARD) * sum(real) / len(real) / job.mesh.tensor,
        operations=job.micro_batches * (1 + BACKWARD) * sum(padded) / len(padded) / job.mesh.tensor * again,
        touched=job.micro_batches * 2 * (average * memory.made + memory.parameters) + step,
        kind=KINDS[job.precision],
    )


def recomputation(model: Mapping[str, Any], batch: Mapping[str, Any]) -> float:
    """Return how many times the operations of a step its recomputation makes of them: 1 without it, up to 4/3.

    Args:
        model: The task's spec.
        batch: A batch; its lengths decide, not its rows.
    """
    if model.get("activation_checkpointing", "none") == "none":
        return 1.0
    with_it, without = (_counted({**model, **policy}, some_rows(batch, 1)) for policy in ({}, {"activation_checkpointing": "none"}))
    return with_it / without


def _counted(model: Mapping[str, Any], batch: Mapping[str, Any]) -> int:
    task: Any = tasks.build(model)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(torch.double)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, torch.random.fork_rng(devices=[]):
            task.is_compiled = False
            task.configure_model()
            shapes = tree_map(lambda x: fake.from_tensor(x) if isinstance(x, Tensor) else x, dict(batch))
            inputs = [shapes[key] for key in ("src", "tgt", "tokens", "image") if key in shapes]
            inputs = [x.double() if x.is_floating_point() else x for x in inputs]
            with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
                out = task.model.train()(*inputs)
                (out[0] if isinstance(out, tuple) else out).sum().backward()
            return int(counter.get_total_flops())
    finally:
        torch.set_default_dtype(dtype)


def changes(job: Job) -> Iterator[tuple[str, Job]]:
    """Yield what could be changed so that a step needs less memory, each with the words of the command line; some may not suit the model.

    The last ones are all of the first together, with ever smaller batches.
    """
    size = job.micro_batches
    together, words = job, []
    if job.model.get("activation_checkpointing", "none") == "none":
        for policy in ("attention", "layer"):
            changed = replace(job, model={**job.model, "activation_checkpointing": policy})
            yield f"--model.activation_checkpointing {policy}", changed
        together, words = changed, ["--model.activation_checkpointing layer"]
    if job.precision == "32-true":
        yield "--precision bf16-mixed", replace(job, precision="bf16-mixed")
        together, words = replace(together, precision="bf16-mixed"), [*words, "--precision bf16-mixed"]
    if job.strategy == "ddp" and job.mesh.data > 1:
        yield "--strategy fsdp2", replace(job, strategy="fsdp2")
        together, words = replace(together, strategy="fsdp2"), [*words, "--strategy fsdp2"]
    if job.mesh.data % 2 == 0:
        mesh = Mesh(data=job.mesh.data // 2, tensor=2 * job.mesh.tensor)
        yield f"--mesh {mesh.data}x{mesh.tensor} --strategy fsdp2", replace(job, mesh=mesh, strategy="fsdp2")
    if job.mesh.processes == 1:
        yield "--gpus 8 --strategy fsdp2", replace(job, mesh=Mesh(data=8, tensor=1), strategy="fsdp2")
    if (halved := _halved(job)) is not None:
        yield f"batches of half the rows, --accumulate {2 * size}", halved
    if words:
        yield " ".join(words), together
    smaller, part = _halved(together), 2
    while smaller is not None:
        if words or part > 2:
            yield " ".join([*words, f"1/{part} of the rows, --accumulate {part * size}"]), smaller
        smaller, part = _halved(smaller), 2 * part


def _halved(job: Job) -> Job | None:
    rows = min(len(next(iter(batch.values()))) for batch in job.batches)
    if rows < 2:
        return None
    batches = [some_rows(batch, (len(next(iter(batch.values()))) + 1) // 2) for batch in job.batches]
    return replace(job, batches=batches, micro_batches=2 * job.micro_batches)


def alternatives(job: Job, *, memory: float | None) -> Iterator[tuple[str, Estimate]]:
    """Yield what each change that suits the model would need; with `memory`, combinations only until one fits."""
    done = False
    for words, changed in changes(job):
        is_single = words.count("--") <= 1 or words.startswith(("--mesh", "--gpus", "batches"))
        if done and not is_single:
            return
        try:
            planned = estimate(changed)
        except ConfigurationError:  # such as heads that cannot be split
            continue
        yield words, planned
        done = memory is None or fits(planned.peak, memory)


def parameter_count(model: Mapping[str, Any]) -> int:
    """Return the parameters of a task's model, shared ones once."""
    task: Any = tasks.build(model)
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        built: nn.Module = task.build_model()
    return sum(p.numel() for p in built.parameters())


def _numbers(batch: Mapping[str, Any]) -> int:
    return sum(x.numel() for x in batch.values() if isinstance(x, Tensor))


def _padded(s: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return s.max().expand_as(s), t.max().expand_as(t)


def _flops(formula: Mapping[Exponents, int], s: Tensor, t: Tensor) -> int:
    return sum(c * int((s**a * t**b).sum()) for (a, b), c in formula.items())
