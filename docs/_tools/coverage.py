"""Simulate intervals that also hold for other test examples and another outcome of tuning, and print the tables of their coverage.

    python docs/_tools/coverage.py [STUDIES [quantiles]]

The tables are those of docs/explanation/statistics.md; with `quantiles`, only those about differences of quantiles.
"""

import math
import sys

import numpy as np
from scipy import stats

from attnkit.ablation.statistics import (
    badness,
    examples_error,
    examples_parts,
    interquartile_mean,
    joint_half,
    mean_of_seeds,
    mean_over_tasks,
    parts_error,
    performance_profile,
    profile_band,
    quantile_examples_error,
    quantile_interval,
    reached,
    seed_slopes,
    stratified_interval,
    tuning_spread,
    with_error,
)

ALPHA = 0.05


def examples(seeds: int, count: int, share: float, studies: int) -> tuple[float, float]:
    """Return the coverage of the difference over all possible examples: by intervals of seeds alone, and by those of seeds and examples.

    `share` is the share of test examples in the variance of the mean difference; the interaction of both adds a hundredth.
    """
    rng = np.random.default_rng(6)
    covered = np.zeros(2)
    for _ in range(studies):
        d = math.sqrt((1 - share) * seeds) * rng.standard_normal((seeds, 1)) + math.sqrt(share * count) * rng.standard_normal((1, count))
        d = d + math.sqrt(0.01 * seeds * count) * rng.standard_normal((seeds, count))
        error, df = examples_error([(1 / seeds, one, np.ones(count)) for one in d])
        parts = [(float(stats.sem(d.mean(1))), seeds - 1.0), (error, float(df))]
        covered += [abs(d.mean()) < joint_half(some, alpha=ALPHA) for some in (parts[:1], parts)]
    return float(covered[0] / studies), float(covered[1] / studies)


def tunings(values: int, steepness: float, seeds: int, studies: int) -> tuple[float, float]:
    """Return the coverage of the mean difference over repeated tuning: by intervals of seeds alone, and by those of seeds and tuning.

    Two equal variants are each tuned with two seeds among `values` on a parabola; the noise of a run has a standard deviation of 1.
    """
    rng = np.random.default_rng(7)
    true = steepness * (np.arange(values) - values / 2 + 0.3) ** 2
    covered = np.zeros(2)
    for _ in range(studies):
        parts, runs = [], []
        for _ in range(2):
            means = true + rng.standard_normal(values) / math.sqrt(2)
            runs.append(true[means.argmin()] + rng.standard_normal(seeds))
            parts.append((tuning_spread(means.tolist(), float(runs[-1].std(ddof=1)) / math.sqrt(2)), math.inf))
        d = runs[0] - runs[1]
        parts.insert(0, (float(stats.sem(d)), seeds - 1.0))
        covered += [abs(d.mean()) < joint_half(some, alpha=ALPHA) for some in (parts[:1], parts)]
    return float(covered[0] / studies), float(covered[1] / studies)


def quantiles(seeds: int, share: float, noise: float, sds: tuple[float, float], studies: int, examples: int = 100) -> tuple[float, float]:
    """Return the coverage of a difference of quantiles over all test sets: by intervals of seeds alone, and by those of seeds and examples.

    A run's value has the standard deviation of its variant (`sds`); runs of one seed share half of that variance. Test examples add a
    deviation of the size `noise`, which the runs of a variant share and which is larger the worse a run is, and one of 0.5 to each run.
    """
    rng, covered, own = np.random.default_rng(8), np.zeros(2), 0.5
    true = stats.norm.ppf(share) * (math.hypot(sds[0], own) - math.hypot(sds[1], own))
    for _ in range(studies):
        by_seed = rng.standard_normal(seeds)
        tops = []
        for sd in sds:
            value = math.sqrt(0.5) * (by_seed + rng.standard_normal(seeds))[:, None]
            common = noise * math.sqrt(examples) * rng.standard_normal((1, examples))
            tops.append(sd * value + (1 + 0.3 * value) * common + own * math.sqrt(examples) * rng.standard_normal((seeds, examples)))
        ours, theirs = (top.mean(1) for top in tops)
        alone = quantile_interval(ours, theirs, share, level=ALPHA)
        middle = reached(ours.tolist(), share) - reached(theirs.tolist(), share)
        runs = [(weight, top, np.ones(examples)) for weight, top in zip((1.0, -1.0), tops, strict=True)]
        both = with_error(middle, alone, quantile_examples_error(runs, share, redraws=200), level=ALPHA)
        covered += [low <= true <= high for low, high in (alone, both)]
    return float(covered[0] / studies), float(covered[1] / studies)


