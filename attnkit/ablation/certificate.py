"""The certificate of a report: simulated error rates and power of exactly this design, with its looks or over its cells."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np
from scipy import stats

from attnkit.ablation.across import Across
from attnkit.ablation.looks import looks
from attnkit.ablation.noise import ExamplesNoise, examples_noise
from attnkit.ablation.question import Look
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import quantile_examples_error, quantile_interval, quantile_p, reached, with_error

STUDIES = 2000
COVERED = 400  # simulated studies for intervals that include the noise of test examples, which take longer
EFFECTS = (1.0, 2.0)
"""The differences whose power is simulated, in units of the sd of paired differences or, for quantiles, of a run's value."""
ERROR = "± is the standard error of the simulation"
DIVERGENT = "a divergent tenth beside normal"  # noise with which each run diverges with probability 0.1


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """The simulated error rates and power of a design; power is with normal noise or, for quantiles, the last noise in `errors`."""

    errors: tuple[tuple[str, float], ...]  # by noise, the probability of any false difference if all variants are the same
    power: tuple[tuple[float, float], ...]  # for each of `EFFECTS`, the probability that such a difference between two variants is shown
    studies: int  # the number of simulated studies of each kind
    quantile: float | None = None  # the quantile that is compared; None if means are
    coverage: tuple[float, float] | None = None  # joint, over test sets, of the intervals for seeds alone and with example noise
    noise: ExamplesNoise | None = None  # the noise of test examples with which coverage is simulated

    def sentences(self) -> list[str]:
        """Return the certificate in words."""
        wrong = ", ".join(f"{_rate(rate, self.studies)} with {noise} noise" for noise, rate in self.errors)
        powers = ((f"{effect:g} standard deviation{'' if effect == 1 else 's'}", rate) for effect, rate in self.power)
        right = ", ".join(f"{_rate(rate, self.studies)} for {words}" for words, rate in powers)
        unit = "the paired differences" if self.quantile is None else "a variant's runs, a tenth of which diverge"
        found = [
            f"if all variants were the same, the probability of any difference in the report would be {wrong}",
            f"the probability that a single difference is shown is {right} of {unit}",
            f"by {self.studies:,} simulated studies each, with the contrasts, the seeds and the looks of this one; {ERROR}",
        ]
        if self.quantile is not None and self.errors:
            covered = ", ".join(f"{_rate(1 - rate, self.studies)} with {noise} noise" for noise, rate in self.errors)
            found.insert(1, f"then all intervals together would cover the true differences with a probability of {covered}")
        if self.coverage is not None and self.noise is not None:
            found.append(
                f"over other test examples, too, all intervals together would cover the true differences with a probability of "
                f"{_rate(self.coverage[0], COVERED)}, and with the standard errors of test examples of "
                f"{_rate(self.coverage[1], COVERED)}: by {COVERED:,} "
                f"simulated studies with normal noise and the noise of test examples of this one, in standard deviations of a variant's "
                f"runs {self.noise.common:g} for what they have in common (with a correlation of {self.noise.together:g} between variants) "
                f"and {self.noise.own:g} for each run by itself"
            )
        return found


def certificate(results: Results) -> Certificate:
    """Return the certificate of a study from its design alone; for quantiles, the noise of test examples in its results enters too."""
    names = [v.name for v in results.plan.variants]
    weights = tuple(tuple(c.weights.get(name, 0.0) for name in names) for c in results.contrasts.values())
    plan = looks(results.study, results.answers.asked)
    errors = ("normal", "heavy-tailed") if results.study.quantile is None else ("normal", DIVERGENT)
    noise = examples_noise(results) if results.study.quantile is not None else None
    return simulate(weights, plan, errors=errors, quantile=results.study.quantile, noise=noise)


