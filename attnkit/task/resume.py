"""Makes a resumed run equal to an uninterrupted one, by restoring its position in the data and its random states."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.utils._pytree import tree_leaves

from attnkit.checkpoint import CheckpointError
from attnkit.checkpoint.random_states import random_states, restore_random_states
from attnkit.lightning_internals import batches_done, is_accumulating, is_resuming, normalise_progress, restart_epoch, skip_batches
from attnkit.strategy import data_share

DATA_POSITION = "data_position"  # checkpoint key: how much of the epoch's data is done
RANDOM = "random_states"  # checkpoint key: the random states of each process
EPOCH = "epoch"  # key in a process's random states: the states before the first batch of the current epoch, and its number
PER_ELEMENT = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq", "exp_inf", "momentum_buffer", "square_avg", "grad_avg", "acc_delta", "sum")
"""The per-element states of torch's optimizers."""
WITHIN_STEP = "within_step"  # checkpoint key: whether the gradients of the first micro-batches of a step are missing


class Place:
    """A run's position in its data and the states of the global random generators, for the hooks of a module or a callback.

    Loaders draw the order of an epoch from these states, and modules their dropout, so a resumed run needs both the states at the
    checkpoint and those that the current epoch was fetched with.
    """

    def __init__(self) -> None:
        self._loaded: Mapping[str, Any] = {}  # from the checkpoint, until training starts
        self._epoch: Mapping[str, Any] = {}  # the number of the current epoch, and the states before its first batch
        self._later: Mapping[str, Any] = {}  # states to restore once the next batch has been fetched

    def save(self, checkpoint: dict[str, Any], trainer: Trainer) -> None:
        """Write the position of the run into a checkpoint; all processes must call it.

        The position in the data does not depend on the number of processes that share the batches: `epoch`; `batches`, over all processes;
        and with attnkit's own data modules also `examples`, the number of examples in these batches, `checksum`, which identifies these
        batches, and `content`, which identifies the training data.
        """
        progress = normalise_progress(checkpoint, trainer)
        position = {"epoch": progress.epochs, "batches": progress.batches}
        for sampler in _samplers(trainer):
            position["examples"], position["checksum"] = sampler.seen(progress.batches)
            position |= {} if sampler.content is None else {"content": sampler.content}
        own = {**random_states(trainer.strategy.root_device), EPOCH: {**self._epoch, "is_fetched": progress.is_fetched}}
        states: list[Any] = [own] * trainer.world_size
        if trainer.world_size > 1 and dist.is_initialized():
            dist.all_gather_object(states, states[0])
        checkpoint |= {WITHIN_STEP: progress.is_within_step, DATA_POSITION: position, RANDOM: states}

    def load(self, checkpoint: Mapping[str, Any]) -> None:
        """Keep the position in a checkpoint until `begin`, which ignores it in a new run."""
        self._loaded = {key: checkpoint[key] for key in (DATA_POSITION, RANDOM) if key in checkpoint}

    def begin(self, trainer: Trainer, *, seeds: bool) -> None:
        """When training starts, continue a resumed run from its checkpoint; with `seeds`, give a new run a separate training seed."""
        loaded, self._loaded, self._epoch, self._later = self._loaded, {}, {}, {}
        if not is_resuming(trainer):
            if seeds:
                _seed_generators(trainer)
            self.begin_epoch(trainer)
            if not _samplers(trainer):
                restart_epoch(trainer)  # Lightning has begun to fetch, with states that were not recorded
            return
        _require_fitting_states(trainer)
        for callback in trainer.callbacks:  # type: ignore[attr-defined]
            if isinstance(callback, GradientAccumulationScheduler):  # Lightning consults it only at the start of an epoch
                trainer.accumulate_grad_batches = callback.get_accumulate_grad_batches(trainer.current_epoch)
        try:
            position, states = loaded.get(DATA_POSITION), loaded.get(RANDOM, ())
            if len(states) == trainer.world_size:
                self._continue_exactly(states[trainer.global_rank], position, trainer)
                return
            _seed_generators(trainer)
            self.begin_epoch(trainer)
            _skip_done(trainer, position)
        except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise CheckpointError(f"the position in the checkpoint cannot be restored ({reason}): use an earlier checkpoint") from error
        rank_zero_info(
            f"The checkpoint has the states of torch's global generators for {len(states)} processes, but this run has "
            f"{trainer.world_size}: your own modules that draw from them start with new states. attnkit's data, masks and dropout are "
            f"functions of seed, epoch and example, so they stay the same."
        )

    def begin_epoch(self, trainer: Trainer) -> None:
        """Record the states that the starting epoch is fetched with, unless they are known."""
        if self._epoch.get("number") != trainer.current_epoch:
            self._epoch = {"number": trainer.current_epoch, **random_states(trainer.strategy.root_device)}

    def begin_batch(self, trainer: Trainer) -> None:
        """Restore the states of a checkpoint that was written after the next batch had been fetched."""
        if self._later:
            restore_random_states(self._later, trainer.strategy.root_device)
            self._later = {}

    def _continue_exactly(self, states: Mapping[str, Any], position: Mapping[str, int] | None, trainer: Trainer) -> None:
        """Fetch the current epoch as the checkpoint's run did, and restore the random states of this process."""
        epoch, done, device = states.get(EPOCH, {}), batches_done(trainer), trainer.strategy.root_device
        restore_random_states(states, device)
        has_begun = epoch.get("number") == trainer.current_epoch
        if has_begun:
            self._epoch = epoch
            restore_random_states(epoch, device)
        self.begin_epoch(trainer)
        _skip_done(trainer, position)  # the loader draws from the generators
        if has_begun and done and not _samplers(trainer) and not any(hasattr(loader, "load_state_dict") for loader in _loaders(trainer)):
            rank_zero_info(f"The first {done} batches of the epoch, which are done, are read again and skipped: the loader has no state.")
            skip_batches(trainer, done)
        if has_begun and epoch["is_fetched"]:
            self._later = states
        elif has_begun or not epoch:  # older checkpoints have no EPOCH
            restore_random_states(states, device)


