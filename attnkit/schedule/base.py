"""The interface of learning-rate schedules, which are pure functions of the step, applied by torch's `LambdaLR`.

(torch's own schedulers save their settings in checkpoints, so a resumed run would ignore those in its recipe.)
"""

from abc import ABC, abstractmethod

from typing_extensions import override

from attnkit.registry import ConfigurationError, fields_as_keywords


@fields_as_keywords
class Schedule(ABC):
    """The factor that multiplies the optimizer's `lr` in each step: a linear warmup, then `after_warmup`.

    `step` counts completed optimizer steps, so the first update uses `factor(0)`. No update is wasted on a learning rate of zero: the k-th
    of `w` warmup updates uses `k / w`, so the last one uses 1.

    Args:
        warmup_steps: Length `w` of the warmup: a whole number of steps, or a fraction of the run, above 0 and below 1.
        total_steps: Number `T` of optimizer steps in the run, which the task passes, or `None` if the run is open-ended.

    Attributes:
        warmup: The length of the warmup in steps.

    Raises:
        ConfigurationError: `warmup_steps` is neither of these, or it is a fraction and the run is open-ended.

    Example:
        >>> class Halving(Schedule):
        ...     def after_warmup(self, step):
        ...         return 0.5 ** (step - self.warmup)
        >>> schedule = Halving(warmup_steps=2, total_steps=None)
        >>> [schedule.factor(t) for t in range(5)]
        [0.5, 1.0, 1.0, 0.5, 0.25]
    """

    warmup_steps: int | float
    total_steps: int | None

    def __post_init__(self) -> None:
        self.warmup = self.steps("warmup_steps", self.warmup_steps)

    def shortfall(self, steps: int) -> str | None:
        """Return what is missing of the schedule in a run of this many steps, or None.

        Example:
            >>> import attnkit
            >>> attnkit.schedules.build({"name": "constant", "warmup_steps": 400}, total_steps=None).shortfall(100)
            'the run of 100 steps ends within the warmup of 400, so the learning rate rises to 0.25 of its value'
            >>> attnkit.schedules.build({"name": "linear", "warmup_steps": 0}, total_steps=400).shortfall(300)
            'the run ends after 300 of the 400 steps of the schedule, where the learning rate has fallen to 0.25 of its value'
        """
        if steps >= self.warmup:
            return None
        highest = f"{steps / self.warmup:.2g} of its value"
        return f"the run of {steps:,} steps ends within the warmup of {self.warmup:,}, so the learning rate rises to {highest}"

    def factor(self, step: int) -> float:
        """Return the factor for the update after `step` updates."""
        return (step + 1) / self.warmup if step < self.warmup else self.after_warmup(step)

    @abstractmethod
    def after_warmup(self, step: int) -> float:
        """Return the factor for `step >= warmup`."""

    @property
    def end(self) -> int:
        """The number of steps in the run; raises a `ConfigurationError` if the run is open-ended."""
        if self.total_steps is None:
            raise ConfigurationError(
                f"the schedule {type(self).__name__} needs the number of steps, but the run is open-ended: set trainer.max_steps (or "
                f"trainer.max_epochs, for data of known length), or choose constant or inverse_sqrt, with warmup_steps in steps"
            )
        return self.total_steps

    def steps(self, argument: str, value: int | float) -> int:
        """Return a length in steps, given a number of steps or a fraction of the run; `argument` is its name in the error message."""
        if isinstance(value, float) and 0 < value < 1:
            return round(value * self.end)
        if isinstance(value, int) and value >= 0:
            return value
        raise ConfigurationError(
            f"{argument} must be a whole number of steps (0, 1, 2, ...) or a fraction of the run above 0 and below 1, but is {value!r}"
        )


@fields_as_keywords
class Decay(Schedule):
    """A schedule that falls to a given factor at the end of the run.

    Args:
        final: The factor from the end of the run on.

    Raises:
        ConfigurationError: A value is out of range, or the run is open-ended.
    """

    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.final <= 1:
            raise ConfigurationError(f"final is a factor of the learning rate: it must be between 0 and 1, but is {self.final!r}")
        self.length = max(1, self.end - self.warmup)  # a run shorter than its warmup never leaves it

    def progress(self, step: int) -> float:
        """Return the completed fraction of the decay, from 0 to 1."""
        return min(1.0, (step - self.warmup) / self.length)

    @override
    def shortfall(self, steps: int) -> str | None:
        if steps < self.warmup or steps >= self.end:
            return super().shortfall(steps)
        reached = f"the learning rate has fallen to {self.factor(steps):.2g} of its value"
        return f"the run ends after {steps:,} of the {self.end:,} steps of the schedule, where {reached}"
