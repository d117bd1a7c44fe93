"""Tuning: equally many trials for every variant, on seeds that no result uses. The trials are a plan, whose runs are stored like others."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from attnkit.ablation.design import Variant
from attnkit.ablation.plan import Plan, Tuned
from attnkit.ablation.spec import StudySpec
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import result_of, status_of

FIRST_SEED = 1_000_000
"""Of tuning: results have smaller ones."""


def trials_of(study: StudySpec, variants: Sequence[Variant]) -> tuple[StudySpec, list[Variant]]:
    """Return the study of the trials, and its variants: each variant of the study with each value.

    Raises:
        ConfigurationError: A variant sets the key that is tuned.
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


def best_of(study: StudySpec, variants: Sequence[Variant], trials: Plan) -> dict[str, Tuned]:
    """Return the outcome of tuning for each variant; empty unless every trial has an outcome."""
    tune, keys = study.tune, trials.key_by_variant
    assert tune is not None
    sign = 1.0 if study.better == "lower" else -1.0
    found = {}
    for variant in variants:
        means: list[tuple[Any, float | None]] = []
        for value in tune.values:
            folders = [trials.run_folder(keys[_name(variant.name, tune.key, value), seed]) for seed in trials.study.seeds]
            states = [status_of(folder)["status"] for folder in folders]
            if not {*states} <= {"ok", "diverged"}:
                return {}
            metrics = [result_of(folder).get("metrics", {}).get(trials.study.metric) for folder in folders]
            lost = "diverged" in states or None in metrics
            means.append((value, None if lost else sum(metrics) / len(metrics)))
        best = min(means, key=lambda pair: math.inf if pair[1] is None else sign * pair[1])[0]
        found[variant.name] = Tuned(value=best, means=tuple(means), edge=best in (tune.values[0], tune.values[-1]))
    return found


def _name(variant: str, key: str, value: Any) -> str:
    return f"{variant}, {key.rpartition('.')[2]}={value}"
