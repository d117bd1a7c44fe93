"""The number of optimizer steps in a fit, and of batches in a step."""

import math

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler


def accumulates(trainer: Trainer) -> bool:
    """Return whether any step of a fit may have several batches."""
    counts = (count for scheduler in _schedulers_of(trainer) for count in scheduler.scheduling.values())
    return max(trainer.accumulate_grad_batches, *counts, 1) > 1


def steps_of(trainer: Trainer) -> int | None:
    """Return the number of optimizer steps in a fit, or None if it is open-ended.

    (With a `GradientAccumulationScheduler`, Lightning's estimate applies the accumulation of one epoch to all epochs.)
    """
    steps = trainer.estimated_stepping_batches
    if not 0 <= steps < math.inf:
        return None
    batches, epochs, schedulers = trainer.num_training_batches, trainer.max_epochs, _schedulers_of(trainer)
    if not schedulers or epochs is None or epochs < 0 or batches == math.inf:
        return int(steps)
    found = sum(math.ceil(batches / schedulers[0].get_accumulate_grad_batches(epoch)) for epoch in range(max(1, epochs)))
    return found if trainer.max_steps < 0 else min(found, trainer.max_steps)


def _schedulers_of(trainer: Trainer) -> list[GradientAccumulationScheduler]:
    callbacks = trainer.callbacks  # type: ignore[attr-defined]
    return [callback for callback in callbacks if isinstance(callback, GradientAccumulationScheduler)]
