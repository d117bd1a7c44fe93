"""The interface of learning-rate schedules, which are pure functions of the step; torch's `LambdaLR` applies them.

(torch's own schedulers save their settings in checkpoints, so a resumed run would ignore those of its recipe.)
"""

from abc import ABC, abstractmethod

from attnkit.registry import ConfigurationError


class Schedule(ABC):
    """A factor of the optimizer's `lr` at each step: a linear warmup, then `after_warmup`.

    `step` counts completed optimizer steps, so the first update uses `factor(0)`. No update is wasted on a learning rate of zero: the k-th
    of `w` warmup updates uses `k / w`, and `factor(w) = 1`.

    Args:
        warmup_steps: Length of the warmup: a whole number of steps, or a fraction of the run, above 0 and below 1.
        total_steps: Number of optimizer steps of the run, which the task passes, or `None` if it is open-ended.

    Attributes:
        warmup (int): Length of the warmup in steps.

    Raises:
        ConfigurationError: `warmup_steps` is neither, or it is a fraction and the run is open-ended.

    Example:
        >>> class Halving(Schedule):
        ...     def after_warmup(self, step):
        ...         return 0.5 ** (step - self.warmup)
        >>> schedule = Halving(warmup_steps=2, total_steps=None)
        >>> [schedule.factor(t) for t in range(5)]
        [0.5, 1.0, 1.0, 0.5, 0.25]
    """

    def __init__(self, *, warmup_steps: int | float, total_steps: int | None) -> None:
        self._total_steps = total_steps
        self.warmup = self.steps("warmup_steps", warmup_steps)

    def factor(self, step: int) -> float:
        """Return the factor for the update after `step` updates."""
        return (step + 1) / self.warmup if step < self.warmup else self.after_warmup(step)

    @abstractmethod
    def after_warmup(self, step: int) -> float:
        """Return the factor for `step >= warmup`; `after_warmup(warmup)` is 1."""

    @property
    def total_steps(self) -> int:
        """The number of steps of the run.

        Raises:
            ConfigurationError: The run is open-ended.
        """
        if self._total_steps is None:
            raise ConfigurationError(
                f"the schedule {type(self).__name__} needs the number of steps, but the run is open-ended: set trainer.max_steps (or "
                f"trainer.max_epochs, for data of known length), or choose constant or inverse_sqrt, with warmup_steps in steps"
            )
        return self._total_steps

    def steps(self, argument: str, value: int | float) -> int:
        """Return a length in steps, given a number of steps or a fraction of the run; the error calls it `argument`.

        Raises:
            ConfigurationError: `value` is neither, or it is a fraction and the run is open-ended.
        """
        if isinstance(value, float) and 0 < value < 1:
            return round(value * self.total_steps)
        if isinstance(value, int) and value >= 0:
            return value
        raise ConfigurationError(
            f"{argument} must be a whole number of steps (0, 1, 2, ...) or a fraction of the run above 0 and below 1, but is {value!r}"
        )


def between_0_and_1(argument: str, value: float) -> float:
    """Return `value`, the setting of `argument`, if it is in [0, 1].

    Raises:
        ConfigurationError: It is outside [0, 1].
    """
    if not 0 <= value <= 1:
        raise ConfigurationError(f"{argument} is a factor of the learning rate: it must be between 0 and 1, but is {value!r}")
    return value
