"""Contestants timed in alternation on synthetic batches: training steps, forward passes, prefill and decoding.

Every contestant is timed once in each round, so other load on the machine affects all of them. The results are medians over the rounds,
their spread, and the share of the matrix-product rate, which is measured in the same run.
"""

import os
import statistics
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from attnkit.half import products_in_float32
from attnkit.head import Head
from attnkit.models.base import GeneratingModel
from attnkit.profile.ceilings import product_rate, timed
from attnkit.profile.contestants import Contestant, Kind, common_kind, contestant
from attnkit.profile.flops import BACKWARD, as_written
from attnkit.profile.measurement import MARK, allocation_peaks
from attnkit.registry import ConfigurationError

Work = Literal["step", "forward", "prefill", "decode"]
Precision = Literal["fp32", "bf16"]
WORKS: tuple[Work, ...] = get_args(Work)
NEW_TOKENS = 32  # tokens that `decode` adds to each row
IN_A_ROW = 4
"""Calls of `step` and `forward` in one reading of the clock on a GPU: as in training, nothing waits for the GPU between two of them."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of a measurement."""

    works: Sequence[Work] = WORKS
    """`step`: forward, loss, backward, AdamW; `prefill`: one new token after a prompt; `decode`: `NEW_TOKENS` more, greedy. The
    time of `decode` does not include that of `prefill`, which is measured again in each round and subtracted."""
    lengths: Sequence[int] = (128, 512)  # tokens of each row, in source (or its frames of sound) and target alike; not read for images
    batch: int = 8  # rows
    vocab_size: int = 8192  # tokens of the vocabulary
    precision: Precision = "fp32"  # `fp32`, or `bf16` by autocast
    is_compiled: bool = False  # whether `step` and `forward` call a compiled model. `prefill` and `decode` always run eagerly.
    rounds: int = 9  # how often each contestant is timed


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant's result."""

    work: Work
    length: int | None  # None for images
    name: str
    parameters: int
    milliseconds: float  # median duration
    spread: float  # interquartile range of the durations, as a fraction of the median
    rows_per_second: float
    tokens_per_second: float | None
    """Counts the tokens of all rows: those of the target; with `prefill` the prompts, with `decode` the new ones. None for images and sound
    that are only read."""
    relative: float  # median over the rounds of the first contestant's duration divided by this one's: above 1 is faster than the first
    peak_mib: float  # most memory allocated at once during the call, beyond that allocated before; on a CPU, by torch's profiler
    utilisation: float | None
    """FLOPs of matrix products per second, as a fraction of the rate measured in this run; None where they are not counted."""


def measure(models: Mapping[str, nn.Module], plan: Plan, device: torch.device) -> tuple[float, list[Row]]:
    """Return the matrix-product rate in TFLOP/s, and a row for each kind of work, length and contestant.

    Tasks are timed as they train: their own training step, and in evaluation the logits that the loss of a step needs. Other models are
    timed as maps to logits, with torch's cross-entropy. They take no part in work that they cannot do: `prefill` and `decode` without
    `generate`, as encoders, or `forward` without a pass apart from the loss, as word vectors. The numbers in all matrices are redrawn.

    Raises:
        ConfigurationError: The models differ in inputs or targets (`common_kind`), or none can do any of the work.
    """
    kind = common_kind(models)
    for model in models.values():
        _draw(model)
    contestants = {name: contestant(model, is_compiled=plan.is_compiled) for name, model in models.items()}
    contests = [(work, length) for work in plan.works for length in (plan.lengths if kind.has_tokens else [None])]
    with products_in_float32():  # as in `attnkit fit`
        ceiling = product_rate({"fp32": torch.float32, "bf16": torch.bfloat16}[plan.precision], device, seconds=0.5)
        rows = [row for work, length in contests for row in _contest(contestants, kind, work, length, plan, device, ceiling)]
    if not rows:
        raise ConfigurationError(
            f"none of {', '.join(models)} can do {' or '.join(plan.works)}: a model without a decoder does not generate, and word vectors "
            f"have no forward pass apart from their loss"
        )
    return ceiling, rows


