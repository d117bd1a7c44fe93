"""Contestants timed in alternation on synthetic tokens: training steps, forward passes, prefill and decoding.

Every contestant is timed once in each round, so other load on the machine affects all of them. The results are medians over the rounds,
their spread, and the share of the matrix-product rate, which is measured in the same run.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.flop_counter import FlopCounterMode

from attnkit.half import products_in_float32
from attnkit.models import EncoderDecoderModel
from attnkit.models.base import GeneratingModel
from attnkit.profile.ceilings import product_rate, timed
from attnkit.profile.flops import BACKWARD, as_written, trained_outputs
from attnkit.profile.measurement import MARK, allocation_peaks
from attnkit.profile.pair_peers import PairPeer
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
    """`step`: forward, cross-entropy, backward, AdamW; `prefill`: one new token after a prompt; `decode`: `NEW_TOKENS` more, greedy. The
    time of `decode` does not include that of `prefill`, which is measured again in each round and subtracted."""
    lengths: Sequence[int] = (128, 512)  # tokens of each row, in source and target alike
    batch: int = 8  # rows
    vocab_size: int = 8192  # tokens of the vocabulary
    precision: Precision = "fp32"  # `fp32`, or `bf16` by autocast
    is_compiled: bool = False  # whether `step` and `forward` call a compiled model. `prefill` and `decode` always run eagerly.
    rounds: int = 9  # how often each contestant is timed


@dataclass(frozen=True, kw_only=True)
class Row:
    """One contestant's result."""

    work: Work
    length: int
    name: str
    parameters: int
    milliseconds: float  # median duration
    spread: float  # interquartile range of the durations, as a fraction of the median
    tokens_per_second: float  # counts the tokens of all rows: those of the target; with `prefill` the prompts, with `decode` the new ones
    relative: float  # median over the rounds of the first contestant's duration divided by this one's: above 1 is faster than the first
    peak_mib: float  # most memory allocated at once during the call, beyond that allocated before; on a CPU, by torch's profiler
    utilisation: float | None
    """FLOPs of matrix products per second, as a fraction of the rate measured in this run; None where they are not counted."""


def measure(models: Mapping[str, nn.Module], plan: Plan, device: torch.device) -> tuple[float, list[Row]]:
    """Return the matrix-product rate in TFLOP/s, and a row for each kind of work, length and contestant.

    A contestant maps tokens [B, T] to logits [B, T, V], or source and target to logits. Those without `generate`, such as encoders, take no
    part in `prefill` and `decode`. The numbers in all their matrices are redrawn.
    """
    for model in models.values():
        _draw(model)
    with products_in_float32():  # as in `attnkit fit`
        ceiling = product_rate({"fp32": torch.float32, "bf16": torch.bfloat16}[plan.precision], device, seconds=0.5)
        rows = [row for work in plan.works for length in plan.lengths for row in _contest(models, work, length, plan, device, ceiling)]
    if not rows:
        raise ConfigurationError(
            f"none of {', '.join(models)} can do {' or '.join(plan.works)}: a model without a decoder does not generate"
        )
    return ceiling, rows


