"""Sections of a study file that have keys of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attnkit.ablation.design import check_key
from attnkit.registry import ConfigurationError
from attnkit.worker.records import check


@dataclass(frozen=True, kw_only=True)
class Match:
    """Variants get equal size: `adjust` is solved for, so that `on` equals the baseline's up to `tolerance` (a fraction of it)."""

    on: Literal["params", "flops"]
    adjust: str
    tolerance: float = 0.02

    def __post_init__(self) -> None:
        check(self, where="match")
        check_key(self.adjust)


@dataclass(frozen=True, kw_only=True)
class Tune:
    """A setting that is tuned for every variant, by equally many trials, with seeds of their own, before the runs of the results.

    Attributes:
        key: Of the recipe.
        values: A grid, in order.
        seeds: The number of seeds for each value.
        metric: The metric that decides; None: the study's. It must not be a metric of the test data.
    """

    key: str
    values: tuple[Any, ...]
    seeds: int = 2
    metric: str | None = None

    def __post_init__(self) -> None:
        check(self, where="tune")
        check_key(self.key)
        if len(set(map(str, self.values))) < len(self.values) or len(self.values) < 2:
            raise ConfigurationError(f"tune: values must be at least two different ones, but are {list(self.values)}")
        if self.seeds < 2:
            raise ConfigurationError(f"tune: seeds must be at least 2, but is {self.seeds}: one run would choose by chance")


@dataclass(frozen=True, kw_only=True)
class Published:
    """A table of a paper, which the report puts beside ours.

    Attributes:
        source: The paper, the table and the metric.
        better: Whether a lower or a higher number is better there.
        rows: For each variant, its name there and its number there.
    """

    source: str
    better: Literal["lower", "higher"]
    rows: Mapping[str, Mapping[str, float]]

    def __post_init__(self) -> None:
        check(self, where="published")
        for variant, row in self.rows.items():
            if len(row) != 1:
                raise ConfigurationError(f"published: a row is VARIANT: {{NAME THERE: NUMBER}}, but that of {variant!r} is {row!r}")
