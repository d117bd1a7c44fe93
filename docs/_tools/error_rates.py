"""Simulate studies with the code that reports use, and print the tables of docs/explanation/statistics.md.

    python docs/_tools/error_rates.py [STUDIES [designs | tasks | quantiles | variances | percentages]]

`designs` prints the error rates of studies that do not compare each variant with one baseline, and the power with other noise and in larger
families; `tasks` the tables of studies of several tasks and sizes, and of adjusting for early loss; `quantiles` that of studies of
quantiles; `variances` that of tests that share variances between contrasts, which reports do not use; `percentages` that of equivalence
within a percentage of the reference's mean.

In an A/A study, all variants have the same distribution, so every verdict of a difference is false. The error is the share of studies with
any such verdict.
"""

import math
import sys

import numpy as np
from scipy import optimize, special, stats

from attnkit.ablation.looks import planned
from attnkit.ablation.question import Look
from attnkit.ablation.sections import Decide
from attnkit.ablation.statistics import (
    Comparison,
    compare,
    contrast,
    judge,
    mean_of_seeds,
    mean_of_tasks,
    mean_over_tasks,
    quantile_p,
    ratio_interval,
    seed_slopes,
)
from attnkit.ablation.statistics.ratio import base_of

Weights = dict[int, float]
ALPHA = 0.05
NOISES = ("normal", "heavy tails", "a divergent tenth")
SD = {"heavy tails": math.sqrt(3)}
"""The standard deviation of a run, where it is not 1."""

CUMULATIVE: list[Weights] = [{i + 1: 1.0, i: -1.0} for i in range(5)]
"""Contrasts of five steps, each with the one before."""

FACTORIAL: list[Weights] = [
    {i: (1 / 3 if i >= 3 else -1 / 3) for i in range(6)},
    *({i: {0: -0.5, level: 0.5}.get(i % 3, 0.0) for i in range(6)} for level in (1, 2)),
    *({3 + level: 1.0, 3: -1.0, level: -1.0, 0: 1.0} for level in (1, 2)),
]
"""The main effects and the interactions of two factors, with two and three levels."""


