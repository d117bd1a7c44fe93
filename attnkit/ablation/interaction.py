"""Interactions in full factorial designs: whether the effect of a factor depends on another factor."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

from attnkit.ablation.design import Choices
from attnkit.ablation.statistics import Comparison, Runs, compare, judge


def interactions(
    runs: Mapping[Choices, Runs], *, baseline: Mapping[str, str], min_effect: float | None = None, alpha: float = 0.05
) -> list[Comparison]:
    """Return the interaction of each pair of levels of two factors, as comparisons with zero.

    For the levels a and b, a seed's interaction is y(a, b) - y(a, baseline) - y(baseline, b) + y(baseline, baseline), averaged over the
    levels of all other factors with which there are all four: how much the joint effect exceeds the sum of the two effects. A seed with
    a missing run has no value. All interactions are a family of their own under Holm's correction. The verdict `better` only means that
    the interaction is negative, and `worse` that it is positive.

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
    return judge(found, alpha=alpha)


def balanced(cells: Iterable[Choices], factors: Collection[str]) -> list[Choices]:
    """Return the combinations of levels over which means for the levels of two factors can be compared.

    Where some combinations do not exist, the means of two levels would average over different levels of the other factors. Kept are the
    levels of the other factors with which most combinations of the two exist.

    Example:
        >>> cells = [(("a", a), ("b", b), ("c", c)) for a in "01" for b in "01" for c in "01" if (b, c) != ("1", "1")]
        >>> sorted({dict(cell)["c"] for cell in balanced(cells, ("a", "b"))})
        ['0']
    """
    contexts = list(_by_context(cells, factors).values())
    most = max(map(len, contexts), default=0)
    return [cell for context in contexts if len(context) == most for cell in context]


def _by_context(cells: Iterable[Choices], factors: Collection[str]) -> dict[Choices, list[Choices]]:
    """Group combinations of levels by the levels of all other factors."""
    contexts: dict[Choices, list[Choices]] = {}
    for choices in cells:
        others = tuple((factor, level) for factor, level in choices if factor not in factors)
        contexts.setdefault(others, []).append(choices)
    return contexts


def _sums(runs: Mapping[Choices, Runs], pairs: Mapping[str, tuple[str, str]], seeds: Sequence[int]) -> dict[int, float | None]:
    """Return the interaction by seed; nothing if there are no four combinations with the same levels of other factors."""
    concerned = [choices for choices in runs if all(dict(choices)[factor] in two for factor, two in pairs.items())]
    contexts = [cells for cells in _by_context(concerned, pairs).values() if len(cells) == 4]
    if not contexts:
        return {}
    signed: list[tuple[int, Runs]] = []
    for choices in (choices for cells in contexts for choices in cells):
        changed = [dict(choices)[factor] == level for factor, (level, _) in pairs.items()]
        signed.append((1 if changed[0] == changed[1] else -1, runs[choices]))
    sums: dict[int, float | None] = {}
    for seed in seeds:
        values = [(sign, of_seed.get(seed)) for sign, of_seed in signed]
        known = [sign * value for sign, value in values if value is not None]
        sums[seed] = sum(known) / len(contexts) if len(known) == len(signed) else None
    return sums
