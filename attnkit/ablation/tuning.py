"""Tuning: equally many trials for every variant, on seeds that no result uses. Trials form a plan whose runs are stored like others.

A grid, or the first points of a search, form one plan. After that, the plan grows by one point per variant at a time.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from attnkit.ablation.design import Variant, refuse_shown, settings
from attnkit.ablation.plan import Plan, Tuned, stored_plan
from attnkit.ablation.sections import EVEN, Range
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.study_file import MAX_SEEDS
from attnkit.ablation.validity import state_of
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import FINISHED, key_of, result_of

FIRST_SEED = 1_000_000  # the first tuning seed; the seeds of results are smaller


Point = dict[str, Any]  # a value for each tuned key

Outcomes = Sequence[tuple[Point, float | None]]
"""Points, each with the mean of the metric over the tuning seeds; None if a run diverged."""


Ended = Mapping[str, tuple[str, Mapping[str, float | None]]]
"""The status of each trial's run and, if it is finished, its metrics, by the key of the run."""


def check_tunable(study: StudySpec, variants: Sequence[Variant]) -> None:
    """Raise a `ConfigurationError` if what the study tunes cannot be tuned in all variants, or a package for it is missing."""
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


def trials_of(study: StudySpec, variants: Sequence[Variant], points: Mapping[str, Sequence[Point]]) -> tuple[StudySpec, list[Variant]]:
    """Return the study of the trials and its variants so far: each variant of the original study with each of its points.

    The question of the study of trials consists of the points that do not depend on results.
    """
    tune = study.tune
    assert tune is not None

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


def ended_in_folders(trials: Plan) -> Ended:
    """Return how the runs of trials have ended, from their folders; a stale run counts as not ended."""
    states = {run.key: state_of(trials, run)["status"] for run in trials.runs}
    return {
        key: (state, result_of(trials.run_folder(key)).get("metrics", {}) if state in FINISHED else {}) for key, state in states.items()
    }


def outcomes(variants: Sequence[Variant], trials: Plan, points: Mapping[str, Sequence[Point]], ended: Ended) -> dict[str, Outcomes]:
    """Return the outcomes of each variant's trials; empty unless every trial has one."""
    names, keys, metric = {key_of(v.overrides): v.name for v in trials.variants}, trials.key_by_variant, trials.study.metric
    found: dict[str, Outcomes] = {}
    for variant in variants:
        means: list[tuple[Point, float | None]] = []
        for point in points[variant.name]:
            name = names[key_of({**variant.overrides, **point})]
            runs = [ended[keys[name, seed]] for seed in trials.study.seeds]
            if any(state not in FINISHED or (state == "ok" and metric not in logged) for state, logged in runs):
                return {}  # running the trials says which metrics are logged
            values = [None if state == "diverged" else logged.get(metric) for state, logged in runs]
            known = [value for value in values if value is not None]
            means.append((point, None if len(known) < len(values) else sum(known) / len(known)))
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


def stored_trials(plan: Plan) -> Plan | None:
    """Return the plan of the trials by which a stored plan was tuned, from its file; None if there is none."""
    return stored_plan(trials_behind(plan)[0], plan.folder)


def trials_behind(plan: Plan) -> tuple[StudySpec, list[Variant], dict[str, Sequence[Point]]]:
    """Return the study of the trials by which a plan was tuned, the variants that were tuned, and the points of each."""
    if plan.study.tune is None or plan.tuned.keys() != {v.name for v in plan.variants}:
        raise ConfigurationError("its variants are not those that were tuned")
    points: dict[str, Sequence[Point]] = {name: [dict(point) for point, _ in found.means] for name, found in plan.tuned.items()}
    untuned = [v for v in plan.study.expanded() if v.name in points]
    return trials_of(plan.study, untuned, points)[0], untuned, points


def check_tuned(plan: Plan, trials: Plan, ended: Ended) -> None:
    """Raise a `ConfigurationError` unless the values, the means and the choices of a tuned plan are those of these trials."""
    tune, (study, untuned, points) = plan.study.tune, trials_behind(plan)
    assert tune is not None
    for name, tried in points.items():
        if len(tried) != tune.count or key_of(tried[: len(tune.first)]) != key_of(tune.first):
            raise ConfigurationError(f"the values tried for {name} are not those of its question")
    expected = {key_of({**v.overrides, **point}) for v in untuned for point in points[v.name]}
    if {key_of(v.overrides) for v in trials.variants} != expected:
        raise ConfigurationError("its trials are not those of the values tried")
    found = outcomes(untuned, trials, points, ended)
    overrides = {v.name: v.overrides for v in plan.variants}
    for variant in untuned:
        name, stated = variant.name, plan.tuned[variant.name]
        if not found or best_of(found[name], better=study.better) != stated:
            raise ConfigurationError(f"the runs of its trials do not give the means and the choice that it states for {name}")
        if key_of(overrides[name]) != key_of({**variant.overrides, **stated.chosen}):
            raise ConfigurationError(f"the results of {name} are not those with the values that tuning chose")


def written(values: Mapping[str, Any]) -> str:
    """Return the values of tuned keys as text.

    Example:
        >>> written({"model.optimizer.lr": 0.01, "model.dropout": 0.1})
        'lr=0.01, dropout=0.1'
    """
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in values.items())


def _name(variant: str, values: Mapping[str, Any]) -> str:
    return f"{variant}, {written(values)}"
