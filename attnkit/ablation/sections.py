"""Sections of a study file that have keys of their own."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Literal

from attnkit.ablation.design import check_keys
from attnkit.ablation.study_file import MAX_SEEDS
from attnkit.registry import ConfigurationError
from attnkit.worker.records import check


@dataclass(frozen=True, kw_only=True)
class Match:
    """Makes variants equal in size: chooses `adjust` so that `on` equals the baseline's within `tolerance` (a fraction of it)."""

    on: Literal["params", "flops"]
    adjust: str
    tolerance: float = 0.02

    def __post_init__(self) -> None:
        check(self, where="match")
        check_keys(self.adjust)
        if not 0 <= self.tolerance < 1:
            raise ConfigurationError(f"match: tolerance must be a fraction of the baseline's size, in [0, 1), but is {self.tolerance}")


@dataclass(frozen=True, kw_only=True)
class Range:
    """The range of a setting: numbers from `low` to `high`, integers if both are integers; on a log scale with `log`."""

    low: float
    high: float
    log: bool = False

    def __post_init__(self) -> None:
        check(self, where="tune: search")
        if not self.low < self.high or (self.log and self.low <= 0):
            above = ", and low above 0 with log" if self.log else ""
            raise ConfigurationError(f"tune: search needs low below high{above}, but they are {self.low} and {self.high}")

    @property
    def is_whole(self) -> bool:
        """Whether the numbers of the range are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    def at(self, share: float) -> float:
        """Return the number at a fraction `share` of the range, in [0, 1), rounded to 4 significant digits.

        Example:
            >>> Range(low=1e-4, high=1e-2, log=True).at(0.5), Range(low=2, high=6).at(0.99)
            (0.001, 6)
        """
        if self.is_whole and not self.log:
            return self.low + int(share * (self.high - self.low + 1))
        return self.written(self.low * (self.high / self.low) ** share if self.log else self.low + share * (self.high - self.low))

    def written(self, value: float) -> float:
        """Return a number of the range as it is tried: rounded to an integer or to 4 significant digits."""
        if self.is_whole:
            return round(value)
        return min(max(float(f"{value:.4g}"), self.low), self.high)  # rounding may leave the range


EVEN = 10
"""The number of points of a search that do not depend on results."""


@dataclass(frozen=True, kw_only=True)
class Tune:
    """Settings that are tuned for every variant before the runs of the results, with equally many trials and separate seeds.

    Attributes:
        grid: The values to try for each recipe key, in order. Every combination is tried.
        search: The range of each key, instead of a grid: `trials` points are tried. The first `EVEN` are the same for every variant; the
            others are chosen by `attnkit.ablation.tuning.proposed`.
        trials: The number of points of a search, the same for every variant.
        seeds: The number of seeds per combination.
        metric: The metric to tune by, which must not be a test metric; None: the study's metric.
        better: Whether lower or higher is better; None: as for the study's metric, in which case `metric` may differ only in the split.
    """

    grid: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    search: Mapping[str, Range] = field(default_factory=dict)
    trials: int | None = None
    seeds: int = 2
    metric: str | None = None
    better: Literal["lower", "higher"] | None = None

    def __post_init__(self) -> None:
        check(self, where="tune")
        if bool(self.grid) == bool(self.search):
            raise ConfigurationError(
                "tune: give grid, with the values of at least one recipe key, or search, with the range of at least one; not both"
            )
        if bool(self.search) != (self.trials is not None) or (self.trials is not None and self.trials < 2):
            raise ConfigurationError("tune: search needs trials, at least 2, but grid takes none")
        check_keys(*self.keys)
        for key, values in self.grid.items():
            if len(set(map(str, values))) < len(values) or len(values) < 2:
                raise ConfigurationError(f"tune: {key} needs at least two values, all different, but has {list(values)}")
        if self.seeds < 2:
            raise ConfigurationError(f"tune: seeds must be at least 2, but is {self.seeds}: with a single run, chance would choose")

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys that are tuned."""
        return (*self.grid, *self.search)

    @property
    def count(self) -> int:
        """The number of combinations of values that each variant tries."""
        return self.trials or len(self.first)

    @property
    def first(self) -> list[dict[str, Any]]:
        r"""The combinations of values that are tried regardless of results, by key: all of a grid, or the first `EVEN` of a search.

        The points of a search fill its ranges evenly, whatever their number: coordinate i of point n is the fractional part of $\frac12 + n
        \phi_d^{-i}$, where $\phi_d$ is the positive root of $x^{d+1} = x + 1$ (Roberts 2018). With up to `EVEN` trials, such points end up
        nearer to the optimum than random ones or those of a sampler that learns from results.

        Example:
            >>> Tune(grid={"model.optimizer.lr": [0.1, 0.2], "model.dropout": [0, 0.5]}).first[1]
            {'model.optimizer.lr': 0.1, 'model.dropout': 0.5}
            >>> Tune(search={"model.optimizer.lr": Range(low=1e-4, high=1e-2, log=True)}, trials=4).first[0]
            {'model.optimizer.lr': 0.001}
        """
        if not self.search:
            return [dict(zip(self.grid, values, strict=True)) for values in product(*self.grid.values())]
        root = 2.0
        for _ in range(60):
            root = (1 + root) ** (1 / (len(self.search) + 1))
        return [
            {key: r.at((0.5 + n * root**-i) % 1) for i, (key, r) in enumerate(self.search.items(), 1)}
            for n in range(min(self.trials or 0, EVEN))
        ]

    def __str__(self) -> str:
        return ", ".join(self.keys)


