"""Simulate studies with the code of reports, and print the table of docs/explanation/statistics.md.

    python docs/_tools/error_rates.py [STUDIES]

In an A/A study all variants have the same distribution; every verdict of a difference is false. The error is the share of studies with any.
"""

import math
import sys

import numpy as np
from scipy import stats

from attnkit.ablation.looks import Look, planned
from attnkit.ablation.sections import Decide
from attnkit.ablation.statistics import Comparison, compare, judge

ALPHA = 0.05
NOISES = ("normal", "heavy tails", "a divergent tenth")


def draws(noise: str, rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    """Return values of variants by seed; seeds have an effect of their own, which pairing removes."""
    values = (rng.standard_t(3, shape) if noise == "heavy tails" else rng.standard_normal(shape)) + 3 * rng.standard_normal(shape[1])
    if noise == "a divergent tenth":
        values[rng.random(shape) < 0.1] = math.nan
    return values


def verdicts(values: np.ndarray, looks: tuple[Look, ...], min_effect: float | None = None) -> list[Comparison]:
    """Return the last comparison of each variant with the first, as a report does, without futility."""
    family = len(values) - 1
    found: dict[int, Comparison] = {}
    for look in looks:
        reference = dict(enumerate(values[0, : look.seeds].tolist()))
        for i in range(1, len(values)):
            if i not in found or found[i].verdict == "inconclusive":
                runs = dict(enumerate(values[i, : look.seeds].tolist()))
                c = compare(str(i), runs, reference="0", reference_runs=reference, min_effect=min_effect)
                [found[i]] = judge([c], alpha=look.alpha, family=family)
    return list(found.values())


def error(noise: str, variants: int, looks: tuple[Look, ...], studies: int) -> float:
    """Return the share of A/A studies with any false difference."""
    rng = np.random.default_rng(0)
    shape = (variants + 1, looks[-1].seeds)
    return sum(any(c.verdict in ("better", "worse") for c in verdicts(draws(noise, rng, shape), looks)) for _ in range(studies)) / studies


def power(effect: float, looks: tuple[Look, ...], studies: int) -> tuple[float, float]:
    """Return how often a difference of `effect` sd of paired differences is shown, and the mean number of seeds."""
    rng = np.random.default_rng(1)
    found = seeds = 0
    for _ in range(studies):
        values = draws("normal", rng, (2, looks[-1].seeds))
        values[1] += effect * math.sqrt(2)
        [c] = verdicts(values, looks)
        found += c.verdict == "worse"
        seeds += c.planned
    return found / studies, seeds / studies


def main() -> None:
    """Print the tables as Markdown."""
    studies = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    high = stats.binom.ppf(0.999, studies, ALPHA) / studies
    designs = {f"{n} seeds": (Look(seeds=n, alpha=ALPHA),) for n in (3, 5, 10, 20)}
    designs["looks at 3, 6, 11, 20"] = planned(Decide(max_seeds=20), ALPHA)
    designs["a look at each of 3 to 20"] = planned(Decide(max_seeds=20, looks=tuple(range(3, 21))), ALPHA)
    print(f"| design | variants | {' | '.join(NOISES)} |\n|---|---|{'---|' * len(NOISES)}")
    for name, looks in designs.items():
        for variants in (1, 5, 20):
            rates = [error(noise, variants, looks, studies if len(looks) < 9 else studies // 4) for noise in NOISES]
            print(f"| {name} | {variants} | {' | '.join(f'{rate:.3f}' for rate in rates)} |", flush=True)
    print(f"\n({studies} studies; a true rate of {ALPHA} gives at most {high:.3f} in 999 of 1,000 such tables' cells)\n")
    print("| design | 0.5 sd | 1 sd | 2 sd |\n|---|---|---|---|")
    for name, looks in designs.items():
        cells = [power(effect, looks, studies // 2) for effect in (0.5, 1.0, 2.0)]
        print(f"| {name} | {' | '.join(f'{found:.2f} ({seeds:.1f} seeds)' for found, seeds in cells)} |", flush=True)


if __name__ == "__main__":
    main()
