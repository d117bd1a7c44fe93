"""The base class of tasks: plain arguments, a lazily built model, and an optimizer chosen by name."""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from lightning.pytorch.callbacks import Timer
from lightning.pytorch.utilities.model_helpers import is_overridden
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from torch import nn
from torch.optim import LBFGS, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from typing_extensions import override

from attnkit import draws
from attnkit.checkpoint import CheckpointError, is_exported, load_checkpoint, load_exported, load_start, rebuild
from attnkit.checkpoint.description import ARGUMENTS, describe, require_readable
from attnkit.checkpoint.errors import other_numbers
from attnkit.checkpoint.outdated import rename_weights, reorder_optimizer_state
from attnkit.embedding import Embedding
from attnkit.lightning_internals import forget_averages, restart_averages, trainer_of
from attnkit.optimizer.muon import Muon
from attnkit.registry import ConfigurationError, optimizers, schedules
from attnkit.schedule import Schedule
from attnkit.strategy import check_preparation, parallelize, prepare
from attnkit.task.config import TaskConfig, name_of, plain_arguments
from attnkit.task.parameters import (
    COMPILED,
    FACTOR,
    fuse,
    parameter_groups,
    place_steps,
    read_any_names,
    require_usable_state,
    write_plain_names,
)
from attnkit.task.resume import Place
from attnkit.task.step_counts import accumulates, steps_of
from attnkit.task.steps import ExactSteps
from attnkit.task.transfer import take_weights, words_of

DRAW_SEED = "draw_seed"  # key in a checkpoint


