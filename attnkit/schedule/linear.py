# https://arxiv.org/abs/1810.04805
"""The linear schedule."""

from attnkit.registry import schedules
from attnkit.schedule.base import Schedule, between_0_and_1


@schedules.register("linear")
class Linear(Schedule):
    r"""Linear warmup, then a linear decay to the end of the run.

    Equation:
        $$f(t) = \frac{t + 1}{w} \text{ for } t < w, \quad
          f(t) = 1 - (1 - f_{end}) \min\left(\frac{t - w}{T - w}, 1\right) \text{ after it}$$

    Paper: Devlin et al. 2019 (BERT), https://arxiv.org/abs/1810.04805

    Args:
        warmup_steps: Length `w` of the warmup: a whole number of steps, or a fraction of the run, above 0 and below 1.
        final: Factor from the end of the run on.
        total_steps: Number `T` of optimizer steps of the run.

    Raises:
        ConfigurationError: A value is out of range, or the run is open-ended.

    Example:
        >>> import attnkit
        >>> schedule = attnkit.schedules.build({"name": "linear", "warmup_steps": 2}, total_steps=6)
        >>> [schedule.factor(t) for t in range(7)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    def __init__(self, *, warmup_steps: int | float = 0.1, final: float = 0.0, total_steps: int | None) -> None:
        super().__init__(warmup_steps=warmup_steps, total_steps=total_steps)
        self.final = between_0_and_1("final", final)
        self.length = max(1, self.total_steps - self.warmup)  # a run shorter than its warmup never leaves it

    def after_warmup(self, step: int) -> float:
        """Return a straight line from 1 to `final`."""
        return 1 - (1 - self.final) * min(1.0, (step - self.warmup) / self.length)
