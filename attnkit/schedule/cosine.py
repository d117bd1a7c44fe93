# https://arxiv.org/abs/1608.03983
"""The cosine schedule."""

import math

from attnkit.registry import schedules
from attnkit.schedule.base import Schedule, between_0_and_1


@schedules.register("cosine")
class Cosine(Schedule):
    r"""Linear warmup, then a cosine decay to the end of the run.

    Equation:
        $$f(t) = \frac{t + 1}{w} \text{ for } t < w, \quad
          f(t) = f_{end} + (1 - f_{end}) \frac{1 + \cos \pi x}{2} \text{ with } x = \min\left(\frac{t - w}{T - w}, 1\right) \text{ after}$$

    Paper: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983

    Args:
        warmup_steps: Length `w` of the warmup: a whole number of steps, or a fraction of the run, above 0 and below 1.
        final: Factor from the end of the run on.
        total_steps: Number `T` of optimizer steps of the run.

    Raises:
        ConfigurationError: A value is out of range, or the run is open-ended.

    Example:
        >>> import attnkit
        >>> schedule = attnkit.schedules.build({"name": "cosine", "warmup_steps": 0, "final": 0.1}, total_steps=4)
        >>> [round(schedule.factor(t), 4) for t in range(5)]
        [1.0, 0.8682, 0.55, 0.2318, 0.1]
    """

    def __init__(self, *, warmup_steps: int | float = 0.05, final: float = 0.0, total_steps: int | None) -> None:
        super().__init__(warmup_steps=warmup_steps, total_steps=total_steps)
        self.final = between_0_and_1("final", final)
        self.length = max(1, self.total_steps - self.warmup)  # a run shorter than its warmup never leaves it

    def after_warmup(self, step: int) -> float:
        """Return the cosine decay from 1 to `final`."""
        progress = min(1.0, (step - self.warmup) / self.length)
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2