@dataclass(frozen=True, kw_only=True)
class Decide:
    """Adds seeds until every contrast is decided, at looks planned before the first run; see `attnkit.ablation.looks`.

    Attributes:
        power: A contrast is given up if the last look would decide it with a probability below 1 - power.
        max_seeds: The number of seeds at the last look.
        looks: The number of seeds at each look; empty: 3 seeds, then up to three more looks, each larger by about the same factor.
        spending: The function by which looks spend alpha: `pocock`, or `obrien_fleming`, which spends little on early looks.
    """

    power: float = 0.9
    max_seeds: int = 20
    looks: tuple[int, ...] = ()
    spending: Literal["pocock", "obrien_fleming"] = "pocock"

    def __post_init__(self) -> None:
        check(self, where="decide")
        if not 0.5 <= self.power < 1:
            raise ConfigurationError(f"decide: power must be in [0.5, 1), but is {self.power}")
        if self.max_seeds > MAX_SEEDS:
            raise ConfigurationError(f"decide: max_seeds must be at most {MAX_SEEDS:,}, but is {self.max_seeds}")
        if self.max_seeds < 4:
            raise ConfigurationError(f"decide: max_seeds must be at least 4, but is {self.max_seeds}: use seeds for a single look")
        if self.looks and (list(self.looks) != sorted({*self.looks}) or self.looks[0] < 2 or self.looks[-1] != self.max_seeds):
            raise ConfigurationError(f"decide: looks must rise from at least 2 to max_seeds ({self.max_seeds}), but are {list(self.looks)}")

    @property
    def at(self) -> tuple[int, ...]:
        """The number of seeds at each look.

        Example:
            >>> Decide().at, Decide(max_seeds=5).at
            ((3, 6, 11, 20), (3, 4, 5))
        """
        return self.looks or tuple(sorted({round(3 * (self.max_seeds / 3) ** (k / 3)) for k in range(4)}))


@dataclass(frozen=True, kw_only=True)
class Published:
    """A published table that the report compares with ours.

    Attributes:
        source: The paper, the table and the metric.
        better: Whether lower or higher numbers are better in that table.
        rows: The name and the number of each variant in that table.
    """

    source: str
    better: Literal["lower", "higher"]
    rows: Mapping[str, Mapping[str, float]]

    def __post_init__(self) -> None:
        check(self, where="published")
        for variant, row in self.rows.items():
            if len(row) != 1:
                raise ConfigurationError(f"published: each row must be VARIANT: {{NAME THERE: NUMBER}}, but that of {variant!r} is {row!r}")


@dataclass(frozen=True, kw_only=True)
class TaskSection:
    """One of several tasks of a study; omitted settings are the study's.

    Attributes:
        recipe: The path or short name of the task's recipe.
        metric: The metric that decides.
        better: Whether a lower or a higher metric is better.
        min_effect: The smallest difference that matters.
        resolution: The smallest step of the metric.
        set: Overrides of the recipe, applied after the study's.
    """

    recipe: str | None = None
    metric: str | None = None
    better: Literal["lower", "higher"] | None = None
    min_effect: float | str | None = None
    resolution: float | None = None
    set: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check(self, where="tasks")
        check_keys(*self.set)


@dataclass(frozen=True, kw_only=True)
class ScaleSection:
    """One of several sizes of a study.

    Attributes:
        at: The size: a positive number, such as the width or the number of parameters or training examples.
        set: Overrides of the recipes, applied after the task's.
    """

    at: float
    set: Mapping[str, Any]

    def __post_init__(self) -> None:
        check(self, where="scales")
        if self.at <= 0:
            raise ConfigurationError(f"scales: at must be above 0, but is {self.at}")
        check_keys(*self.set)