def sentences_across(across: Across) -> list[str]:
    """Return the certificate of a study's aggregates in words, from its design alone: no result enters."""
    if not (across.names and across.questions):
        return []
    first = across.results[0][1]
    rows = [[first.contrasts[name].weights.get(v.name, 0.0) for v in first.plan.variants] for name, _ in across.names]
    values = {noise: _aggregated(across, np.array(rows).T, noise) for noise in ("normal", "heavy-tailed")}
    wrong = {noise: np.stack([_p(v) < across.level for v in found]).any((0, 2)).mean().item() for noise, found in values.items()}
    right: dict[str, str] = {}
    for question, v in zip(across.questions, values["normal"], strict=True):
        one = v[..., :1] / math.hypot(*rows[0])  # one contrast, with sd 1 in each cell
        rates = " and ".join(_rate(float((_p(one + effect) < across.level).mean()), STUDIES) for effect in EFFECTS)
        alone = question.per_doubling and np.count_nonzero(question.weights.any(1)) == 1  # for one task; all tasks have the same power
        right.setdefault(str(replace(question, over="one task") if alone else question), rates)
    return [
        f"if all variants were the same in all cells, the probability of any difference over them in this report would be "
        f"{', '.join(f'{_rate(rate, STUDIES)} with {noise} noise' for noise, rate in wrong.items())}",
        f"the probability that {' and '.join(f'{e:g}' for e in EFFECTS)} standard deviations of the paired differences, in each cell or "
        f"with each doubling, are shown is {'; '.join(f'{rates} for {over}' for over, rates in right.items())}",
        f"by {STUDIES:,} simulated studies each, with the tasks, sizes, seeds and contrasts of this one, and equal noise in all cells; "
        f"{ERROR}",
    ]


def _rate(rate: float, studies: int) -> str:
    """Return a rate with its simulation's standard error, which is above 0 even for 0 of n (Agresti and Coull 1998).

    Example:
        >>> _rate(0.05, 2000), _rate(1.0, 2000), _rate(0.0, 400)
        ('0.050 ± 0.005', '1.000 ± 0.001', '0.000 ± 0.003')
    """
    share = (rate * studies + 2) / (studies + 4)
    return f"{rate:.3f} ± {math.sqrt(share * (1 - share) / (studies + 4)):.3f}"


def _aggregated(across: Across, contrasts: np.ndarray, noise: str) -> list[np.ndarray]:
    """Simulate the values that Student's t is computed from if nothing differs: [studies, seeds or tasks, contrasts] per question."""
    rng, seeds = np.random.default_rng(0), len(across.study.seeds)
    found = [np.zeros((STUDIES, len(across.tasks) if q.sampled else seeds, contrasts.shape[1])) for q in across.questions]
    for task, size in np.ndindex(len(across.tasks), len(across.sizes)):
        d = _noise(noise, (STUDIES, seeds, len(contrasts)), rng) @ contrasts
        for values, q in zip(found, across.questions, strict=True):
            if q.sampled:
                values[:, task] += q.weights[task, size] * d.mean(1)
            else:
                values += q.weights[task, size] * d
    return found


def _p(values: np.ndarray) -> np.ndarray:
    return np.asarray(stats.ttest_1samp(values, 0.0, axis=1).pvalue)


@lru_cache
def simulate(
    weights: tuple[tuple[float, ...], ...],
    plan: tuple[Look, ...],
    *,
    errors: tuple[str, ...],
    studies: int = STUDIES,
    quantile: float | None = None,
    noise: ExamplesNoise | None = None,
) -> Certificate:
    """Return the certificate of contrasts, given as rows of the variants' weights, with the looks of `plan`.

    Errors are simulated with `normal` noise, `heavy-tailed` noise (Student's t with 3 degrees of freedom) or, for quantiles, `DIVERGENT`
    noise. The coverage of intervals of quantiles over test sets is simulated with the `noise` of test examples.

    Example:
        >>> c = simulate(((1.0, -1.0),), (Look(seeds=5, alpha=0.05),), errors=("normal",), studies=500)
        >>> c.errors, c.power
        ((('normal', 0.066),), ((1.0, 0.388), (2.0, 0.9)))
    """
    if not weights:
        return Certificate(errors=(), power=(), studies=studies)
    shape = (studies, plan[-1].seeds, len(weights[0]))
    draws = {kind: _noise(kind, shape, np.random.default_rng(0)) for kind in errors}
    wrong = {kind: np.any([_shown(values, row, plan, quantile, len(weights)) for row in weights], axis=0) for kind, values in draws.items()}
    if quantile is None:  # one contrast, with sd 1
        one = draws["normal"] @ weights[0] / np.sqrt(np.square(weights[0]).sum())
        pair = np.stack([np.zeros_like(one), one], axis=2)
    else:
        pair = draws[errors[-1]][..., :2]
    right = {effect: _shown(pair + np.array([0.0, effect]), (-1.0, 1.0), plan, quantile, len(weights)) for effect in EFFECTS}
    return Certificate(
        errors=tuple((kind, float(shown.mean())) for kind, shown in wrong.items()),
        power=tuple((effect, float(shown.mean())) for effect, shown in right.items()),
        studies=studies,
        quantile=quantile,
        coverage=None if quantile is None or noise is None else _coverage(weights, plan, quantile, noise),
        noise=noise,
    )