def _require_fitting_states(trainer: Trainer) -> None:
    """Raise a `CheckpointError` if a per-element state of an optimizer differs in shape from its parameter."""
    for optimizer in trainer.optimizers:
        for parameter in (p for group in optimizer.param_groups for p in group["params"]):
            for name, value in optimizer.state.get(parameter, {}).items():
                if name in PER_ELEMENT and value is not None and getattr(value, "shape", None) != parameter.shape:
                    shape = list(value.shape) if isinstance(value, torch.Tensor) else value
                    raise CheckpointError(
                        f"the optimizer's state in the checkpoint does not fit the model: {name} of a parameter {list(parameter.shape)} "
                        f"is {shape!s:.100}; use an earlier checkpoint"
                    )


def _loaders(trainer: Trainer) -> list[Any]:
    return tree_leaves(trainer.train_dataloader)


def _samplers(trainer: Trainer) -> list[Any]:
    """Return attnkit's samplers of the training data; empty if the data module is not attnkit's."""
    samplers = [getattr(loader, "sampler", None) for loader in _loaders(trainer)]
    return [sampler for sampler in samplers if hasattr(sampler, "seen")]


def _skip_done(trainer: Trainer, position: Mapping[str, int] | None) -> None:
    """Restart the epoch after the batches that are done; warn if they are not those of `position`."""
    done = batches_done(trainer)
    for sampler in _samplers(trainer):
        sampler.start = done
        sampler.set_epoch(trainer.current_epoch)
        if position is not None and position.get("content", sampler.content) != sampler.content:
            rank_zero_warn(
                "The training data have changed since this checkpoint: the files, or options such as data.max_length. The run continues "
                "with the new data."
            )
        if done and position is not None and "checksum" in position:
            _compare(position, sampler.seen(done))
    restart_epoch(trainer)
    if done and is_accumulating(trainer):
        rank_zero_warn("The checkpoint was written between two micro-batches of a step and lacks the gradients of the earlier ones.")


def _compare(position: Mapping[str, int], found: tuple[int, int]) -> None:
    """Warn unless the batches that count as done are those that the checkpoint's run was trained on."""
    if found != (position["examples"], position["checksum"]):
        rank_zero_warn(
            f"The checkpoint is from the middle of an epoch, after {position['batches']} batches with {position['examples']} examples, but "
            f"the first {position['batches']} batches now differ, with {found[0]} examples: the data, data.seed, data.batch_tokens or "
            f"data.batch_size have changed. In the rest of this epoch, some examples are repeated and others are skipped."
        )


def _seed_generators(trainer: Trainer) -> None:
    """Give torch's global generators a separate seed for training, so that random draws in training do not depend on initialisation.

    attnkit itself draws nothing from them in training; a user's own modules may. The seed is a function of `seed_everything`'s seed and of
    this process's share of the data; processes that work on the same examples (tensor parallelism) draw the same numbers.
    """
    words = np.random.SeedSequence([torch.initial_seed(), data_share(trainer).rank]).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> np.uint64(1)))  # also seeds CUDA