def _draw(model: nn.Module) -> None:
    """Draw all matrices from one distribution: a GPU multiplies numbers with few digits faster, such as gradients of saturated logits."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for matrix in (p for p in model.parameters() if p.ndim > 1):
            matrix.copy_(0.02 * torch.randn(matrix.shape, generator=generator))


def _contest(models: Mapping[str, nn.Module], work: Work, length: int, plan: Plan, device: torch.device, ceiling: float) -> Iterator[Row]:
    calls = {name: call for name, model in models.items() if (call := _call(model, work, length, plan, device)) is not None}
    prompts = {name: _call(models[name], "prefill", length, plan, device) for name in calls} if work == "decode" else {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # compiles, allocates the optimizer's state, selects kernels
    for _ in range(plan.rounds):
        for name, call in calls.items():
            prompt = prompts.get(name)
            reading = 0.0 if prompt is None else timed(prompt, device)
            count = IN_A_ROW if device.type == "cuda" and work in ("step", "forward") else 1
            times[name].append(_reading(call, count, device) - reading)
    for name, call in calls.items():
        seconds = statistics.median(times[name])
        if seconds <= 0:
            raise ConfigurationError(f"{name} wrote {NEW_TOKENS} tokens in less than the noise of the clock: raise --rounds or --batch")
        quartiles = statistics.quantiles(times[name], n=4) if plan.rounds > 1 else [seconds] * 3
        first = next(iter(times.values()))
        flops = _flops(models[name], work, length, plan, device)
        yield Row(
            work=work, length=length, name=name, parameters=sum(p.numel() for p in models[name].parameters()),
            milliseconds=seconds * 1e3, spread=(quartiles[2] - quartiles[0]) / seconds,
            tokens_per_second=plan.batch * {"decode": NEW_TOKENS}.get(work, length) / seconds,
            relative=statistics.median(a / b for a, b in zip(first, times[name], strict=True)),
            peak_mib=peak_memory(call, device) / 2**20, utilisation=None if flops is None else flops / seconds / 1e12 / ceiling,
        )  # fmt: skip


def _reading(call: Callable[[], object], count: int, device: torch.device) -> float:
    """Return the seconds of one of `count` calls."""

    def calls() -> None:
        for _ in range(count):
            call()

    return timed(calls, device) / count


def _call(model: nn.Module, work: Work, length: int, plan: Plan, device: torch.device) -> Callable[[], object] | None:
    """Return the function to time, or None if the model cannot do this work."""
    inputs = _tokens(model, length, plan, device)
    autocast = torch.autocast(device.type, dtype=torch.bfloat16, enabled=plan.precision == "bf16")
    if work in ("prefill", "decode"):
        generate = getattr(model, "generate", None)
        if generate is None:
            return None
        count = 1 if work == "prefill" else 1 + NEW_TOKENS

        def write() -> None:
            with autocast, torch.no_grad():
                model.eval()
                generate(inputs[0], max_length=count, min_length=count)

        return write
    called: Any = torch.compile(model) if plan.is_compiled else model
    if work == "forward":

        def forward() -> None:
            with autocast, torch.no_grad():
                model.eval()
                called(*inputs)

        return forward
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    targets, further = inputs[-1].flatten(), trained_outputs(model)

    def step() -> None:
        model.train()
        with autocast:
            outputs: Any = called(*inputs, **further)
            loss: Any = sum(F.cross_entropy(logits.flatten(0, 1), targets) for logits in (outputs if further else [outputs]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _tokens(model: nn.Module, length: int, plan: Plan, device: torch.device) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    count = 2 if isinstance(model, EncoderDecoderModel | PairPeer) else 1
    drawn = torch.randint(3, plan.vocab_size, (count, plan.batch, length), generator=generator)  # no padding, no end
    return [*drawn.to(device)]


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


def _flops(model: nn.Module, work: Work, length: int, plan: Plan, device: torch.device) -> int | None:
    """Return the FLOPs of matrix products, those of masked pairs included; a backward pass counts twice a forward pass.

    A prefill computes logits for its one new token only; in an encoder-decoder, that is also the only target token.
    """
    if work == "decode":
        return None
    inputs = [x[:1] for x in _tokens(model, length, plan, device)]
    model.train()  # nn.Transformer's kernels for evaluation are not counted
    with torch.no_grad(), as_written(model), FlopCounterMode(display=False) as counter:
        if work != "prefill":
            model(*inputs, **(trained_outputs(model) if work == "step" else {}))
        elif isinstance(model, GeneratingModel):
            start = model.begin(inputs[0])
            model.step(start.tokens, start.state)
        else:
            generate: Any = model.generate
            generate(inputs[0], max_length=1, min_length=1)
    return int(counter.get_total_flops()) * plan.batch * (1 + BACKWARD if work == "step" else 1)