def _noise(kind: str, shape: tuple[int, int, int], rng: np.random.Generator) -> np.ndarray:
    values = rng.standard_t(3, shape) if kind == "heavy-tailed" else rng.standard_normal(shape)
    return np.where(rng.random(shape) < 0.1, np.inf, values) if kind == DIVERGENT else values


def _coverage(weights: tuple[tuple[float, ...], ...], plan: Sequence[Look], share: float, noise: ExamplesNoise) -> tuple[float, float]:
    """Return how often all intervals, for seeds alone and with example noise, cover 0: the true difference of equal variants."""
    rng, shape = np.random.default_rng(0), (COVERED, plan[-1].seeds, len(weights[0]))
    values = math.sqrt(1 - noise.own**2) * rng.standard_normal(shape) + noise.own * rng.standard_normal(shape)
    values += noise.common * math.sqrt(1 - noise.together) * rng.standard_normal((COVERED, 1, shape[2]))
    values += noise.common * math.sqrt(noise.together) * rng.standard_normal((COVERED, 1, 1))
    missed: dict[int, list[tuple[tuple[float, ...], Look]]] = {}  # by study: the contrasts whose intervals for seeds miss 0
    for look, row in product(plan, weights):
        ours, theirs = _sides(values[:, : look.seeds], row)
        p = quantile_p(ours, theirs, share)
        for study in np.flatnonzero(p < look.alpha / len(weights)).tolist():
            missed.setdefault(study, []).append((row, look))
    lost = sum(not _cover(values[study], found, share, noise, len(weights), rng) for study, found in missed.items())
    return (COVERED - len(missed)) / COVERED, (COVERED - lost) / COVERED


def _cover(
    values: np.ndarray,
    missed: Sequence[tuple[tuple[float, ...], Look]],
    share: float,
    noise: ExamplesNoise,
    family: int,
    rng: np.random.Generator,
) -> bool:
    """Return whether intervals with example noise cover 0 where those for seeds (`missed`) do not, from values [seeds, variants]."""
    seeds, variants = values.shape
    common = math.sqrt(1 - noise.together) * rng.standard_normal((variants, 1, noise.groups))
    common += math.sqrt(noise.together) * rng.standard_normal((1, 1, noise.groups))
    tops: dict[int, np.ndarray] = {}  # by variant, [seeds, examples]
    for row, look in missed:
        for i in (i for i, weight in enumerate(row) if weight and i not in tops):
            parts = math.sqrt(noise.groups) * (noise.common * common[i] + noise.own * rng.standard_normal((seeds, noise.groups)))
            tops[i] = values[:, i, None] + parts - parts.mean(1, keepdims=True)  # the values already include the means of the parts
        runs = [(weight, tops[i][: look.seeds], np.ones(noise.groups)) for i, weight in enumerate(row) if weight]
        ours, theirs = _sides(values[: look.seeds], row)
        middle, level = reached(ours.tolist(), share) - reached(theirs.tolist(), share), look.alpha / family
        error = quantile_examples_error(runs, share)
        low, high = with_error(middle, (middle, middle), error, level=level)
        if not low <= 0 <= high:  # the error alone does not suffice
            low, high = with_error(middle, quantile_interval(ours, theirs, share, level=level), error, level=level)
        if not low <= 0 <= high:
            return False
    return True


def _sides(values: np.ndarray, row: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    ours, theirs = (np.sum([abs(w) * values[..., i] for i, w in enumerate(row) if w * sign > 0], axis=0) for sign in (1, -1))
    return ours, theirs


def _shown(values: np.ndarray, row: Sequence[float], plan: Sequence[Look], quantile: float | None, family: int) -> np.ndarray:
    """Return whether any look shows a contrast, [studies], from values [studies, seeds, variants]."""
    ours, theirs = _sides(values, row)
    found = []
    for look in plan:
        a, b = ours[:, : look.seeds], theirs[:, : look.seeds]
        p = _p(a - b) if quantile is None else quantile_p(a, b, quantile)
        found.append(p < look.alpha / family)
    return np.asarray(np.any(found, axis=0))
