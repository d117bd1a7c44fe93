# https://arxiv.org/abs/1706.02677
"""The constant schedule."""

from attnkit.registry import fields_as_keywords, schedules
from attnkit.schedule.base import Schedule


@schedules.register("constant")
@fields_as_keywords
class Constant(Schedule):
    r"""A constant learning rate, after an optional linear warmup.

    Equation:
        $$f(t) = \min\left(\frac{t + 1}{w}, 1\right)$$

    Paper: Goyal et al. 2017 (the warmup), https://arxiv.org/abs/1706.02677

    Example:
        >>> import attnkit
        >>> schedule = attnkit.schedules.build({"name": "constant", "warmup_steps": 4}, total_steps=None)
        >>> [schedule.factor(t) for t in range(6)]
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]
    """

    warmup_steps: int | float = 0

    def after_warmup(self, step: int) -> float:
        """Return 1."""
        return 1.0