def tuned_quantiles(
    seeds: int, share: float, steepness: float, wider: float, divergent: float, studies: int, values: int = 4
) -> tuple[float, float]:
    """Return the coverage of a difference of quantiles over repeated tuning: by intervals of seeds alone, and by those of seeds and tuning.

    Two equal variants are tuned as in `tunings`; a value of which a trial diverged is not chosen. A run has a standard deviation of 1,
    which grows by `wider` for each unit by which its value is worse, and diverges with the probability `divergent`; runs of one seed share
    half of the variance. The intervals should cover 0.
    """
    rng, covered = np.random.default_rng(9), np.zeros(2)
    true = steepness * (np.arange(values) - values / 2 + 0.3) ** 2
    sds = 1 + wider * true
    for _ in range(studies):
        by_seed, runs, spreads = rng.standard_normal(seeds), [], []
        for _ in range(2):
            trials = true + sds * rng.standard_normal((2, values))
            means = np.where(rng.random((2, values)) < divergent, math.nan, trials).mean(0)
            chosen = int(np.where(np.isnan(means), math.inf, means).argmin())
            found = true[chosen] + sds[chosen] * math.sqrt(0.5) * (by_seed + rng.standard_normal(seeds))
            runs.append(np.where(rng.random(seeds) < divergent, math.nan, found))
            lost = 1 - (1 - np.isnan(runs[-1]).mean()) ** 2
            error = float(np.nanstd(runs[-1], ddof=1)) / math.sqrt(2)
            known = means[~np.isnan(means)].tolist()
            spreads.append(tuning_spread(known, error, lost=lost) if known else 0.0)
        ours, theirs = (badness(side, better="lower") for side in runs)
        middle = reached(runs[0].tolist(), share) - reached(runs[1].tolist(), share)
        alone = quantile_interval(ours, theirs, share, level=ALPHA)
        both = with_error(0.0 if math.isnan(middle) else middle, alone, math.hypot(*spreads), level=ALPHA)
        covered += [low <= 0 <= high for low, high in (alone, both)]
    return float(covered[0] / studies), float(covered[1] / studies)


def of_quantiles(studies: int) -> None:
    """Print the coverage of intervals of differences of quantiles with and without the noise of test examples, and of tuning."""
    print("\n| quantile, seeds | noise of examples | sds of runs | seeds alone | with examples |\n|---|---|---|---|---|")
    for share, seeds in ((0.5, 20), (0.8, 50), (0.9, 60)):
        for noise in (0.1, 0.3, 1.0):
            for sds in ((1.0, 1.0), (1.0, 2.0)):
                alone, both = quantiles(seeds, share, noise, sds, studies)
                print(f"| {share:g}, {seeds} | {noise:g} | {sds[0]:g}, {sds[1]:g} | {alone:.3f} | {both:.3f} |", flush=True)
    print("\n| quantile, seeds | steepness | divergent | seeds alone | with tuning | noisier: seeds alone | with tuning |\n|" + "---|" * 7)
    for share, seeds in ((0.5, 20), (0.8, 50)):
        for steepness in (0.0, 0.5, 2.0):
            for divergent in (0.0, 0.1):
                found = [rate for wider in (0.0, 0.2) for rate in tuned_quantiles(seeds, share, steepness, wider, divergent, studies)]
                cells = " | ".join(f"{rate:.3f}" for rate in found)
                print(f"| {share:g}, {seeds} | {steepness:g} | {divergent:g} | {cells} |", flush=True)
    lowest = min(tuned_quantiles(seeds, share, 2.0, 0.5, 0.0, studies)[1] for share, seeds in ((0.5, 20), (0.8, 50)))
    print(f"\nnoisier by .5 for each unit: {lowest:.3f}")


