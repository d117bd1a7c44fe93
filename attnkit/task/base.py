"""The base class of tasks: plain arguments, a model built late, an optimizer by name, and exact sums of losses."""

import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils._pytree import tree_leaves
from typing_extensions import override

from attnkit import draws
from attnkit.checkpoint import CheckpointError, load_checkpoint, rebuild, require_rebuildable
from attnkit.checkpoint.description import describe, require_readable
from attnkit.embedding import Embedding
from attnkit.lightning_internals import trainer_of
from attnkit.optimizer.muon import Muon
from attnkit.registry import OptimizerSpec, ScheduleSpec, optimizers, schedules
from attnkit.strategy import ActivationCheckpointing, check_preparation, data_share, parallelize, prepare
from attnkit.task.arguments import plain_arguments, registered_name
from attnkit.task.loss import Sums
from attnkit.task.parameters import parameter_groups, read_any_names, write_plain_names
from attnkit.task.resume import continue_from, position_in, save_position
from attnkit.task.transfer import take_weights, words_of

# The loss is backpropagated as a sum times this unit; the gradients are divided by the token count afterwards. The unit only keeps fp16
# gradients in range (a mean over 4,096 tokens has the same size); being a power of two, it changes no digit.
UNIT = 2.0**-12

DRAW_SEED = "draw_seed"  # in a checkpoint


_later: ContextVar[bool] = ContextVar("later", default=False)


@contextmanager
def checked_later() -> Iterator[None]:
    """Let the tasks that are made in the `with` block not build their model as a check: it is built right afterwards, for use.

    A wrong composition is then refused by `configure_model`.
    """
    token = _later.set(True)
    try:
        yield
    finally:
        _later.reset(token)


