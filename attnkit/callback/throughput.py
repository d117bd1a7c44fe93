# https://arxiv.org/abs/2204.02311
"""Speed and memory of training."""

import sys
import time
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from attnkit.profile.flops import BACKWARD, TERMS, Exponents, forward_flops, present_rows, row_lengths
from attnkit.registry import ConfigurationError, check_positive
from attnkit.strategy import data_share
from attnkit.task import Task

PEAK_TFLOPS = {"A100": 312.0, "H100 PCIe": 756.0, "H100": 989.0, "H200": 989.0}
"""Peaks of dense bf16 matrix products, from NVIDIA's data sheets, by a part of the device's name; the first match counts."""


class Throughput(Callback):
    r"""Logs speed and memory every `trainer.log_every_n_steps` steps, over the steps since the previous log.

    | name | meaning |
    |---|---|
    | `speed/tokens_per_second` | non-padding tokens that the model reads (sources and targets); not for images |
    | `speed/examples_per_second` | rows |
    | `speed/steps_per_second` | optimizer steps |
    | `speed/model_tflops` | floating-point operations of the model per second, in 10^12, over all devices |
    | `speed/mfu` | model FLOPs utilisation: the same as a fraction of the devices' peak, from 0 to 1; only if the peak is known |
    | `speed/peak_memory_gib` | peak memory so far: what torch allocated on the first GPU, or the resident set of the process |

    The time excludes validation. The operations are those of `attnkit.profile.flops.forward_flops`, times 3 to include the backward pass;
    those for padding and activation checkpointing are not counted, so both lower the utilisation.

    (Lightning's `ThroughputMonitor` waits for the GPU in every step, and multiplies the counts of one rank by the number of ranks, although
    ranks have different lengths; a subclass would override each of its hooks.)

    Equation:
        $$\mathrm{MFU} = \frac{3 \sum_r F(S_r, T_r)}{\mathrm{seconds} \cdot \mathrm{devices} \cdot \mathrm{peak}}$$

    Paper: Chowdhery et al. 2022, appendix B, https://arxiv.org/abs/2204.02311

    Args:
        peak_tflops: Peak of one device, in 10^12 operations per second (default: that of dense bf16 products for A100, H100 and H200;
            for others, no utilisation is logged).

    Raises:
        ConfigurationError: The peak is not positive; in use, the task is not one of attnkit.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[Throughput(peak_tflops=0.1)], accelerator="cpu", logger=False)
    """

    def __init__(self, *, peak_tflops: float | None = None) -> None:
        check_positive(peak_tflops=peak_tflops)
        self.peak_tflops = peak_tflops
        self._flops: dict[Exponents, int] | None = None  # counted at the first log, which takes a second
        self._logs = False
        self._sums: Tensor | int = 0  # of `TERMS`
        self._reads_tokens = False
        self._seconds = 0.0
        self._clock: float | None = None
        self._last = 0  # the step of the newest log

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._logs = bool(trainer.loggers) and trainer.log_every_n_steps > 0  # type: ignore[attr-defined]
        if self._logs and not isinstance(pl_module, Task):
            raise ConfigurationError(f"Throughput needs a task of attnkit, but this is {type(pl_module).__name__}")
        self._flops = None
        self._last = trainer.global_step
        self._forget()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if not self._logs or not isinstance(pl_module, Task):
            return
        self._clock = self._clock or time.perf_counter()
        s, t = row_lengths(pl_module, batch)
        self._reads_tokens = "image" not in batch
        powers_s, powers_t = ((torch.ones_like(x), x, x * x) for x in (s, t))
        terms = torch.stack([powers_s[a] * powers_t[b] for a, b in TERMS])
        self._sums = self._sums + (present_rows(batch, s) * terms).sum(1)  # stays on the device, and starts few kernels there

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._pause()

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step
        if not self._logs or step == self._last or step % trainer.log_every_n_steps:  # type: ignore[attr-defined]
            return
        sums = self._sums
        assert isinstance(sums, Tensor)
        if trainer.world_size > 1:
            whole = trainer.strategy.reduce(sums, reduce_op="sum")
            assert isinstance(whole, Tensor)
            sums = whole * data_share(trainer).num_replicas / trainer.world_size  # processes that share a batch count it only once
        totals = dict(zip(TERMS, sums.tolist(), strict=True))  # waits for the device
        self._pause()
        assert isinstance(pl_module, Task)
        self._flops = forward_flops(pl_module) if self._flops is None else self._flops
        tflops = (1 + BACKWARD) * sum(c * totals[term] for term, c in self._flops.items()) / self._seconds / 1e12
        logged = {
            "examples_per_second": totals[0, 0] / self._seconds,
            "steps_per_second": (step - self._last) / self._seconds,
            "model_tflops": tflops,
        }
        if (memory := peak_memory(pl_module.device)) is not None:
            logged["peak_memory_gib"] = memory / 2**30
        if self._reads_tokens:
            logged["tokens_per_second"] = (totals[1, 0] + totals[0, 1]) / self._seconds
        peak = self.peak_tflops or known_peak(pl_module.device)
        if peak is not None:
            logged["mfu"] = tflops / peak / trainer.world_size
        pl_module.log_dict({f"speed/{name}": value for name, value in logged.items()})
        self._last = step
        self._forget()

    def _pause(self) -> None:
        if self._clock is not None:
            self._seconds += time.perf_counter() - self._clock
            self._clock = None

    def _forget(self) -> None:
        self._sums, self._seconds, self._clock = 0, 0.0, None


def known_peak(device: torch.device) -> float | None:
    """Return the peak of dense bf16 matrix products of a device in TFLOP/s, or None if it is unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((peak for part, peak in PEAK_TFLOPS.items() if part in name), None)


def peak_memory(device: torch.device) -> int | None:
    """Return the peak memory so far in bytes: allocated by torch on a GPU, else resident in this process (unknown on Windows)."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "win32":
        return None
    import resource  # Windows has none

    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return used if sys.platform == "darwin" else 1024 * used
