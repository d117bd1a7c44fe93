"""Sections of a study file that have keys of their own: match, budget, tune, published."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, Self, get_args

from attnkit.ablation.design import check_key
from attnkit.registry import ConfigurationError, nearest


@dataclass(frozen=True, kw_only=True)
class Match:
    """Variants get equal size: `adjust` is solved for, so that `on` is that of the baseline, up to `tolerance` (a share of it)."""

    on: Literal["params", "flops"]
    adjust: str
    tolerance: float = 0.02

    @classmethod
    def read(cls, given: Any) -> Self:
        """Return what a study file says, or raise a ConfigurationError that says what is wrong."""
        match = cls(**given)
        if match.on not in ("params", "flops"):
            raise ConfigurationError(f"match: on must be params or flops, but is {match.on!r}")
        check_key(match.adjust)
        return match


@dataclass(frozen=True, kw_only=True)
class Budget:
    """What every run may use, whatever its variant: it ends at the first step at which `limit` is reached."""

    on: Literal["steps", "tokens", "flops", "seconds"]
    limit: float

    @property
    def overrides(self) -> dict[str, Any]:
        """What it changes in the recipe, by dotted key. Schedules are as long as the steps; of the others, nobody knows before."""
        ends = {"trainer.min_epochs": None, "trainer.min_steps": None, "trainer.max_time": None}
        return ends | ({"trainer.max_epochs": -1, "trainer.max_steps": self.limit} if self.on == "steps" else {})

    @classmethod
    def read(cls, given: Any) -> Self:
        """Return what a study file says, or raise a ConfigurationError that says what is wrong."""
        known = get_args(Budget.__annotations__["on"])
        if not isinstance(given, Mapping) or len(given) != 1:
            raise ConfigurationError(f"budget: exactly one of {', '.join(known)}, as in {{steps: 1000}}; not {given!r}")
        [(on, limit)] = given.items()
        if on not in known:
            raise ConfigurationError(f"budget: unknown {on!r}.{nearest(str(on), known)} One of: {', '.join(known)}.")
        if isinstance(limit, bool) or not isinstance(limit, int | float) or limit <= 0:
            raise ConfigurationError(f"budget: {on} must be a number above 0, but is {limit!r}")
        return cls(on=on, limit=limit if on == "seconds" else int(limit))


@dataclass(frozen=True, kw_only=True)
class Tune:
    """What is tuned for every variant, by as many trials, on seeds of their own, before the runs of the result.

    Attributes:
        key: Of the recipe.
        values: A grid, in order.
        seeds: How many for each value.
        metric: What decides; None: the study's. It must not be one of the test data.
    """

    key: str
    values: tuple[Any, ...]
    seeds: int = 2
    metric: str | None = None

    @classmethod
    def read(cls, given: Any) -> Self:
        """Return what a study file says, or raise a ConfigurationError that says what is wrong."""
        known = [f.name for f in fields(Tune)]
        if unknown := [key for key in given if key not in known]:
            raise ConfigurationError(f"tune has no key {unknown[0]!r}.{nearest(str(unknown[0]), known)} Keys: {', '.join(known)}.")
        tune = cls(**{**given, "values": tuple(given["values"])})
        check_key(tune.key)
        if len(set(map(str, tune.values))) < len(tune.values) or len(tune.values) < 2:
            raise ConfigurationError(f"tune: values must be two different ones or more, but are {list(tune.values)}")
        if tune.seeds < 2:
            raise ConfigurationError(f"tune: seeds must be at least 2, but is {tune.seeds}: one run would choose by chance")
        return tune


@dataclass(frozen=True, kw_only=True)
class Published:
    """A table of a paper, beside which the report puts ours.

    Attributes:
        source: Which paper, which table, which metric.
        better: Whether a lower or a higher number is better there.
        rows: For each variant, what the paper calls it and its number there.
    """

    source: str
    better: Literal["lower", "higher"]
    rows: Mapping[str, tuple[str, float]]

    @classmethod
    def read(cls, given: Any) -> Self:
        """Return what a study file says, or raise a ConfigurationError that says what is wrong."""
        if given["better"] not in ("lower", "higher"):
            raise ConfigurationError(f"published: better must be lower or higher, but is {given['better']!r}")
        rows: dict[str, tuple[str, float]] = {}
        for variant, row in given["rows"].items():
            if len(row) != 1 or not all(isinstance(number, int | float) for number in row.values()):
                raise ConfigurationError(f"published: a row is VARIANT: {{NAME THERE: NUMBER}}, but that of {variant!r} is {row!r}")
            [(name, number)] = row.items()
            rows[str(variant)] = (str(name), float(number))
        return cls(source=str(given["source"]), better=given["better"], rows=rows)