def of_contrasts(studies: int) -> None:
    """Print the coverage of intervals of contrasts with and without the noise of test examples, and of tuning."""
    print("| seeds, examples | share of examples | seeds alone | with examples |\n|---|---|---|---|")
    for seeds, count in ((3, 50), (5, 200), (10, 200)):
        for share in (0.1, 0.5, 0.9):
            alone, both = examples(seeds, count, share, studies)
            print(f"| {seeds}, {count} | {share:g} | {alone:.3f} | {both:.3f} |", flush=True)
    print("\n| seeds, values | steepness | seeds alone | with tuning |\n|---|---|---|---|")
    for seeds, values in ((3, 4), (5, 4), (10, 4), (5, 8), (10, 8)):
        for steepness in (0.0, 0.5, 2.0):
            alone, both = tunings(values, steepness, seeds, studies)
            print(f"| {seeds}, {values} | {steepness:g} | {alone:.3f} | {both:.3f} |", flush=True)


def over_tasks(tasks: int, seeds: int, share: float, own: bool, studies: int, examples: int = 100) -> np.ndarray:
    """Return the coverage of the mean of tasks, of a slope over two sizes, and of the mean over tasks like these, [3, 2]: without and with
    the noise of examples.

    The sizes of a task share their test examples, and so do the tasks, unless each has its `own`. `share` is the share of examples in the
    variance of a task's mean; intervals should cover the effect on all possible examples.
    """
    rng, covered = np.random.default_rng(10), np.zeros((3, 2))
    for _ in range(studies):
        true = rng.standard_normal(tasks)
        of_seeds = math.sqrt((1 - share) * seeds) * rng.standard_normal((tasks, seeds, 2, 1))
        of_examples = math.sqrt(share * examples) * rng.standard_normal((tasks if own else 1, 1, 2, examples))
        d = true[:, None, None, None] + of_seeds + of_examples + 0.1 * rng.standard_normal((tasks, seeds, 2, examples))
        weights = (np.full(2, 0.5), np.array([-0.5, 0.5]))  # a mean, and half of the difference of two sizes two doublings apart
        parts = [
            sum(
                examples_parts([(w / seeds / tasks, run, np.ones(examples)) for run in task[:, size]])
                for task in d
                for size, w in enumerate(of)
            )
            for of in weights
        ]
        means, values = d.mean(3), d.mean(3).mean(2)
        these, per_doubling, like = (
            mean_of_seeds(values.mean(0)),
            mean_of_seeds(np.mean([seed_slopes(task, [1, 4]) for task in means], axis=0)),
            mean_over_tasks(list(values)),
        )
        for i, (effect, part, wanted) in enumerate(
            ((these, parts[0], true.mean()), (per_doubling, parts[1], 0.0), (like, np.zeros(examples) if own else parts[0], 0.0))
        ):
            error, df = parts_error(part)
            alone = (effect.sd / math.sqrt(effect.df + 1), float(effect.df))
            off = abs(effect.mean - wanted)
            covered[i] += [off < joint_half(some, alpha=ALPHA) for some in ([alone], [alone, (error, float(df))])]
    return covered / studies


def bootstraps(tasks: int, seeds: int, share: float, studies: int, examples: int = 50) -> np.ndarray:
    """Return the coverage of the interquartile mean and of a point of the profile, [2, without and with examples].

    Tasks have their own examples. Intervals should cover the statistic of the distribution of runs on all possible examples.
    """
    rng, covered = np.random.default_rng(11), np.zeros((2, 2))
    true = np.linspace(-1, 1, tasks)
    many = true[None] + math.sqrt(1 - share) * rng.standard_normal((20_000, tasks))
    iqm, at = interquartile_mean(many), float(performance_profile(many, [0.5])[0])
    for _ in range(studies):
        runs = true[None] + math.sqrt(1 - share) * rng.standard_normal((seeds, tasks))
        noise = math.sqrt(share * examples) * rng.standard_normal((tasks, examples))
        scores = runs + noise.mean(1)
        parts = [np.repeat((one - one.mean())[None], seeds, axis=0) for one in noise]
        for i, noises in enumerate(([], parts)):
            low, high = stratified_interval(scores, resamples=300, examples=noises)
            below, above = profile_band(scores, [0.5], resamples=300, examples=noises)
            covered[:, i] += [low <= iqm <= high, below[0] <= at <= above[0]]
    return covered / studies


