# https://arxiv.org/abs/1706.03762
"""The inverse square root schedule (Noam)."""

import math

from attnkit.registry import ConfigurationError, fields_as_keywords, schedules
from attnkit.schedule.base import Schedule


@schedules.register("inverse_sqrt")
@fields_as_keywords
class InverseSqrt(Schedule):
    r"""Linear warmup, then decay with the inverse square root of the step: the Transformer's "Noam" schedule.

    The paper's learning rate is $d_{model}^{-1/2} \min(s^{-1/2}, s \, w^{-3/2})$ in its step $s = t + 1$. This factor is the same curve
    divided by its peak, so the optimizer's `lr` is the peak learning rate. To reproduce the paper, set `lr` to
    $(d_{model} \, w)^{-1/2}$, which is 7e-4 at a width of 512 and 4,000 warmup steps. The run may be open-ended.

    Equation:
        $$f(t) = \min\left(\frac{t + 1}{w}, \sqrt{\frac{w}{t + 1}}\right)$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762

    Args:
        warmup_steps: Length `w` of the warmup: a whole number of steps, or a fraction of the run, above 0 and below 1. At least 1 step.

    Raises:
        ConfigurationError: `warmup_steps` is neither of these, is 0 (the factor would always be 0), or is a fraction of an open-ended run.

    Example:
        >>> import attnkit
        >>> schedule = attnkit.schedules.build({"name": "inverse_sqrt", "warmup_steps": 4}, total_steps=None)
        >>> [schedule.factor(t) for t in (0, 1, 3, 15, 63)]
        [0.25, 0.5, 1.0, 0.5, 0.25]
    """

    warmup_steps: int | float = 4000

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.warmup == 0:
            if isinstance(self.warmup_steps, float):
                self.warmup = 1  # a fraction that rounds to zero steps
            else:
                raise ConfigurationError("inverse_sqrt needs warmup_steps of at least 1: its decay is sqrt(warmup_steps / step)")

    def after_warmup(self, step: int) -> float:
        """Return `sqrt(w / (step + 1))`."""
        return math.sqrt(self.warmup / (step + 1))
