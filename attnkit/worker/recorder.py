"""Records a run of a study: its seeds, batches, learning curve and progress."""

import hashlib
import math
import random
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.distributed.tensor import DTensor
from typing_extensions import override

from attnkit.callback.throughput import peak_memory
from attnkit.draws import seed_generators
from attnkit.strategy import data_share
from attnkit.task import Task
from attnkit.worker.answers import Underway
from attnkit.worker.costs import now, of_all_processes, tokens_read
from attnkit.worker.folder import UNDERWAY, write_json

EVERY = 5.0  # seconds between writes of the progress; validations are written at once


class Recorder(Callback):
    """Seeds the random numbers of training and records its measurements. Its state is stored in checkpoints.

    Initialisation, data order and dropout have separate seeds, so that random draws of one kind do not affect another. A hash of all
    batches (with several processes: of the first one's share) shows that all variants saw the same batches, and a hash of each parameter
    that equal parameters start with equal values.

    attnkit's dropout and data are functions of their seed, the epoch and the example. A user's own modules and loaders that draw from
    global generators find them in a state that depends only on the seed and the number of batches (for modules, also on the process), even
    in a resumed run: torch's generator is seeded before each batch, and all generators before data are loaded.
    """

    state_key = "attnkit_ablation"

    def __init__(self, seeds: dict[str, int]) -> None:
        self.seeds = seeds
        self.diverged = False
        self.in_training = False  # whether the first step has begun and the last has not ended, even if training was left by an error
        self.digest = ""
        self.starts: dict[str, str] = {}  # the shape of each parameter and a hash of its initial values
        self.unhashed: list[str] = []  # the types of the values in batches that cannot be hashed
        self.batches = self.tokens = self.memory = 0
        self.seconds = 0.0
        self.earlier = 0.0  # the wall-clock seconds of earlier processes, up to the checkpoint that this one continues
        self.began = time.time()
        self.curve: list[dict[str, float]] = []
        self._started: float | None = None
        self._is_loading = False

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            torch.manual_seed(self.seeds["initialisation"])  # the model is built next
            if isinstance(pl_module, Task):
                pl_module.draw_seed = self.seeds["dropout"]

    def seed_data(self) -> None:
        """Seed the global generators, for code that draws from them while data are prepared or loaded."""
        seed = self.seeds["data"] + 1_000_003 * self.batches
        seed_generators(seed)
        random.seed(seed)
        np.random.seed(seed % 2**32)

    @override
    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.seed_data()
        self._is_loading = True  # Lightning starts the first epoch's loader before `on_train_epoch_start`, later ones after it

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.batches == 0:  # not if the run was resumed
            whole = [(name, p.detach()) for name, p in pl_module.named_parameters() if not isinstance(p, DTensor)]
            self.starts = {name: f"{tuple(p.shape)} {hashlib.sha256(_bytes(p)).hexdigest()[:8]}" for name, p in whole}

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self._is_loading:
            self.seed_data()
        self._is_loading = False

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self.in_training = True
        self._started = now() if self._started is None else self._started
        seed_generators(self.seeds["dropout"] + 1_000_003 * self.batches + 15_485_863 * data_share(trainer).rank)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        # a batch is recorded once its step has ended, because checkpoints are written before a step starts
        digest = hashlib.sha256(self.digest.encode())
        for leaf in leaves(batch):
            if isinstance(leaf, Tensor):
                leaf = leaf.detach().to_dense()
                digest.update(f"{leaf.dtype}{tuple(leaf.shape)}".encode())
                digest.update(_bytes(leaf))
            elif isinstance(leaf, np.ndarray) and not leaf.dtype.hasobject:
                digest.update(f"{leaf.dtype}{leaf.shape}".encode() + leaf.tobytes())
            elif leaf is None or isinstance(leaf, str | bytes | int | float | complex | np.generic):
                digest.update(repr(leaf).encode())
            elif (kind := type(leaf).__name__) not in self.unhashed:
                self.unhashed.append(kind)
        self.digest = digest.hexdigest()
        self.batches += 1
        self.tokens += of_all_processes(trainer, tokens_read(pl_module, batch))
        self.seed_data()  # for loading the next batch

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._stop_clock()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._end(pl_module)
        here = (p.to_local() if isinstance(p, DTensor) else p for p in pl_module.parameters())
        is_finite = all(bool(torch.isfinite(p).all()) for p in here)  # metrics do not always show it
        self.diverged |= not trainer.strategy.reduce_boolean_decision(is_finite)
        self.in_training = False

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self._end(pl_module)

    def _end(self, pl_module: LightningModule) -> None:
        self._stop_clock()
        self.memory = max(self.memory, peak_memory(pl_module.device) or 0)

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
        metrics = logged(trainer)
        so_far = {"step": trainer.global_step, "batches": self.batches, "tokens": self.tokens, "seconds": round(self.seconds, 3)}
        self.curve.append({**metrics, **so_far})
        self.seed_data()  # a validation may have drawn from the generators
        if not math.isfinite(metrics.get("val/loss", 0.0)):
            self.diverged = True
            trainer.should_stop = True

    @override
    def state_dict(self) -> dict[str, Any]:
        kept = ("digest", "starts", "unhashed", "batches", "tokens", "memory", "curve", "diverged")
        return {name: getattr(self, name) for name in kept} | {
            "seconds": self.elapsed(),
            "earlier": self.earlier + time.time() - self.began,
        }

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        vars(self).update(state_dict)


class Reporter(Callback):
    """Writes the file `progress.json` of a run, for live pages, with the learning curve of its recorder."""

    def __init__(self, folder: Path, recorder: Recorder) -> None:
        self.folder, self.recorder = folder, recorder
        self._written = -math.inf

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if time.monotonic() - self._written > EVERY:
            self._write(trainer)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.sanity_checking:
            self._write(trainer)

    def _write(self, trainer: Trainer) -> None:
        self._written = time.monotonic()
        if trainer.is_global_zero:
            steps = trainer.estimated_stepping_batches
            known = int(steps) if math.isfinite(steps) and steps > 0 else None
            underway = Underway(step=trainer.global_step, steps=known, curve=tuple(finite(point) for point in self.recorder.curve))
            write_json(self.folder / UNDERWAY, asdict(underway))


def finite(numbers: Mapping[str, float]) -> dict[str, float | None]:
    """Replace non-finite numbers with None."""
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _bytes(tensor: Tensor) -> memoryview:
    whole = tensor.cpu().reshape(-1).clone(memory_format=torch.contiguous_format)  # a single element may keep the stride of its row
    return whole.view(torch.uint8).numpy().data


def logged(trainer: Trainer) -> dict[str, float]:
    """Return the training metrics that do not depend on the speed of the machine."""
    return {name: float(value) for name, value in trainer.callback_metrics.items() if not name.startswith("speed/")}


def leaves(value: Any) -> Iterator[Any]:
    """Yield the values in a batch, including those inside mappings, lists, tuples and objects with attributes, such as dataclasses.

    Example:
        >>> list(leaves({"a": [1, "x"], "b": (None, {"c": 2.0})}))
        ['a', 1, 'x', 'b', None, 'c', 2.0]
    """
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield key
            yield from leaves(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    elif not isinstance(value, Tensor | np.ndarray) and type(value).__module__ != "builtins" and getattr(value, "__dict__", None):
        yield from leaves(vars(value))
    else:
        yield value
