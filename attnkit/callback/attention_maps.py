# https://arxiv.org/abs/2303.06296
"""Attention during training: the entropy of each head, and maps."""

from collections.abc import Mapping
from importlib.util import find_spec
from itertools import groupby
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from typing_extensions import override

from attnkit.drawing import draw
from attnkit.drawing.figure import plotting
from attnkit.lightning_internals import averaged
from attnkit.recording import record_attention, relative_entropy
from attnkit.registry import ConfigurationError, require_at_least
from attnkit.task import Task
from attnkit.task.attending import Reading, read_batch
from attnkit.tokenizer import Tokenizer


class AttentionMaps(Callback):
    r"""Logs the entropy of each attention head, the largest logit of each attention, and figures, for the same few rows each time.

    The scalars are `entropy/<module path>/head_<i>`, from 0 (all weight on one key) to 1 (the same weight on all keys), and
    `largest_logit/<module path>`, over all heads. A head that stays near 1 has learned no preference; very low entropy and logits
    above a few tens accompany unstable training. If matplotlib is installed, TensorBoard also gets the maps of the first row.

    The rows are read in a separate pass without dropout and gradients, so the training is unchanged, bit for bit. They are the first rows
    of the first batch of the run, in validation (its sanity check included) or in training, whichever comes first. With several
    processes, they are the first ones of the first process. Checkpoints hold them, so a resumed run reads the same rows.

    Equation:
        $$e_h = \operatorname{mean}_q \frac{-\sum_k w_{hqk} \ln w_{hqk}}{\ln K_q}$$
        over the non-padding queries with at least two keys; $K_q$ is the number of keys that the masks leave to a query.

    Paper: Zhai et al. 2023, https://arxiv.org/abs/2303.06296 (low attention entropy and instability); Dehghani et al. 2023,
    https://arxiv.org/abs/2302.05442 (large logits and divergence)

    Args:
        every_n_steps: Optimizer steps between two logs (default: at the end of each validation).
        rows: Rows of the batch that are read. All of their weights are held at once: 4 bytes for each row, layer, head, query and key.
        figures: Whether TensorBoard gets figures.

    Raises:
        ConfigurationError: A number is not positive; in use, the task reads no tokens or its model has no attention.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(callbacks=[AttentionMaps(every_n_steps=500)], accelerator="cpu", logger=False)
    """

    def __init__(self, *, every_n_steps: int | None = None, rows: int = 4, figures: bool = True) -> None:
        require_at_least(1, every_n_steps=every_n_steps, rows=rows)
        self.every_n_steps, self.rows, self.figures = every_n_steps, rows, figures
        self._batch: dict[str, Tensor] | None = None
        self._last = 0
        self._draws = figures  # as the key of the state says, also after `figures` is turned off

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last = trainer.global_step  # a resumed run has logged this step

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._keep(batch)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.every_n_steps is not None:
            self._keep(batch)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.every_n_steps is None and not trainer.sanity_checking:
            with averaged(trainer, pl_module):
                self._log(trainer, pl_module)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        step = trainer.global_step  # the same for all micro-batches of a step
        if self.every_n_steps is not None and step != self._last and step % self.every_n_steps == 0:
            self._last = step
            self._log(trainer, pl_module)

    def _keep(self, batch: Any) -> None:
        if self._batch is None and isinstance(batch, Mapping):
            self._batch = {k: v[: self.rows].clone() for k, v in batch.items() if isinstance(v, Tensor) and v.ndim}

    def _log(self, trainer: Trainer, task: LightningModule) -> None:
        if not trainer.loggers or self._batch is None:
            return
        if not isinstance(task, Task):
            raise ConfigurationError(f"AttentionMaps needs an attnkit task, but this is {type(task).__name__}")
        with trainer.precision_plugin.forward_context(), record_attention(task.model, logits=True) as logits:
            reading = read_batch(task, {name: x.to(task.device) for name, x in self._batch.items()}, self.rows)
            maps = reading.maps()  # on every rank: the weights may be sharded
        maps, logits = ({path: _of_all_heads(task, x) for path, x in found.items()} for found in (maps, logits))
        if not trainer.is_global_zero:
            return
        scalars = {
            f"entropy/{path}/head_{head}": value
            for path, weights in maps.items()
            for head, value in enumerate(entropy(weights, logits[path].isfinite(), reading.queries(path) != Tokenizer.pad_id).tolist())
        }
        for path, values in logits.items():
            real = reading.queries(path) != Tokenizer.pad_id  # [B, Q]
            scalars[f"largest_logit/{path}"] = values.masked_fill(~real[:, None, :, None], float("-inf")).max().item()
        for logger in trainer.loggers:
            logger.log_metrics(scalars, step=trainer.global_step)
            if isinstance(logger, TensorBoardLogger) and self.figures and find_spec("matplotlib") is not None:
                self._draw(logger, reading, maps, trainer.global_step)

    @property
    @override
    def state_key(self) -> str:
        return self._generate_state_key(rows=self.rows, in_training=self.every_n_steps is not None, figures=self._draws)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"batch": self._batch}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._batch = state_dict["batch"]

    def _draw(self, logger: TensorBoardLogger, reading: Reading, maps: dict[str, Tensor], step: int) -> None:
        for name, group in groupby(reading.labelled(maps), key=lambda m: m.name):
            try:
                figure, _ = draw(list(group))
            except ConfigurationError as error:  # too long for a figure
                rank_zero_warn(f"AttentionMaps draws no figures: {error}")
                self.figures = False
                return
            with plotting({}):
                logger.experiment.add_figure(f"attention/{name}", figure, step)


def _of_all_heads(task: Task, x: Tensor) -> Tensor:
    """Return [B, H, Q, K] of all heads, from the heads of this process in a tensor-parallel group."""
    mesh = task.device_mesh
    if mesh is None or mesh["tensor_parallel"].size() == 1:
        return x
    whole: Tensor = DTensor.from_local(x, mesh["tensor_parallel"], [Shard(1)]).full_tensor()
    return whole


def entropy(weights: Tensor, allowed: Tensor, real: Tensor) -> Tensor:
    """Return the mean entropy of each head's shares of weight, [H], as a fraction of the largest possible; 0 where no query has two keys.

    The mean is over the queries of `weights` [B, H, Q, K] that are `real` [B, Q], bool; `allowed` [B, H, Q, K] are the keys that the masks
    leave, to which a sparse normalizer may give no weight.

    Example:
        >>> weights = torch.tensor([[[0.25, 0.25, 0.25, 0.25]], [[0.5, 0.5, 0.0, 0.0]]])[None]
        >>> entropy(weights, torch.ones_like(weights, dtype=torch.bool), torch.ones(1, 1, dtype=torch.bool))
        tensor([1.0000, 0.5000])
    """
    keys = allowed[:, 0].sum(-1)  # [B, Q]
    counts = real & (keys > 1)
    relative = torch.where(counts[:, None], relative_entropy(weights.float(), keys[:, None]), 0.0)
    return relative.sum((0, 2)) / counts.sum().clamp(min=1)
