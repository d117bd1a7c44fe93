"""Ablation studies: a file says what is varied; the report says what is better, worse, equivalent or inconclusive.

Example:
    >>> from attnkit.ablation import Study
    >>> Study(name="s", recipe="g2p/transformer", seeds=(0,), factors=())
    Traceback (most recent call last):
    ...
    attnkit.registry.errors.ConfigurationError: seeds: a study needs at least 2, but has 1: ...
"""

from attnkit.ablation.sections import Match, Published
from attnkit.ablation.study import Study

__all__ = ["Match", "Published", "Study"]
