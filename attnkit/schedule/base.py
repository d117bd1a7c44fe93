"""Schedules of the learning rate: pure functions of the step."""

from abc import ABC, abstractmethod

from attnkit.registry import ConfigurationError


class Schedule(ABC):
    """A learning rate over time, as a factor of the optimizer's `lr`: a linear warmup, then `after_warmup`.

    `step` counts the optimizer steps that are done: the first update takes `factor(0)`. The warmup ramps so that no update is
    wasted on a learning rate of zero: the k-th of `w` warmup updates takes `k / w`, and `factor(w) = 1`.

    Args:
        warmup_steps: The length of the warmup: a whole number of steps, or a fraction of the run, above 0 and below 1.
        total_steps: The number of optimizer steps of the run, which the task passes. `None`: the run has no end.

    Attributes:
        warmup (int): The length of the warmup in steps.

    Raises:
        ConfigurationError: `warmup_steps` is neither, or it is a fraction and the run has no end.
    """

    def __init__(self, *, warmup_steps: int | float, total_steps: int | None) -> None:
        self._total_steps = total_steps
        self.warmup = self.steps("warmup_steps", warmup_steps)

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate for the update that follows `step` updates."""
        return (step + 1) / self.warmup if step < self.warmup else self.after_warmup(step)

    @abstractmethod
    def after_warmup(self, step: int) -> float:
        """Return the factor for `step >= warmup`; it starts from 1."""

    @property
    def total_steps(self) -> int:
        """The number of steps of the run.

        Raises:
            ConfigurationError: The run has no end.
        """
        if self._total_steps is None:
            raise ConfigurationError(
                f"the schedule {type(self).__name__} needs the number of steps of the run, which has no known end: set trainer.max_steps "
                f"(or trainer.max_epochs, for data of known length), or choose constant or inverse_sqrt, with warmup_steps in steps"
            )
        return self._total_steps

    def steps(self, argument: str, value: int | float) -> int:
        """Return a length in steps, from a number of steps or a fraction of the run; `argument` names it in the error."""
        if isinstance(value, float) and 0 < value < 1:
            return round(value * self.total_steps)
        if isinstance(value, int) and value >= 0:
            return value
        raise ConfigurationError(
            f"{argument} must be a whole number of steps (0, 1, 2, ...) or a fraction of the run above 0 and below 1, but is {value!r}"
        )


def between_0_and_1(argument: str, value: float) -> float:
    """Return `value`, which `argument` was set to, if it is in [0, 1].

    Raises:
        ConfigurationError: It is not.
    """
    if not 0 <= value <= 1:
        raise ConfigurationError(f"{argument} is a factor of the learning rate: it must be between 0 and 1, but is {value!r}")
    return value
