"""The record of a run of a study: its seeds, batches and learning curve."""

import hashlib
import math
from typing import Any, cast

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from attnkit.callback.throughput import peak_memory
from attnkit.strategy import data_share
from attnkit.task import Task
from attnkit.worker.costs import now, real_tokens


class Recorder(Callback):
    """Seeds the random numbers of a training, and records its measurements. Its state is in the checkpoints.

    Initialisation, data order and dropout have separate seeds, so that random draws of one variant do not affect another. A hash of all
    batches proves that all variants saw the same ones.

    Args:
        seeds: The seeds of initialisation and dropout. attnkit's dropout is a function of its seed, the epoch and the example. For modules
            that draw from torch's generators, these are seeded by the seed, the step and the process, also in a resumed run.
    """

    state_key = "attnkit_ablation"

    def __init__(self, seeds: dict[str, int]) -> None:
        self.seeds = seeds
        self.diverged = False
        self.digest = ""
        self.batches = self.tokens = self.memory = 0
        self.seconds = 0.0
        self.curve: list[dict[str, float]] = []
        self._started: float | None = None

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            torch.manual_seed(self.seeds["initialisation"])  # the model is built next
            cast(Task, pl_module).draw_seed = self.seeds["dropout"]

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._started = now() if self._started is None else self._started
        torch.manual_seed(self.seeds["dropout"] + 1_000_003 * self.batches + 15_485_863 * data_share(trainer).rank)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        # checkpoints are written before a step starts, so a step is recorded after it has ended
        tensors = [leaf.detach().cpu() for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        digest = hashlib.sha256(self.digest.encode())
        for tensor in tensors:
            digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
            digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().data)
        self.digest = digest.hexdigest()
        self.batches += 1
        self.tokens += real_tokens(tensors)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_clock()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_clock()
        self.memory = max(self.memory, peak_memory(pl_module.device) or 0)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.on_train_end(trainer, pl_module)

    def elapsed(self) -> float:
        """Return the seconds of training, excluding validations."""
        return self.seconds + (now() - self._started if self._started is not None else 0.0)

    def _stop_clock(self) -> None:
        self.seconds, self._started = self.elapsed(), None

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self.memory = max(self.memory, peak_memory(pl_module.device) or 0)
        metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.curve.append({"step": trainer.global_step, "tokens": self.tokens, "seconds": round(self.seconds, 3), **metrics})
        if not math.isfinite(metrics.get("val/loss", 0.0)):
            self.diverged = True
            trainer.should_stop = True

    @override
    def state_dict(self) -> dict[str, Any]:
        kept = ("digest", "batches", "tokens", "memory", "curve", "diverged")
        return {name: getattr(self, name) for name in kept} | {"seconds": self.elapsed()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)
