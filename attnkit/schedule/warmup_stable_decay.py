# https://arxiv.org/abs/2405.18392
"""The warmup-stable-decay schedule."""

import math
from typing import Literal

from attnkit.registry import fields_as_keywords, schedules
from attnkit.schedule.base import Decay


@schedules.register("warmup_stable_decay")
@fields_as_keywords
class WarmupStableDecay(Decay):
    r"""Linear warmup, a long constant phase, then a decay at the end of the run.

    Unlike with other decays, a run can be extended from any checkpoint before its decay.

    Equation:
        $$f(t) = \min\left(\frac{t + 1}{w}, 1\right) \text{ for } t \le T - d, \quad
          f(t) = f_{end} + (1 - f_{end}) \, g\left(\min\left(\frac{t - (T - d)}{d}, 1\right)\right) \text{ after it}, \quad
          g(x) = 1 - \sqrt{x} \text{ or } 1 - x$$

    Paper: Hägele et al. 2024, https://arxiv.org/abs/2405.18392

    Args:
        decay_steps: Length `d` of the decay: a whole number of steps, or a fraction of the run, above 0 and below 1.
        shape: Shape of the decay: `sqrt` is $1 - \sqrt{x}$, the paper's best; `linear` is $1 - x$.

    Example:
        >>> import attnkit
        >>> spec = {"name": "warmup_stable_decay", "warmup_steps": 2, "decay_steps": 4, "shape": "linear"}
        >>> schedule = attnkit.schedules.build(spec, total_steps=10)
        >>> [schedule.factor(t) for t in range(11)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    warmup_steps: int | float = 0.05
    decay_steps: int | float = 0.2
    shape: Literal["sqrt", "linear"] = "sqrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.length = min(self.steps("decay_steps", self.decay_steps), max(0, self.end - self.warmup))
        self.decay_start = self.end - self.length

    def after_warmup(self, step: int) -> float:
        """Return 1 until the decay starts, then fall to `final`."""
        if self.length == 0 or step <= self.decay_start:
            return 1.0
        progress = min(1.0, (step - self.decay_start) / self.length)
        return self.final + (1 - self.final) * (1 - (math.sqrt(progress) if self.shape == "sqrt" else progress))
