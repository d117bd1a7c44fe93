# https://arxiv.org/abs/1810.04805
"""The linear schedule."""

from attnkit.registry import fields_as_keywords, schedules
from attnkit.schedule.base import Decay


@schedules.register("linear")
@fields_as_keywords
class Linear(Decay):
    r"""Linear warmup, then a linear decay to the end of the run.

    Equation:
        $$f(t) = \frac{t + 1}{w} \text{ for } t < w, \quad
          f(t) = 1 - (1 - f_{end}) \min\left(\frac{t - w}{T - w}, 1\right) \text{ after it}$$

    Paper: Devlin et al. 2019 (BERT), https://arxiv.org/abs/1810.04805

    Example:
        >>> import attnkit
        >>> schedule = attnkit.schedules.build({"name": "linear", "warmup_steps": 2}, total_steps=6)
        >>> [schedule.factor(t) for t in range(7)]
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """

    warmup_steps: int | float = 0.1

    def after_warmup(self, step: int) -> float:
        """Return a straight line from 1 to `final`."""
        return 1 - (1 - self.final) * self.progress(step)
