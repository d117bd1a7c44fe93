"""Tuning: the same trials for every variant, on seeds that no result uses. The trials are a plan, whose runs are stored like others."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attnkit.ablation.design import Variant
from attnkit.ablation.store import result_of, status_of
from attnkit.ablation.study import Study
from attnkit.registry import ConfigurationError

if TYPE_CHECKING:
    from attnkit.ablation.plan import Plan

FIRST_SEED = 1_000_000
"""Of tuning: results have smaller ones."""


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """What tuning found for a variant.

    Attributes:
        value: The best.
        means: The metric's mean over the seeds of tuning, by value; infinite if a run diverged.
        edge: Whether the best is the first or the last of the values: a better one may lie beyond.
    """

    value: Any
    means: tuple[tuple[Any, float], ...]
    edge: bool


def trials_of(study: Study, variants: Sequence[Variant]) -> tuple[Study, list[Variant]]:
    """Return the study that tunes another one, and its variants: each of the other's with each value.

    Raises:
        ConfigurationError: A variant sets what is tuned.
    """
    tune = study.tune
    assert tune is not None
    if fixed := [v.name for v in variants if tune.key in v.overrides]:
        raise ConfigurationError(f"tune: {tune.key} is set by the variant {fixed[0]!r}, so it cannot be tuned")
    trials = [
        Variant(name=_name(v.name, tune.key, value), overrides={**v.overrides, tune.key: value}) for v in variants for value in tune.values
    ]
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + tune.seeds))
    tuning = replace(
        study,
        name=f"{study.name}.tuning",
        metric=tune.metric or study.metric,
        design="list",
        variants=tuple(trials),
        factors=(),
        exclude=(),
        seeds=seeds,
        published=None,
        lengths=None,
        tune=None,
        file=None,
    )
    return tuning, trials


def best_of(study: Study, variants: Sequence[Variant], trials: "Plan") -> dict[str, Tuned]:
    """Return what tuning found for each variant; empty unless every trial has an outcome."""
    tune, keys = study.tune, trials.key_by_variant
    assert tune is not None
    worst = math.inf if study.better == "lower" else -math.inf
    found = {}
    for variant in variants:
        means = []
        for value in tune.values:
            metrics = []
            for seed in trials.study.seeds:
                folder = trials.run_folder(keys[_name(variant.name, tune.key, value), seed])
                status = status_of(folder)["status"]
                if status not in ("ok", "diverged"):
                    return {}
                metric = result_of(folder)["metrics"].get(trials.study.metric) if status == "ok" else None
                metrics.append(worst if metric is None else float(metric))
            means.append((value, sum(metrics) / len(metrics)))
        choose = min if study.better == "lower" else max
        best = choose(means, key=lambda pair: pair[1])[0]
        found[variant.name] = Tuned(value=best, means=tuple(means), edge=best in (tune.values[0], tune.values[-1]))
    return found


def _name(variant: str, key: str, value: Any) -> str:
    return f"{variant}, {key.rpartition('.')[2]}={value}"