class Task(ExactSteps, ABC):
    """A model, its objective and its optimizer.

    A subclass is registered (`@attnkit.tasks.register`) or referred to by its class path. Its arguments are the fields of a configuration,
    a subclass of `TaskConfig`, which its constructor declares with `@keywords_of(...)` and passes on. It builds its model in `build_model`
    and returns sums from `objective`.

    Arguments in `from_data` default to None. `attnkit fit` passes them; otherwise, if none of them was given, the task reads them from the
    trainer's data module in `configure_model`.

    Args:
        config: The arguments. They are stored as plain data, from which the task is rebuilt when a checkpoint is loaded.

    Attributes:
        from_data: Arguments that come from the data module, each with the attribute that holds it.
        config: The arguments, including those from the data once known.
        model: The model, after `configure_model`.

    Raises:
        ConfigurationError: A spec is wrong, an argument is not plain data, or the class has neither a registered name nor a class path.
    """

    from_data: ClassVar[Mapping[str, str]] = {}
    config: TaskConfig
    model: nn.Module

    def __init__(self, config: TaskConfig) -> None:
        super().__init__()
        self.registered_name = name_of(type(self))
        self.optimizer = config.optimizer
        self.is_compiled = config.compile
        self.is_new = True  # until it has weights that a fit continues from
        self._place = Place()
        self.register_state_dict_post_hook(write_plain_names)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_before_loading)  # type: ignore[no-untyped-call]
        self._configure(config)

    def _configure(self, config: TaskConfig) -> None:
        self.config = config
        self.hparams.update(plain_arguments(self.registered_name, vars(config)))
        self.waits_for_data = bool(self.from_data) and all(getattr(config, argument) is None for argument in self.from_data)
        if not self.waits_for_data:
            self.derive()

    def derive(self) -> None:
        """Set the attributes that depend on the arguments, such as tokenizers; called once, when the arguments from the data are known."""

    @abstractmethod
    def build_model(self) -> nn.Module:
        """Return a new model."""

    @cached_property
    def parameter_count(self) -> int:
        """The number of parameters of the model; shared ones count once. Counting builds the model on the meta device, without memory."""
        self._read_data()
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            model = self.build_model()
            check_preparation(model, activation_checkpointing=self.config.activation_checkpointing, compile=self.is_compiled)
        return sum(p.numel() for p in model.parameters())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the task stored in a checkpoint, or in a `.safetensors` file of `attnkit export`, on the CPU, rebuilt from the file alone.

        It is in training mode, like a new task; `generate` and the Trainer's evaluation switch modes themselves.

        Raises:
            CheckpointError: The file is missing, damaged, not attnkit's or too new, needs components that are not installed, or holds a
                task of another class.
        """
        task: Task = load_exported(path) if is_exported(path) else rebuild(load_checkpoint(path), path)
        if not isinstance(task, cls):
            raise CheckpointError(
                f"{path} holds the task {task.registered_name!r}: use {type(task).__name__}.load, not {cls.__name__}.load"
            )
        return task

    @override
    def configure_model(self) -> None:
        if not hasattr(self, "model"):
            self._read_data()
            self.model = self.build_model()
            draws.name_sites(self.model)
            prepare(self.model, activation_checkpointing=self.config.activation_checkpointing, compile=self.is_compiled)
        if self.device_mesh is not None:
            self._begin()  # before the weights are split
            parallelize(self.model, self.device_mesh)

    def _read_data(self) -> None:
        """Take the arguments in `from_data` from the trainer's data module if none of them was passed."""
        if not self.waits_for_data:
            return
        data = None if (trainer := trainer_of(self)) is None else getattr(trainer, "datamodule", None)
        if lacking := [attribute for attribute in self.from_data.values() if not hasattr(type(data), attribute)]:
            raise ConfigurationError(
                f"the task {self.registered_name!r} needs {' and '.join(self.from_data)}: pass them, or give the trainer a data module "
                f"that has {' and '.join(lacking)}" + ("" if data is None else f", which {type(data).__name__} does not")
            )
        read = {argument: getattr(data, attribute) for argument, attribute in self.from_data.items()}
        self._configure(replace(self.config, **read))

    @override
    def on_fit_start(self) -> None:
        self._begin()

    def _begin(self) -> None:
        if self.is_new and not self.trainer.ckpt_path:
            self.initialise()
            restart_averages(self.trainer, self)
        self.is_new = False

    def initialise(self) -> None:
        """Initialise a new model, at the start of its first fit, with the weights of `init_from` and pretrained word vectors.

        The checkpoint's stack is copied if its spec is the same (except options that do not affect weights, such as dropout rates), the
        embeddings if their specs and the tokenizers are the same, and the head and other modules if the task is also the same. The rest
        keeps its random initialisation; a message lists both. A resumed or loaded task is not initialised.

        Raises:
            CheckpointError: `init_from` cannot be used.
        """
        taken: set[str] = set()
        if self.config.init_from is not None:
            taken, message = take_weights(self, load_start(self.config.init_from), self.config.init_from)
            self.print(message)
        for path, embedding in self.model.named_modules():
            if isinstance(embedding, Embedding) and path not in taken and embedding.reads == "tokens":
                counts = embedding.load_vectors(words_of(self.hparams, path))
                if counts is not None:
                    self.print(f"{path}: {counts}")

    @override
    def configure_optimizers(self) -> OptimizerLRScheduler:
        name = optimizers.resolve(self.optimizer).name
        # a subclass of an optimizer that decays weights may not take the rate itself
        decays = any("weight_decay" in inspect.signature(cls.__init__).parameters for cls in optimizers.get(name).__mro__)
        groups: list[Any] = parameter_groups(self) if decays else [p for p in self.parameters() if p.requires_grad]
        try:
            optimizer: Optimizer = optimizers.build(self.optimizer, params=groups)
        except (ValueError, TypeError) as error:  # torch's message names the argument
            raise ConfigurationError(f"model.optimizer: {name}: {error}") from error
        fuse(optimizer)
        if isinstance(optimizer, LBFGS) and accumulates(self.trainer):
            raise ConfigurationError(
                f"model.optimizer: {name} evaluates a step several times, so trainer.accumulate_grad_batches must be 1"
            )
        if any(FACTOR in group for group in optimizer.param_groups):
            if name not in ("adam", "adamw"):
                raise ConfigurationError(f"init 'mup' scales learning rates for adam and adamw, not for {name!r}; use adam or adamw")
            for group in optimizer.param_groups:
                group["lr"] *= group.get(FACTOR, 1.0)
        if isinstance(optimizer, Muon):  # printed because muon covers fewer parameters in a stack with fewer matrices
            sizes = {kind: sum(p.numel() for g in groups if g["matrices"] is kind for p in g["params"]) for kind in (True, False)}
            self.print(f"muon: {sizes[True]:,} parameters in hidden matrices; adamw: the other {sizes[False]:,}")
        self._settings = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
        self._schedule: Schedule = schedules.build(self.config.schedule, total_steps=steps_of(self.trainer))
        if self._schedule.total_steps is not None and not self.trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._note_shortfall(self._schedule.total_steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": LambdaLR(optimizer, self._schedule.factor), "interval": "step"}}

    @property
    def _scheduler(self) -> LambdaLR | None:
        """The scheduler, if it is that of `model.schedule`, not one of a subclass. (Held here, it would be copied with the task.)"""
        scheduler, schedule = self.lr_schedulers(), getattr(self, "_schedule", None)
        if schedule is None or not isinstance(scheduler, LambdaLR) or scheduler.lr_lambdas[0] != schedule.factor:
            return None
        return scheduler

    def _note_shortfall(self, steps: int) -> None:
        if (shortfall := self._schedule.shortfall(steps)) is not None:
            self.print(f"note: {shortfall}. Set model.schedule to suit the length of the run")

    @override
    def on_train_end(self) -> None:
        super().on_train_end()
        if self._scheduler is None:
            return
        limits = [c.time_remaining() for c in self.trainer.callbacks if isinstance(c, Timer)]  # type: ignore[attr-defined]
        if self._schedule.total_steps is None or any(left is not None and left <= 0 for left in limits):
            self._note_shortfall(self.trainer.global_step)

    @override
    def on_train_start(self) -> None:
        self._place.begin(self.trainer, seeds=True)
        super().on_train_start()
        optimizer, scheduler = self.optimizers(use_pl_optimizer=False), self._scheduler
        if scheduler is None:
            if not is_overridden("configure_optimizers", self, Task):
                raise ConfigurationError("the learning rate of a task is that of model.optimizer times model.schedule; no tuner can set it")
            return
        assert isinstance(optimizer, Optimizer)
        # a resumed run takes the optimizer's state from the checkpoint, but its settings from this task's arguments
        scheduler.base_lrs = [settings["lr"] for settings in self._settings]
        for group, settings, factor in zip(optimizer.param_groups, self._settings, scheduler.lr_lambdas, strict=True):
            group.update(settings, initial_lr=settings["lr"], lr=settings["lr"] * factor(scheduler.last_epoch))
        place_steps(optimizer)

    @override
    def on_train_epoch_start(self) -> None:
        super().on_train_epoch_start()
        self._place.begin_epoch(self.trainer)

    @override
    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(batch, batch_idx)
        self._place.begin_batch(self.trainer)

    @override
    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["attnkit"] = describe(self.registered_name, self.hparams)
        if hasattr(data := getattr(self.trainer, "datamodule", None), "keeps"):  # a framing, whose state is exported too
            checkpoint["attnkit"]["data"] = type(data).__qualname__  # Lightning's key
        checkpoint[DRAW_SEED] = self.draw_seed
        self._place.save(checkpoint, self.trainer)

    @override
    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        require_readable(checkpoint, "the checkpoint")
        self.draw_seed = checkpoint.get(DRAW_SEED)
        self._place.load(checkpoint)
        before, trainer = checkpoint[ARGUMENTS].get("optimizer"), trainer_of(self)
        if trainer is not None and trainer.state.fn != "fit":
            forget_averages(trainer)
        if before and trainer is not None and trainer.state.fn == "fit" and not is_overridden("configure_optimizers", self, Task):
            require_usable_state(self.hparams["optimizer"], before)
        names = {parameter: name.replace(COMPILED, "") for name, parameter in self.named_parameters()}
        for state in checkpoint.get("optimizer_states", ()):  # by position; a sharded checkpoint finds states by name
            groups = [[names[parameter] for parameter in group["params"]] for group in parameter_groups(self)]
            reorder_optimizer_state(state, checkpoint["state_dict"], groups)


def _before_loading(task: Task, state_dict: dict[str, Any], prefix: str, *others: Any) -> None:
    """Give weights their present names, and refuse numbers of another kind; the task is not new any more."""
    read_any_names(task, state_dict, prefix)
    rename_weights(state_dict, task.hparams)
    own = chain(task.named_parameters(remove_duplicate=False), task.named_buffers(remove_duplicate=False))
    others[-1].extend(other_numbers(state_dict, dict(own)))  # torch raises these errors
    task.is_new = False