def _draw(model: nn.Module) -> None:
    """Draw all matrices from one distribution: a GPU multiplies numbers with few digits faster, such as gradients of saturated logits."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in (p for p in model.parameters() if p.ndim > 1):
            matrix.copy_(0.02 * torch.randn(matrix.shape, generator=generator))


def _contest(
    contestants: Mapping[str, Contestant], kind: Kind, work: Work, length: int | None, plan: Plan, device: torch.device, ceiling: float
) -> Iterator[Row]:
    excluded = {token for one in contestants.values() for part in one.model.modules() if isinstance(part, Head) for token in part.excluded}
    batch = {key: x.to(device) for key, x in kind.batch(plan.vocab_size, plan.batch, length or 0, excluded=excluded).items()}
    calls = {name: call for name, one in contestants.items() if (call := _call(one, work, batch, plan, device)) is not None}
    prompts = {name: _call(contestants[name], "prefill", batch, plan, device) for name in calls} if work == "decode" else {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # compiles, allocates the optimizer's state, selects kernels
    for _ in range(plan.rounds):
        for name, call in calls.items():
            prompt = prompts.get(name)
            reading = 0.0 if prompt is None else timed(prompt, device)
            count = IN_A_ROW if device.type == "cuda" and work in ("step", "forward") else 1
            times[name].append(_reading(call, count, device) - reading)
    tokens = NEW_TOKENS if work == "decode" else None if work == "prefill" and kind.shape else length
    for name, call in calls.items():
        seconds = statistics.median(times[name])
        if seconds <= 0:
            raise ConfigurationError(f"{name} wrote {NEW_TOKENS} tokens in less than the noise of the clock: raise --rounds or --batch")
        quartiles = statistics.quantiles(times[name], n=4) if plan.rounds > 1 else [seconds] * 3
        first = next(iter(times.values()))
        flops = _flops(contestants[name], work, batch)
        yield Row(
            work=work, length=length, name=name, parameters=sum(p.numel() for p in contestants[name].module.parameters()),
            milliseconds=seconds * 1e3, spread=(quartiles[2] - quartiles[0]) / seconds, rows_per_second=plan.batch / seconds,
            tokens_per_second=None if tokens is None else plan.batch * tokens / seconds,
            relative=statistics.median(a / b for a, b in zip(first, times[name], strict=True)),
            peak_mib=peak_memory(call, device) / 2**20, utilisation=None if flops is None else flops / seconds / 1e12 / ceiling,
        )  # fmt: skip


def _reading(call: Callable[[], object], count: int, device: torch.device) -> float:
    """Return the seconds of one of `count` calls."""

    def calls() -> None:
        for _ in range(count):
            call()

    return timed(calls, device) / count


def _call(one: Contestant, work: Work, batch: dict[str, Tensor], plan: Plan, device: torch.device) -> Callable[[], object] | None:
    """Return the function to time, or None if the model cannot do this work."""
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=plan.precision == "bf16")
    if work in ("prefill", "decode"):
        generate = getattr(one.model, "generate", None)
        if generate is None:
            return None
        count = 1 if work == "prefill" else 1 + NEW_TOKENS

        def write() -> None:
            with autocast, torch.no_grad():
                one.module.eval()
                generate(_prompt(batch), max_length=count, min_length=count)

        return write
    if work == "forward":
        inputs = one.inputs(batch)
        if inputs is None:
            return None

        def forward() -> None:
            with autocast, torch.no_grad():
                one.module.eval()
                one.outputs(*inputs)

        return forward
    optimizer = torch.optim.AdamW(one.module.parameters(), lr=1e-5, fused=True)

    def step() -> None:
        one.module.train()
        with autocast:
            loss = one.loss(batch)
        loss.backward()  # type: ignore[no-untyped-call]
        one.end_step()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _prompt(batch: Mapping[str, Tensor]) -> Tensor:
    return batch["src" if "src" in batch else "tokens"]


def peak_memory(call: Callable[[], object], device: torch.device) -> float:
    """Return the most bytes allocated at once during a call, beyond those allocated before."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler writes its starts and stops to stderr
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
        with record_function(MARK):
            pass
    return float(allocation_peaks(recorded)[0])


def _flops(one: Contestant, work: Work, batch: Mapping[str, Tensor]) -> int | None:
    """Return the FLOPs of matrix products, those of masked pairs included; a backward pass counts twice a forward pass.

    A prefill computes logits for its one new token only; in an encoder-decoder, that is also the only target token. Recomputed activations
    do not count.
    """
    if work == "decode":
        return None
    rows = len(batch["example"])
    counted = range(rows if one.rows_differ else 1)
    one.module.train()  # nn.Transformer's kernels for evaluation are not counted
    eager = torch.compiler.set_stance("force_eager")
    with warnings.catch_warnings(), torch.no_grad(), eager, as_written(one.model), FlopCounterMode(display=False) as counter:
        warnings.filterwarnings("ignore", "Using `torch.compile.* global hooks", UserWarning)  # those of the counter, which count once
        for i in counted:
            row = {key: x[i : i + 1] for key, x in batch.items()}
            if work == "step":
                one.loss(row)
                one.end_step()
            elif work == "forward":
                one.outputs(*(one.inputs(row) or ()))
            elif isinstance(one.model, GeneratingModel):
                start = one.model.begin(_prompt(row))
                one.model.step(start.tokens, start.state)
            else:
                generate: Any = one.model.generate
                generate(_prompt(row), max_length=1, min_length=1)
    return int(counter.get_total_flops()) * rows // len(counted) * (1 + BACKWARD if work == "step" else 1)
