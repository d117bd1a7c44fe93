"""Tuning: equally many trials for every variant, on seeds that no result uses. Trials form a plan whose runs are stored like others.

A grid, or the first points of a search, form one plan. After that, the plan grows by one point per variant at a time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from attnkit.ablation.design import Variant, refuse_shown, settings
from attnkit.ablation.plan import Plan, Tuned
from attnkit.ablation.sections import EVEN, Range
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.study_file import MAX_SEEDS
from attnkit.ablation.validity import state_of
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import FINISHED, result_of

FIRST_SEED = 1_000_000  # the first tuning seed; the seeds of results are smaller


Point = dict[str, Any]  # a value for each tuned key

Outcomes = Sequence[tuple[Point, float | None]]
"""Points, each with the mean of the metric over the tuning seeds; None if a run diverged."""


def trials_of(study: StudySpec, variants: Sequence[Variant], points: Mapping[str, Sequence[Point]]) -> tuple[StudySpec, list[Variant]]:
    """Return the study of the trials and its variants so far: each variant of the original study with each of its points.

    The question of the study of trials consists of the points that do not depend on results.
    """
    tune = study.tune
    assert tune is not None
    if fixed := [(key, v.name) for v in variants for key in tune.keys if key in v.overrides]:
        raise ConfigurationError(f"tune: {fixed[0][0]} is set by the variant {fixed[0][1]!r}, so it cannot be tuned")
    refuse_shown(study.factors, settings(tune.first[0]), by="tune")
    if max(study.seeds) >= FIRST_SEED:
        raise ConfigurationError(
            f"tune: seeds from {FIRST_SEED} are reserved for tuning and cannot be used for results: give the study smaller ones"
        )
    if tune.search and tune.count > EVEN and find_spec("optuna") is None:
        raise ConfigurationError(f"tune: a search of more than {EVEN} trials needs the package 'optuna': pip install 'attnkit[tune]'")

    def tried(some: Mapping[str, Sequence[Point]]) -> list[Variant]:
        pairs = [Variant(name=_name(v.name, p), overrides={**v.overrides, **p}) for v in variants for p in some[v.name]]
        return list({one.name: one for one in pairs}.values())

    first_seed = FIRST_SEED + study.seeds[0] // MAX_SEEDS * MAX_SEEDS  # tasks share no random numbers, see `attnkit.ablation.cells`
    seeds = tuple(range(first_seed, first_seed + tune.seeds))
    tuning = replace(
        study,
        name=f"{study.name}.tuning",
        metric=tune.metric or study.metric,
        better=tune.better or study.better,
        quantile=None,
        design="list",
        variants=tuple(tried(dict.fromkeys(points, tune.first))),
        factors=(),
        effects=(),
        compare=(),
        decide=None,
        exclude=(),
        seeds=seeds,
        published=None,
        lengths=None,
        tune=None,
        file=None,
    )
    return tuning, tried(points)


def outcomes(variants: Sequence[Variant], trials: Plan, points: Mapping[str, Sequence[Point]]) -> dict[str, Outcomes]:
    """Return the outcomes of each variant's trials; empty unless every trial has one."""
    keys, runs = trials.key_by_variant, {run.key: run for run in trials.runs}
    found: dict[str, Outcomes] = {}
    for variant in variants:
        means: list[tuple[Point, float | None]] = []
        for point in points[variant.name]:
            chosen = [runs[keys[_name(variant.name, point), seed]] for seed in trials.study.seeds]
            states = [state_of(trials, run)["status"] for run in chosen]
            if not {*states} <= {*FINISHED}:
                return {}
            logged = [result_of(trials.run_folder(run.key)).get("metrics", {}) for run in chosen]
            if any(trials.study.metric not in one for one, state in zip(logged, states, strict=True) if state == "ok"):
                return {}  # running the trials says so
            metrics = [one.get(trials.study.metric) for one in logged]
            lost = "diverged" in states or None in metrics
            means.append((point, None if lost else sum(metrics) / len(metrics)))
        found[variant.name] = means
    return found


def proposed(search: Mapping[str, Range], found: Outcomes, *, better: str) -> Point:
    """Return the point that a search tries next, from Optuna's tree-structured Parzen estimator (Bergstra et al. 2011).

    The point depends only on earlier outcomes, so a search that was killed continues as if it had not been.

    Example:
        >>> lr = {"model.optimizer.lr": Range(low=1e-4, high=1e-2, log=True)}
        >>> found = [({"model.optimizer.lr": 1e-4 * n}, abs(n - 30)) for n in range(1, 100, 9)]
        >>> 1e-3 < proposed(lr, found, better="lower")["model.optimizer.lr"] < 6e-3
        True
    """
    import optuna

    kinds: dict[bool, Any] = {True: optuna.distributions.IntDistribution, False: optuna.distributions.FloatDistribution}
    space = {key: kinds[one.is_whole](one.low, one.high, log=one.log) for key, one in search.items()}
    optuna.logging.disable_default_handler()  # otherwise it logs a line per study created
    sampler = optuna.samplers.TPESampler(seed=len(found), n_startup_trials=0)
    study = optuna.create_study(sampler=sampler, direction="minimize" if better == "lower" else "maximize")
    worst = math.inf if better == "lower" else -math.inf
    for point, mean in found:
        study.add_trial(optuna.trial.create_trial(params=point, distributions=space, value=worst if mean is None else mean))
    values = study.ask(space).params
    return {key: one.written(values[key]) for key, one in search.items()}


def best_of(found: Outcomes, *, better: str) -> Tuned:
    """Return the outcome of tuning one variant."""
    sign = 1.0 if better == "lower" else -1.0
    best = min(found, key=lambda pair: math.inf if pair[1] is None else sign * pair[1])[0]
    nothing = all(mean is None for _, mean in found)  # then no value is better than the first
    columns = {key: [point[key] for point, _ in found] for key in best}
    numbers = {key: values for key, values in columns.items() if all(type(value) in (int, float) for value in values)}
    edges = tuple(key for key, values in numbers.items() if best[key] in (min(values), max(values)))
    return Tuned(chosen=best, means=tuple(found), edges=tuple(best) if nothing else edges)


def written(values: Mapping[str, Any]) -> str:
    """Return the values of tuned keys as text.

    Example:
        >>> written({"model.optimizer.lr": 0.01, "model.dropout": 0.1})
        'lr=0.01, dropout=0.1'
    """
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def _name(variant: str, values: Mapping[str, Any]) -> str:
    return f"{variant}, {written(values)}"
