"""Three training steps of a job of `attnkit plan --measure`, in processes of their own: prints the most that torch had allocated."""

import contextlib
import io
import json
import logging
import sys
import warnings
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_only
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from attnkit.registry import tasks
from attnkit.strategy import FSDP2

STEPS = 3  # gradients and the optimizer's state are there from the second one on


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the peak in bytes, that of the process with the highest one, and the device.

    On a GPU it is what torch's allocator counts. On a CPU all allocations of tensors are recorded by torch's profiler, those inside of
    kernels too, and added up.
    """
    data, tensor = job["mesh"]
    task = tasks.build(job["model"])
    on_gpu = torch.cuda.device_count() >= data * tensor
    shards = job["strategy"] == "fsdp2" and data * tensor > 1
    strategy: Any = FSDP2(tensor_parallel_size=tensor) if shards else "ddp" if data > 1 else "auto"
    trainer = Trainer(
        max_steps=STEPS, precision=job["precision"], accelerator="gpu" if on_gpu else "cpu", devices=data * tensor, strategy=strategy,
        use_distributed_sampler=False, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader: Any = DataLoader([job["batch"]] * STEPS, batch_size=None)  # type: ignore[arg-type]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        trainer.fit(task, loader)
        peak = torch.cuda.max_memory_allocated()
    else:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            trainer.fit(task, loader)
        now = peak = 0
        for event in recorded.profiler.kineto_results.events():
            if event.name() == "[memory]":
                now += event.nbytes()
                peak = max(peak, now)
    highest = trainer.strategy.reduce(torch.tensor(peak, device=trainer.strategy.root_device), reduce_op="max")
    return {"peak": int(highest), "device": torch.cuda.get_device_name() if on_gpu else "CPU"}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        answer = measure(torch.load(sys.argv[1], weights_only=False))
    if not getattr(rank_zero_only, "rank", 0):
        print(json.dumps(answer))
