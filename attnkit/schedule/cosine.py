# https://arxiv.org/abs/1608.03983
"""The cosine schedule."""

import math

from attnkit.registry import fields_as_keywords, schedules
from attnkit.schedule.base import Decay


@schedules.register("cosine")
@fields_as_keywords
class Cosine(Decay):
    r"""Linear warmup, then a cosine decay to the end of the run.

    Equation:
        $$f(t) = \frac{t + 1}{w} \text{ for } t < w, \quad
          f(t) = f_{end} + (1 - f_{end}) \frac{1 + \cos \pi x}{2} \text{ with } x = \min\left(\frac{t - w}{T - w}, 1\right) \text{ after}$$

    Paper: Loshchilov and Hutter 2017, https://arxiv.org/abs/1608.03983

    Example:
        >>> import attnkit
        >>> schedule = attnkit.schedules.build({"name": "cosine", "warmup_steps": 0, "final": 0.1}, total_steps=4)
        >>> [round(schedule.factor(t), 4) for t in range(5)]
        [1.0, 0.8682, 0.55, 0.2318, 0.1]
    """

    warmup_steps: int | float = 0.05

    def after_warmup(self, step: int) -> float:
        """Return the cosine decay from 1 to `final`."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * self.progress(step))) / 2
