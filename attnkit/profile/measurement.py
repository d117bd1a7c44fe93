"""A few training steps for `attnkit plan --measure`, in separate processes: prints the peak memory that torch allocated."""

import contextlib
import io
import json
import logging
import sys
import warnings
from bisect import bisect_left, insort
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import LambdaCallback
from lightning.pytorch.utilities import rank_zero_only
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile, record_function
from torch.utils.data import DataLoader

from attnkit.registry import tasks
from attnkit.strategy import FSDP2

STEPS = 5  # in the first one, the optimizer has no state yet
MARK = "attnkit: the end of a step"


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the device and the highest and lowest peak memory of a step in any process, in bytes.

    On a GPU, torch's allocator counts it. On a CPU, it is the sum of all tensor allocations that torch's profiler records, including those
    within kernels.
    """
    data, tensor = job["mesh"]
    task = tasks.build(job["model"])
    on_gpu = torch.cuda.device_count() >= data * tensor
    shards = job["strategy"] == "fsdp2" and data * tensor > 1
    strategy: Any = FSDP2(tensor_parallel_size=tensor) if shards else "ddp" if data > 1 else "auto"
    peaks: list[int] = []

    def mark(*_: Any) -> None:
        """Record the peak memory of a step on a GPU, or mark its end in the profile of a CPU."""
        if on_gpu:
            peaks.append(torch.cuda.max_memory_allocated())
            torch.cuda.reset_peak_memory_stats()
        else:
            with record_function(MARK):
                pass

    trainer = Trainer(
        max_steps=STEPS, precision=job["precision"], accelerator="gpu" if on_gpu else "cpu", devices=data * tensor, strategy=strategy,
        use_distributed_sampler=False, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
        callbacks=LambdaCallback(on_train_batch_end=mark),
    )  # fmt: skip
    loader: Any = DataLoader([job["batch"]] * STEPS, batch_size=None)  # type: ignore[arg-type]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        trainer.fit(task, loader)
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            trainer.fit(task, loader)
        peaks = allocation_peaks(recorded)
    ends = torch.tensor([max(peaks), -min(peaks[1:])], device=trainer.strategy.root_device)
    highest, lowest = trainer.strategy.reduce(ends, reduce_op="max").tolist()
    return {"peak": highest, "lowest": -lowest, "device": torch.cuda.get_device_name() if on_gpu else "CPU"}


def allocation_peaks(recorded: Any) -> list[int]:
    """Return the peak memory of each step in bytes.

    Tensors that a communication thread holds last are freed there, where the profiler does not see it. They count as freed once something
    else is allocated at the same address, so some peaks are too high.
    """
    nodes, events = [*recorded.profiler.kineto_results.experimental_event_tree()], []
    while nodes:
        node = nodes.pop()
        nodes += node.children
        kind, fields = node.typed
        if kind == _EventType.Allocation:
            events.append((node.start_time_ns, fields.ptr, fields.alloc_size))
        elif node.name == MARK:
            events.append((node.start_time_ns, 0, 0))  # no allocation has size 0
    starts: list[int] = []  # addresses of the live blocks, sorted
    sizes: dict[int, int] = {}
    peaks, now, peak = [], 0, 0

    def free(start: int) -> None:
        nonlocal now
        now -= sizes.pop(start)
        del starts[bisect_left(starts, start)]

    for _, start, size in sorted(events, key=lambda event: event[0]):
        if size == 0:
            peaks.append(peak)
            peak = now
        elif size < 0:
            if start in sizes:
                free(start)
        else:
            place = bisect_left(starts, start)
            before = starts[max(place - 1, 0) : place]
            for other in [s for s in before if s + sizes[s] > start] + starts[place : bisect_left(starts, start + size)]:
                free(other)
            insort(starts, start)
            sizes[start] = size
            now += size
            peak = max(peak, now)
    return peaks


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        answer = measure(torch.load(sys.argv[1], weights_only=False))
    if not getattr(rank_zero_only, "rank", 0):
        print(json.dumps(answer))