def tunings_over_tasks(tasks: int, seeds: int, steepness: float, together: bool, studies: int, values: int = 4) -> np.ndarray:
    """Return the coverage of the mean of tasks, of a slope over two sizes, and of the mean over tasks like these, [3, 2]: without and with
    the part due to tuning.

    Two equal variants are tuned at two sizes of each task, as in `tunings`; intervals should cover the mean difference over repeated
    tuning, which is 0. The sizes of a task share the seeds of tuning: `together`, their noise is the same; otherwise it is independent.
    For tasks like these, whose tunings are independent, nothing is added.
    """
    rng, covered = np.random.default_rng(12), np.zeros((3, 2))
    true = steepness * (np.arange(values) - values / 2 + 0.3) ** 2
    of = np.array([[0.5, 0.5], [-0.5, 0.5]])  # a mean, and half of the difference of two sizes two doublings apart; of each task
    for _ in range(studies):
        d, moves = np.zeros((tasks, seeds, 2)), np.zeros((2, tasks, 2))  # by task and variant
        for task, variant in np.ndindex(tasks, 2):
            noise = rng.standard_normal((1 if together else 2, values)) / math.sqrt(2)
            means = true + np.broadcast_to(noise, (2, values))
            runs = true[means.argmin(1)] + rng.standard_normal((seeds, 2))
            d[task] += runs * (1 - 2 * variant)
            errors = runs.std(0, ddof=1) / math.sqrt(2)
            spreads = [tuning_spread(means[size].tolist(), float(errors[size])) for size in range(2)]
            moves[:, task, variant] = np.abs(of) @ spreads / tasks
        these, per_doubling, like = (
            mean_of_seeds(d.mean((0, 2))),
            mean_of_seeds(np.mean([seed_slopes(task, [1, 4]) for task in d], axis=0)),
            mean_over_tasks(list(d.mean(2))),
        )
        for i, effect in enumerate((these, per_doubling, like)):
            alone = (effect.sd / math.sqrt(effect.df + 1), float(effect.df))
            both = [alone] if i == 2 else [alone, (float(np.linalg.norm(moves[i])), math.inf)]
            covered[i] += [abs(effect.mean) < joint_half(some, alpha=ALPHA) for some in ([alone], both)]
    return covered / studies


def of_aggregates(studies: int) -> None:
    """Print the coverage of intervals over tasks and sizes with and without the noise of test examples, and of tuning."""
    head = "these tasks | with examples | a slope | with examples | tasks like these | with examples"
    print(f"\n| tasks, seeds | examples | share of examples | {head} |\n|{'---|' * 9}")
    for tasks, seeds in ((3, 5), (6, 3), (6, 10)):
        for own in (False, True):
            for share in (0.1, 0.5, 0.9):
                cells = " | ".join(f"{rate:.3f}" for rate in over_tasks(tasks, seeds, share, own, studies).ravel())
                print(f"| {tasks}, {seeds} | {'own' if own else 'shared'} | {share:g} | {cells} |", flush=True)
    head = "these tasks | with tuning | a slope | with tuning | tasks like these"
    print(f"\n| tasks, seeds | noise of the sizes | steepness | {head} |\n|{'---|' * 8}")
    for tasks, seeds in ((3, 5), (6, 3), (6, 10)):
        for together in (False, True):
            for steepness in (0.0, 0.5, 2.0):
                cells = " | ".join(f"{rate:.3f}" for rate in tunings_over_tasks(tasks, seeds, steepness, together, studies).ravel()[:-1])
                print(f"| {tasks}, {seeds} | {'the same' if together else 'other'} | {steepness:g} | {cells} |", flush=True)
    print(f"\n| tasks, seeds | share of examples | interquartile mean | with examples | profile | with examples |\n|{'---|' * 6}")
    for tasks, seeds, share in ((5, 5, 0.1), (5, 5, 0.5), (10, 5, 0.1)):
        cells = " | ".join(f"{rate:.3f}" for rate in bootstraps(tasks, seeds, share, studies // 2).ravel())
        print(f"| {tasks}, {seeds} | {share:g} | {cells} |", flush=True)


def main() -> None:
    """Print the tables as Markdown."""
    if sys.argv[2:] == ["quantiles"]:
        of_quantiles(int(sys.argv[1]))
        return
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    of_contrasts(studies)
    of_aggregates(studies)


if __name__ == "__main__":
    main()
