"""Three training steps of a job of `attnkit plan --measure`, in a process of their own: prints the most that torch had allocated."""

import contextlib
import io
import json
import logging
import sys
import warnings
from typing import Any

import torch
from lightning.pytorch import Trainer
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader

from attnkit.registry import tasks

STEPS = 3  # gradients and the optimizer's state are there from the second one on


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Train, and return the peak in bytes and the device.

    On a GPU it is what torch's allocator counts. On a CPU all allocations of tensors are recorded by torch's profiler, those inside of
    kernels too, and added up.
    """
    task = tasks.build(job["model"])
    on_gpu = torch.cuda.is_available()
    trainer = Trainer(
        max_steps=STEPS, precision=job["precision"], accelerator="gpu" if on_gpu else "cpu", devices=1, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    loader: Any = DataLoader([job["batch"]] * STEPS, batch_size=None)  # type: ignore[arg-type]
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
        trainer.fit(task, loader)
        return {"peak": torch.cuda.max_memory_allocated(), "device": torch.cuda.get_device_name()}
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        trainer.fit(task, loader)
    now = peak = 0
    for event in recorded.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return {"peak": peak, "device": "CPU"}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with contextlib.redirect_stdout(io.StringIO()):
        answer = measure(torch.load(sys.argv[1], weights_only=False))
    print(json.dumps(answer))
