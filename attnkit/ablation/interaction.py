"""Interactions of full designs: whether what a factor does depends on another factor."""

from collections.abc import Mapping, Sequence
from itertools import combinations

from attnkit.ablation.design import Choices
from attnkit.ablation.statistics import Comparison, Runs, compare, judge


def interactions(
    runs: Mapping[Choices, Runs], *, baseline: Mapping[str, str], min_effect: float | None = None, alpha: float = 0.05
) -> list[Comparison]:
    """Return the interaction of each two levels of two factors, as comparisons with zero.

    For the levels a and b, a seed's interaction is y(a, b) - y(a, baseline) - y(baseline, b) + y(baseline, baseline), averaged over the
    levels of all other factors: how much more the two do together than the sum of what each does. Where one of these runs has no number,
    the seed has none. All interactions are a family of their own under Holm's correction. `better` says nothing here: a verdict
    other than inconclusive or equivalent is called better if the interaction is negative.

    Args:
        runs: Values by seed, of each combination of levels.
        baseline: The baseline level of each factor.
        min_effect: The smallest interaction that matters.
        alpha: The level of tests.

    Example:
        >>> cell = lambda a, b: (("a", a), ("b", b))
        >>> y = {cell("0", "0"): {0: 5.0, 1: 6.0}, cell("1", "0"): {0: 4.0, 1: 5.0}, cell("0", "1"): {0: 3.0, 1: 4.0},
        ...      cell("1", "1"): {0: 1.0, 1: 2.5}}
        >>> [(c.variant, c.mean, c.pairs) for c in interactions(y, baseline={"a": "0", "b": "0"})]
        [('a=1 x b=1', -0.75, 2)]
    """
    levels: dict[str, list[str]] = {factor: [] for factor in baseline}
    for choices in runs:
        for factor, level in choices:
            if level not in levels[factor] and level != baseline[factor]:
                levels[factor].append(level)
    seeds = sorted({seed for values in runs.values() for seed in values})
    found = []
    for first, second in combinations(baseline, 2):
        for a in levels[first]:
            for b in levels[second]:
                together = _sums(runs, {first: (a, baseline[first]), second: (b, baseline[second])}, seeds)
                if together:
                    zero = dict.fromkeys(seeds, 0.0)
                    name = f"{first}={a} x {second}={b}"
                    found.append(compare(name, together, reference="none", reference_runs=zero, min_effect=min_effect, alpha=alpha))
    return judge(found, min_effect=min_effect, alpha=alpha)


def _sums(runs: Mapping[Choices, Runs], pairs: Mapping[str, tuple[str, str]], seeds: Sequence[int]) -> dict[int, float | None]:
    """Return the interaction by seed; nothing if a combination is missing altogether, as one that cannot exist."""
    signed: list[tuple[float, Runs]] = []
    contexts = 0
    for choices, values in runs.items():
        chosen = dict(choices)
        if any(chosen[factor] not in two for factor, two in pairs.items()):
            continue
        sign = 1.0
        for factor, (level, _) in pairs.items():
            sign *= 1.0 if chosen[factor] == level else -1.0
        contexts += all(chosen[factor] == two[0] for factor, two in pairs.items())
        signed.append((sign, values))
    if contexts == 0 or len(signed) != 4 * contexts:
        return {}
    sums: dict[int, float | None] = {}
    for seed in seeds:
        values_of_seed = [(sign, values.get(seed)) for sign, values in signed]
        known = [sign * value for sign, value in values_of_seed if value is not None]
        sums[seed] = sum(known) / contexts if len(known) == len(signed) else None
    return sums
