"""The number of optimizer steps in a fit, and of batches in a step."""

import math

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler


def accumulates(trainer: Trainer) -> bool:
    """Return whether any step of a fit may have several batches."""
    schedulers = [c for c in trainer.callbacks if isinstance(c, GradientAccumulationScheduler)]  # type: ignore[attr-defined]
    return trainer.accumulate_grad_batches > 1 or any(count > 1 for c in schedulers for count in c.scheduling.values())


def steps_of(trainer: Trainer) -> int | None:
    """Return the number of optimizer steps in a fit, or None if it is open-ended.

    (With a `GradientAccumulationScheduler`, Lightning's estimate applies the accumulation of one epoch to all epochs.)
    """
    steps = trainer.estimated_stepping_batches
    if not 0 <= steps < math.inf:
        return None
    batches, epochs = trainer.num_training_batches, trainer.max_epochs
    scheduler = next((c for c in trainer.callbacks if isinstance(c, GradientAccumulationScheduler)), None)  # type: ignore[attr-defined]
    if scheduler is None or epochs is None or epochs < 0 or batches == math.inf:
        return int(steps)
    found = sum(math.ceil(batches / scheduler.get_accumulate_grad_batches(epoch)) for epoch in range(max(1, epochs)))
    return found if trainer.max_steps < 0 else min(found, trainer.max_steps)