def draws(noise: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return values of variants by seed; seeds have effects of their own, which pairing removes."""
    values = (rng.standard_t(3, shape) if noise == "heavy tails" else rng.standard_normal(shape)) + 3 * rng.standard_normal(shape[1])
    if noise == "a divergent tenth":
        values[rng.random(shape) < 0.1] = math.nan
    return values


def verdicts(values: np.ndarray, looks: tuple[Look, ...], *, family: int) -> list[Comparison]:
    """Return the last comparison of each variant with the first, as a report does, without stopping for futility."""
    found: dict[int, Comparison] = {}
    for look in looks:
        reference = dict(enumerate(values[0, : look.seeds].tolist()))
        for i in range(1, len(values)):
            if i not in found or found[i].verdict == "inconclusive":
                runs = dict(enumerate(values[i, : look.seeds].tolist()))
                c = compare(str(i), runs, reference="0", reference_runs=reference)
                [found[i]] = judge([c], alpha=look.alpha, family=family)
    return list(found.values())


def error(noise: str, variants: int, looks: tuple[Look, ...], studies: int) -> float:
    """Return the share of A/A studies with any false difference."""
    rng = np.random.default_rng(0)
    shape = (variants + 1, looks[-1].seeds)
    made = (verdicts(draws(noise, rng, shape), looks, family=variants) for _ in range(studies))
    return sum(any(c.verdict in ("better", "worse") for c in found) for found in made) / studies


def error_of(contrasts: list[Weights], noise: str, seeds: int, studies: int) -> float:
    """Return the share of A/A studies with any false contrast in the family of `contrasts`."""
    rng, found = np.random.default_rng(5), 0
    for _ in range(studies):
        values = draws(noise, rng, (6, seeds))
        runs = [dict(enumerate(one.tolist())) for one in values]
        measured = [contrast("", [(w, runs[i]) for i, w in weights.items() if w], reference="") for weights in contrasts]
        found += any(c.verdict in ("better", "worse") for c in judge(measured, alpha=ALPHA))
    return found / studies


def power(effect: float, looks: tuple[Look, ...], studies: int, noise: str = "normal", variants: int = 1) -> tuple[float, float]:
    """Return the power, among `variants`, against a difference of `effect` sd of paired differences, and the mean number of seeds."""
    rng = np.random.default_rng(1)
    found = seeds = 0
    for _ in range(studies):
        values = draws(noise, rng, (2, looks[-1].seeds))
        values[1] += effect * math.sqrt(2) * SD.get(noise, 1.0)
        [c] = verdicts(values, looks, family=variants)
        found += c.verdict == "worse"
        seeds += c.planned
    return found / studies, seeds / studies


def aggregates(noise: str, tasks: int, sizes: int, seeds: int, studies: int, effect: float = 0.0) -> tuple[float, float, float]:
    """Return how often studies of 3 variants over tasks and sizes show any mean of tasks, any population mean, and any slope.

    The levels are those of a report: half of alpha for all aggregates. An effect, in units of the sd of paired differences, is added once
    at the first size, twice at the second, and so on; then only the first variant counts.
    """
    rng, found = np.random.default_rng(2), np.zeros(3)
    at = [2.0**i for i in range(sizes)]
    family = 3 * (2 + (tasks + 1) * (sizes > 1))
    level = ALPHA / 2 / family
    for _ in range(studies):
        shown = np.zeros(3, dtype=bool)
        values = [draws(noise, rng, (4 * sizes, seeds)).reshape(4, sizes, seeds) for _ in range(tasks)]
        for variant in (1,) if effect else (1, 2, 3):
            d = [(task[variant] - task[0]).T + effect * math.sqrt(2) * (1 + np.arange(sizes)) for task in values]
            means = [task.mean(1) for task in d]
            shown[0] |= mean_of_tasks(means, alpha=level).p < level
            shown[1] |= mean_over_tasks(means, alpha=level).p < level
            if sizes > 1:
                slopes = [seed_slopes(task, at) for task in d]
                shown[2] |= any(mean_of_seeds(one).p < level for one in slopes) or mean_of_tasks(slopes).p < level
        found += shown
    return tuple((found / studies).tolist())


def satterthwaite(level: float, tasks: int, seeds: int, draws: int = 100_000) -> float:
    """Return how often the mean of tasks is falsely shown by Satterthwaite's test, as a multiple of its level.

    One task has a variance of 1, each of the others one of .01. Given the estimated variances, the mean is normal, so the rejection rate is
    averaged over these.
    """
    variances = np.array([1.0] + [0.01] * (tasks - 1))
    found = np.random.default_rng(4).chisquare(seeds - 1, (draws, tasks)) / (seeds - 1) * variances
    df = found.sum(1) ** 2 / (found**2).sum(1) * (seeds - 1)
    return float((2 * stats.norm.sf(-special.stdtrit(df, level / 2) * np.sqrt(found.sum(1) / variances.sum()))).mean() / level)


def early_loss(shift: float, seeds: int, studies: int) -> tuple[float, float]:
    """Return the coverage of intervals that are adjusted for early loss, and their width relative to unadjusted ones.

    Both differences of a seed, early and late, have an sd of 1 and a correlation of .9. `shift` is the variant's effect on early loss.
    """
    rng = np.random.default_rng(3)
    c = rng.standard_normal((studies, seeds))
    d = 0.9 * c + math.sqrt(1 - 0.81) * rng.standard_normal((studies, seeds))
    c = c + shift
    centred = c - c.mean(1, keepdims=True)
    slope = (centred * d).sum(1) / (centred**2).sum(1)
    mean = d.mean(1) - slope * c.mean(1)
    residual = d - mean[:, None] - slope[:, None] * c
    variance = (residual**2).sum(1) / (seeds - 2) * (1 / seeds + c.mean(1) ** 2 / (centred**2).sum(1))
    half = stats.t.isf(ALPHA / 2, seeds - 2) * np.sqrt(variance)
    plain = stats.t.isf(ALPHA / 2, seeds - 1) * d.std(1, ddof=1) / math.sqrt(seeds)
    return float((np.abs(mean) < half).mean()), float(np.median(half / plain))


def over_tasks(studies: int) -> None:
    """Print the tables of studies of several tasks and sizes, and of adjusting for early loss."""
    print("| tasks, sizes, seeds | noise | these tasks | tasks like these | a slope |\n|---|---|---|---|---|")
    for design in ((3, 1, 5), (3, 3, 3), (3, 3, 8), (6, 3, 5)):
        for noise in NOISES[:2]:
            rates = aggregates(noise, *design, studies)
            print(f"| {', '.join(map(str, design))} | {noise} | {' | '.join(f'{rate:.3f}' for rate in rates)} |", flush=True)
        right = aggregates("normal", *design, studies, effect=1.0)
        print(f"| {', '.join(map(str, design))} | power | {' | '.join(f'{rate:.2f}' for rate in right)} |", flush=True)
    print("\nSatterthwaite's test, false as a multiple of its level of .002, with 3 seeds of 2, 3 and 6 tasks:")
    print(", ".join(f"{satterthwaite(0.002, tasks, 3):.1f}" for tasks in (2, 3, 6)))
    print("\n| shift of early loss | seeds | coverage | width |\n|---|---|---|---|")
    for shift in (0.0, 0.5, 1.0, 2.0):
        for seeds in (3, 5, 10):
            coverage, width = early_loss(shift, seeds, 20 * studies)
            print(f"| {shift:g} sd | {seeds} | {coverage:.3f} | {width:.2f} |", flush=True)


def quantiles(share: float, seeds: int, variants: int, studies: int, effect: float = 0.0, fails: float = 0.1) -> float:
    """Return the share of studies that show any difference of quantiles, where a share `fails` of the runs diverges.

    The runs of one seed share half of their variance. An effect, in units of the sd of a run, is that of the first variant alone; then only
    its comparison counts.
    """
    rng, found = np.random.default_rng(8), np.zeros(studies, dtype=bool)
    values = (rng.standard_normal((variants + 1, studies, seeds)) + rng.standard_normal((studies, seeds))) / math.sqrt(2)
    values[1] += effect
    values[rng.random(values.shape) < fails] = math.inf
    for i in range(1, 2 if effect else variants + 1):
        found |= quantile_p(values[i], values[0], share) < ALPHA / variants
    return float(found.mean())


def of_quantiles(studies: int) -> None:
    """Print the error rates and the power of comparisons of quantiles."""
    print("| quantile, seeds | 1 variant | 5 variants | no run fails | 1 sd | 2 sd | 3 sd |\n|---|---|---|---|---|---|---|")
    for share, counts in ((0.5, (7, 10, 20, 50)), (0.8, (25, 50)), (0.9, (50, 100))):
        for seeds in counts:
            wrong = [quantiles(share, seeds, variants, studies) for variants in (1, 5)]
            wrong.append(quantiles(share, seeds, 1, studies, fails=0.0))
            right = [quantiles(share, seeds, 1, studies, effect, fails=0.1 if share < 0.9 else 0.02) for effect in (1.0, 2.0, 3.0)]
            numbers = [*(f"{rate:.3f}" for rate in wrong), *(f"{rate:.2f}" for rate in right)]
            print(f"| {share:g}, {seeds} | {' | '.join(numbers)} |", flush=True)


def shrunken(sds: np.ndarray, seeds: int, studies: int, effect: float = 0.0) -> tuple[float, float]:
    """Return how often t tests with their own variances show any contrast, and how often moderated ones do (Smyth 2004).

    Moderated tests shrink the variance of each contrast towards a common one, as far as the empirical Bayes estimate of its prior says.
    With an effect, in units of their sd, all contrasts have it, and the share of contrasts that are shown is returned.
    """
    rng, m, df = np.random.default_rng(9), len(sds), seeds - 1
    d = sds[None, :, None] * (rng.standard_normal((studies, m, seeds)) + effect)
    mean, var = d.mean(2), d.var(2, ddof=1)
    e = np.log(var) - special.digamma(df / 2) + math.log(df / 2)
    extra = e.var(1, ddof=1) - special.polygamma(1, df / 2)  # the variance of the logarithm of true variances
    priors = np.array([prior_freedom(x) for x in extra])  # degrees of freedom of the prior
    half = np.minimum(priors, 1e8) / 2
    centre = np.exp(e.mean(1) + special.digamma(half) - np.log(half))
    weight = 1 / (1 + df / priors[:, None])
    pooled = weight * centre[:, None] + (1 - weight) * var
    rates = []
    for variance, freedom in ((var, np.full(studies, float(df))), (pooled, np.minimum(priors + df, 1e8))):
        p = 2 * stats.t.sf(np.abs(mean) / np.sqrt(variance / seeds), freedom[:, None])
        shown = p < ALPHA / m
        rates.append(float(shown.mean() if effect else shown.any(1).mean()))
    return rates[0], rates[1]


def prior_freedom(extra: float) -> float:
    """Return the degrees of freedom d of the prior for which trigamma(d / 2) is `extra`; infinite where variances do not differ."""
    return math.inf if extra <= 0 else 2 * float(optimize.brentq(lambda x: special.polygamma(1, x) - extra, 1e-4, 1e8))


def of_variances(studies: int) -> None:
    """Print the effect of shrinking variances where they are equal, and where one contrast is noisier than the others."""
    print("| contrasts, seeds | noise | own: error | shrunken: error | own: power | shrunken: power |\n|---|---|---|---|---|---|")
    for m, seeds in ((5, 3), (5, 5), (20, 3), (20, 5)):
        for label, sds in (
            ("equal", np.ones(m)),
            ("one 3 times as noisy", np.array([3.0] + [1.0] * (m - 1))),
            ("one 16 times", np.array([16.0] + [1.0] * (m - 1))),
        ):
            wrong, right = shrunken(sds, seeds, studies), shrunken(sds, seeds, studies, effect=2.0)
            print(f"| {m}, {seeds} | {label} | {wrong[0]:.3f} | {wrong[1]:.3f} | {right[0]:.2f} | {right[1]:.2f} |", flush=True)


def equivalent(seeds: int, reference: float, difference: float, studies: int, *, shift: float) -> tuple[float, float]:
    """Return how often a margin of 2 % of the reference's mean shows equivalence: taken as known, and as reports do.

    The mean of the reference is 1; `reference` and `difference` are the standard deviations of its runs and of the differences, whose mean
    is `shift`.
    """
    rng, found = np.random.default_rng(10), np.zeros(2)
    for _ in range(studies):
        x, d = 1 + reference * rng.standard_normal(seeds), shift + difference * rng.standard_normal(seeds)
        mean, sd = float(d.mean()), float(d.std(ddof=1))
        half = float(stats.t.isf(ALPHA / 2, seeds - 1)) * sd / math.sqrt(seeds)
        interval = ratio_interval(mean, sd, base_of(d, x), seeds, level=ALPHA)
        found += abs(mean) + half < 0.02 * x.mean(), interval is not None and max(map(abs, interval)) < 0.02
    return tuple((found / studies).tolist())


def of_percentages(studies: int) -> None:
    """Print how often equivalence is shown where the true difference is the margin, and where it is 0."""
    print("| seeds, sd of the reference, of differences | known: error | as reported: error | known: power | as reported: power |")
    print("|---|---|---|---|---|")
    for seeds in (3, 5, 10):
        for reference, difference in ((0.02, 0.001), (0.2, 0.001), (0.5, 0.001), (0.2, 0.01)):
            wrong, right = (equivalent(seeds, reference, difference, studies, shift=shift) for shift in (0.02, 0.0))
            numbers = " | ".join([*(f"{rate:.3f}" for rate in wrong), *(f"{rate:.2f}" for rate in right)])
            print(f"| {seeds}, {100 * reference:g} %, {100 * difference:g} % | {numbers} |", flush=True)


def study_designs() -> dict[str, tuple[Look, ...]]:
    """Return the numbers of seeds, and plans of looks, that the tables are for."""
    designs: dict[str, tuple[Look, ...]] = {f"{n} seeds": (Look(seeds=n, alpha=ALPHA),) for n in (3, 5, 10, 20)}
    designs["looks at 3, 6, 11, 20"] = planned(Decide(max_seeds=20), ALPHA)
    designs["a look at each of 3 to 20"] = planned(Decide(max_seeds=20, looks=tuple(range(3, 21))), ALPHA)
    return designs


def of_designs(studies: int) -> None:
    """Print the error of other designs, and the power of comparisons with other noise and in larger families."""
    print(f"| contrasts | seeds | {' | '.join(NOISES)} |\n|---|---|{'---|' * len(NOISES)}")
    for name, contrasts in (("cumulative, 5 steps", CUMULATIVE), ("factorial, 2 x 3", FACTORIAL)):
        for seeds in (3, 5, 10, 20):
            rates = [error_of(contrasts, noise, seeds, studies) for noise in NOISES]
            print(f"| {name} | {seeds} | {' | '.join(f'{rate:.3f}' for rate in rates)} |", flush=True)
    print(f"\n({studies} studies: a true rate of {ALPHA} gives at most {stats.binom.ppf(0.999, studies, ALPHA) / studies:.3f})\n")
    print("| noise | variants | design | 0.5 sd | 1 sd | 2 sd |\n|---|---|---|---|---|---|")
    for noise, variants in (("heavy tails", 1), ("a divergent tenth", 1), ("normal", 5), ("normal", 20)):
        for name, looks in study_designs().items():
            cells = [power(effect, looks, studies // 2, noise, variants) for effect in (0.5, 1.0, 2.0)]
            shown = " | ".join(f"{found:.2f} ({seeds:.1f} seeds)" for found, seeds in cells)
            print(f"| {noise} | {variants} | {name} | {shown} |", flush=True)


def main() -> None:
    """Print the tables as Markdown."""
    if sys.argv[2:]:
        tables = {
            "designs": of_designs, "tasks": over_tasks, "quantiles": of_quantiles, "variances": of_variances, "percentages": of_percentages,
        }  # fmt: skip
        tables[sys.argv[2]](int(sys.argv[1]))
        return
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    high = stats.binom.ppf(0.999, studies, ALPHA) / studies
    designs = study_designs()
    print(f"| design | variants | {' | '.join(NOISES)} |\n|---|---|{'---|' * len(NOISES)}")
    for name, looks in designs.items():
        for variants in (1, 5, 20):
            rates = [error(noise, variants, looks, studies if len(looks) < 9 else studies // 4) for noise in NOISES]
            print(f"| {name} | {variants} | {' | '.join(f'{rate:.3f}' for rate in rates)} |", flush=True)
    print(f"\n({studies} studies; a true rate of {ALPHA} gives at most {high:.3f} in 999 of 1,000 cells)\n")
    print("| design | 0.5 sd | 1 sd | 2 sd |\n|---|---|---|---|")
    for name, looks in designs.items():
        cells = [power(effect, looks, studies // 2) for effect in (0.5, 1.0, 2.0)]
        print(f"| {name} | {' | '.join(f'{found:.2f} ({seeds:.1f} seeds)' for found, seeds in cells)} |", flush=True)


if __name__ == "__main__":
    main()
