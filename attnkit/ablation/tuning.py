"""Tuning: equally many trials for every variant, on seeds that no result uses. The trials are a plan, whose runs are stored like others."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from attnkit.ablation.design import Variant
from attnkit.ablation.plan import Plan, Tuned
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.validity import state_of
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import result_of

FIRST_SEED = 1_000_000
"""Of tuning: results have smaller ones."""


def trials_of(study: StudySpec, variants: Sequence[Variant]) -> tuple[StudySpec, list[Variant]]:
    """Return the study of the trials, and its variants: each variant of the study with each value.

    Raises:
        ConfigurationError: A variant sets a key that is tuned.
    """
    tune = study.tune
    assert tune is not None
    if fixed := [(key, v.name) for v in variants for key in tune.keys if key in v.overrides]:
        raise ConfigurationError(f"tune: {fixed[0][0]} is set by the variant {fixed[0][1]!r}, so it cannot be tuned")
    trials = [Variant(name=_name(v.name, values), overrides={**v.overrides, **values}) for v in variants for values in tune.combinations]
    if max(study.seeds) >= FIRST_SEED:
        raise ConfigurationError(
            f"tune: seeds from {FIRST_SEED} are those of tuning, which results must not use: give the study smaller ones"
        )
    seeds = tuple(range(FIRST_SEED, FIRST_SEED + tune.seeds))
    tuning = replace(
        study,
        name=f"{study.name}.tuning",
        metric=tune.metric or study.metric,
        better=tune.better or study.better,
        design="list",
        variants=tuple(trials),
        factors=(),
        effects=(),
        decide=None,
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
    tune, keys, runs = study.tune, trials.key_by_variant, {run.key: run for run in trials.runs}
    assert tune is not None
    sign = 1.0 if trials.study.better == "lower" else -1.0
    found = {}
    for variant in variants:
        means: list[tuple[dict[str, Any], float | None]] = []
        for values in tune.combinations:
            chosen = [runs[keys[_name(variant.name, values), seed]] for seed in trials.study.seeds]
            states = [state_of(trials, run)["status"] for run in chosen]
            if not {*states} <= {"ok", "diverged"}:
                return {}
            metrics = [result_of(trials.run_folder(run.key)).get("metrics", {}).get(trials.study.metric) for run in chosen]
            lost = "diverged" in states or None in metrics
            means.append((values, None if lost else sum(metrics) / len(metrics)))
        best = min(means, key=lambda pair: math.inf if pair[1] is None else sign * pair[1])[0]
        nothing = all(mean is None for _, mean in means)  # then every value is as good as the first
        edges = tune.keys if nothing else tuple(key for key, values in tune.tried.items() if best[key] in (values[0], values[-1]))
        found[variant.name] = Tuned(chosen=best, means=tuple(means), edges=edges)
    return found


def written(values: Mapping[str, Any]) -> str:
    """Return values of tuned keys in words.

    Example:
        >>> written({"model.optimizer.lr": 0.01, "model.dropout": 0.1})
        'lr=0.01, dropout=0.1'
    """
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def _name(variant: str, values: Mapping[str, Any]) -> str:
    return f"{variant}, {written(values)}"