class Task(LightningModule, ABC):
    """A model, its objective and its optimizer.

    A subclass is registered (`@attnkit.tasks.register`) and takes at least `optimizer` and `schedule`. Its constructor calls
    `super().__init__(locals())` first and `self.require_buildable()` last; it builds its model in `build_model`, and returns sums from
    `objective`. These arguments, declared by a subclass, need nothing else in it:

    * `optimizer`: `muon`, or any optimizer of `torch.optim` by its name in lower case. Its weight decay applies to parameters of two or
      more axes, embedding tables included (as in BERT and GPT-2); biases, norms and other vectors have none.
    * `schedule`: The factor of the learning rate at each optimizer step.
    * `init_from`: A checkpoint whose embedding and stack a fit starts from; see `initialise`.
    * `activation_checkpointing`: What the backward pass recomputes to save memory: `none`, each `layer`, `mixer` (the part that grows
      with the square of the length), or `feed_forward`. Results are the same.
    * `compile`: Whether torch.compile translates each layer for training. Results are the same up to rounding.

    The gradient of an optimizer step is the gradient of (sum of the loss over all targets) / (number of targets), where both run over
    all micro-batches (`trainer.accumulate_grad_batches`) and all ranks, however ragged. Callbacks see it in this form in
    `on_before_optimizer_step`, and clipping follows.

    `train/loss` is the negative log-likelihood per target of the same step, without label smoothing.

    Args:
        arguments: The subclass's arguments: the `locals()` of its constructor. They are kept as plain data, from which checkpoints are
            rebuilt.

    Attributes:
        from_data: Arguments that come from the data module on the command line, each with the attribute that holds it.
        model: The model, after `configure_model`.
        draw_seed: Seed of dropout and other draws of training steps; a checkpoint keeps it (default: that of `seed_everything`).

    Raises:
        ConfigurationError: A spec is wrong, an argument is not plain data, or the class is not registered.
    """

    from_data: ClassVar[Mapping[str, str]] = {}
    model: nn.Module

    def __init__(self, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.registered_name = registered_name(type(self))
        self.save_hyperparameters(plain_arguments(self.registered_name, arguments), logger=False)
        self.optimizer: OptimizerSpec = arguments["optimizer"]
        self.schedule: ScheduleSpec = arguments["schedule"]
        self.init_from: str | None = arguments.get("init_from")
        self.activation_checkpointing: ActivationCheckpointing = arguments.get("activation_checkpointing", "none")
        self.is_compiled: bool = arguments.get("compile", False)
        self.is_new = True  # until it has weights that a fit continues with
        self.draw_seed: int | None = None
        self._resumed: Mapping[str, Any] = {}  # where a checkpoint is, until the training starts
        self.register_state_dict_post_hook(write_plain_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(read_any_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_is_new_no_more)  # type: ignore[no-untyped-call]

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a new model."""

    @abstractmethod
    def objective(self, batch: Any) -> Sums:
        """Return the sums of a batch."""

    @property
    def data_rank(self) -> int:
        """The share of the data that this process has: its rank, except that processes of a tensor-parallel group have the same."""
        return 0 if (trainer := trainer_of(self)) is None else data_share(trainer).rank

    def training_log(self, nll: Tensor) -> dict[str, Tensor]:
        """Return the values to log as `train/...` at an optimizer step, from its negative log-likelihood per target."""
        return {"loss": nll}

    def require_buildable(self) -> None:
        """Build the model once without memory, so that a wrong composition is refused now rather than when the training starts.

        Inside `checked_later` it does nothing.

        Raises:
            ConfigurationError: The pieces do not go together.
            ValueError: A width or a count is out of range.
        """
        if not _later.get():
            _ = self.parameter_count  # it builds the model

    @cached_property
    def parameter_count(self) -> int:
        """How many parameters the model has; shared ones count once. They take no memory if the model is not built yet."""
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = self.build_model()
            check_preparation(model, activation_checkpointing=self.activation_checkpointing, compile=self.is_compiled)
        return sum(p.numel() for p in model.parameters())

    def print_validation(self, values: Mapping[str, Tensor], lines: Iterable[str] = ()) -> None:
        """Print the metrics of a validation, and `lines` with some outputs below."""
        title = f"Step {self.trainer.global_step}" if self.trainer.global_step else "Validation"  # 0 outside of a fit
        self.print("\n".join([f"{title}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()), *lines]))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the task in a checkpoint, on the CPU, rebuilt from the checkpoint alone.

        It is in training mode, like a new one; `generate` and the Trainer's evaluation set their own mode.

        Raises:
            CheckpointError: The file is missing, damaged, foreign or too new, needs components that are not installed, or holds another
                task.
        """
        task: Task = rebuild(load_checkpoint(path), path)
        if not isinstance(task, cls):
            raise CheckpointError(
                f"{path} holds the task {task.registered_name!r}: use {type(task).__name__}.load, not {cls.__name__}.load"
            )
        return task

    @override
    def configure_model(self) -> None:
        if not hasattr(self, "model"):
            self.model = self.build_model()
            draws.name_sites(self.model)
            prepare(self.model, activation_checkpointing=self.activation_checkpointing, compile=self.is_compiled)
        if self.device_mesh is not None:
            self._begin()  # while the weights are whole
            parallelize(self.model, self.device_mesh)

    @override
    def on_fit_start(self) -> None:
        self._begin()

    def _begin(self) -> None:
        if self.is_new and not self.trainer.ckpt_path:
            self.initialise()
        self.is_new = False

    def initialise(self) -> None:
        """Initialise a new model, at the start of its first fit, with the weights of `init_from` and pretrained word vectors.

        The stack of the checkpoint is copied if its spec is the same (except dropout rates), and the embeddings if their specs and the
        tokenizers are. The rest keeps its random initialisation; a message lists both. A resumed or loaded task is not initialised.

        Raises:
            CheckpointError: `init_from` cannot be used.
        """
        taken: set[str] = set()
        if self.init_from is not None:
            checkpoint = load_checkpoint(self.init_from)
            require_rebuildable(checkpoint, self.init_from)
            taken, message = take_weights(self, checkpoint, self.init_from)
            self.print(message)
        for path, embedding in self.model.named_modules():
            if isinstance(embedding, Embedding) and path not in taken and embedding.reads == "tokens":
                counts = embedding.load_vectors(words_of(self.hparams, path))
                if counts is not None:
                    self.print(f"{path}: {counts}")

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        name = optimizers.resolve(self.optimizer).name
        decays = "weight_decay" in inspect.signature(optimizers.get(name)).parameters
        groups: list[Any] = parameter_groups(self) if decays else [p for p in self.parameters() if p.requires_grad]
        optimizer: Optimizer = optimizers.build(self.optimizer, params=groups)
        if isinstance(optimizer, Muon):  # a stack with fewer matrices must not change it silently
            sizes = {kind: sum(p.numel() for g in groups if g["matrices"] is kind for p in g["params"]) for kind in (True, False)}
            self.print(f"muon: {sizes[True]:,} parameters in hidden matrices; adamw: the other {sizes[False]:,}")
        self._settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        steps = self.trainer.estimated_stepping_batches
        schedule = schedules.build(self.schedule, total_steps=int(steps) if 0 <= steps < math.inf else None)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, schedule.factor), "interval": "step"}}

    @override
    def on_train_start(self) -> None:
        self._tally = torch.zeros(2, dtype=torch.float32 if self.device.type == "mps" else torch.float64, device=self.device)
        self._nll: Tensor | None = None
        optimizer, scheduler = self.optimizers(use_pl_optimizer=False), self.lr_schedulers()
        assert isinstance(optimizer, Optimizer)
        assert isinstance(scheduler, LambdaLR)
        continue_from(self._resumed, self.trainer)
        self._resumed = {}
        if self.draw_seed is None:
            self.draw_seed = int(self.trainer.strategy.broadcast(torch.initial_seed()))
        # a resumed run takes only the optimizer's state from the checkpoint, and its settings from this task's arguments
        scheduler.base_lrs = [settings["lr"] for settings in self._settings]
        for group, settings, factor in zip(optimizer.param_groups, self._settings, scheduler.lr_lambdas, strict=True):
            group.update(settings, initial_lr=settings["lr"], lr=settings["lr"] * factor(scheduler.last_epoch))

    @override
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        assert self.draw_seed is not None
        draws.begin(self.row_keys(batch, batch_idx, self.draw_seed, self.current_epoch))
        sums = self.objective(batch)
        self._tally += torch.stack([sums.targets.to(self._tally), sums.nll.to(self._tally)])
        return sums.loss * UNIT

    def row_keys(self, batch: Any, batch_idx: int, *words: int) -> Tensor:
        """Return a key [B] for each row of a batch, from which dropout and masks draw: a function of the words and the example.

        `batch["example"]` [B], which attnkit's data modules give, identifies the example of each row. Without it a row is identified by
        the batch, the process and its index there, so another number of processes draws other numbers.

        Args:
            batch: The batch.
            batch_idx: Its number in the epoch.
            words: Further numbers that the keys depend on, such as a seed and the epoch.
        """
        if isinstance(batch, Mapping) and "example" in batch:
            return draws.make_keys(batch["example"], *words)
        rows, device = next(((x.shape[0], x.device) for x in tree_leaves(batch) if isinstance(x, Tensor) and x.ndim > 0), (1, self.device))
        return draws.make_keys(torch.arange(rows, device=device), *words, batch_idx, self.data_rank)

    @override
    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Optimizer | LightningOptimizer,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        def closure() -> Any:
            assert optimizer_closure is not None
            loss = optimizer_closure()  # the last micro-batch, and the sum over ranks
            self._divide_gradients()
            return loss

        super().optimizer_step(epoch, batch_idx, optimizer, closure)

    def _divide_gradients(self) -> None:
        """Turn the gradients from (loss sum) * UNIT / (micro-batches * ranks) into loss sum / count, over all of both.

        Ranks of a tensor-parallel group share a batch and count as one.
        """
        summed = self.trainer.strategy.reduce(self._tally, reduce_op="sum")
        assert isinstance(summed, Tensor)
        ranks = data_share(self.trainer).num_replicas
        tally = summed * (ranks / self.trainer.world_size)
        count = tally[0].clamp(min=1)
        factor = self.trainer.accumulate_grad_batches * ranks / UNIT / count
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)
        self._nll = tally[1] / count
        self._tally = torch.zeros_like(self._tally)

    @override
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        draws.begin(None)
        if self._nll is not None:  # an optimizer step was made
            self.log_dict({f"train/{name}": value for name, value in self.training_log(self._nll).items()}, prog_bar=True)
            self._nll = None

    @override
    def teardown(self, stage: str) -> None:
        draws.begin(None)  # a step that failed has left its own

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["attnkit"] = describe(self.registered_name, self.hparams)
        checkpoint[DRAW_SEED] = self.draw_seed
        save_position(checkpoint, self.trainer)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        require_readable(checkpoint, "the checkpoint")
        self.draw_seed = checkpoint.get(DRAW_SEED)
        self._resumed = position_in(checkpoint)


def _is_new_no_more(task: Task, *_: Any) -> None:
    task.is_new = False
