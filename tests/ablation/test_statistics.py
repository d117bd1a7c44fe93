"""Verdicts: right by hand, by published tables, and in the long run."""

import math

import numpy as np
import pytest
from scipy import stats

from attnkit.ablation.interaction import balanced, interactions
from attnkit.ablation.statistics import Comparison, compare, detectable, holm, judge, seeds_needed, sign_flip_p

NAN = math.nan


def one(ours: list[float | None], theirs: list[float | None], **settings: object) -> Comparison:
    pairing = {"variant": "a", "reference": "b", "runs": dict(enumerate(ours)), "reference_runs": dict(enumerate(theirs))}
    measured = compare(**pairing, **settings)  # type: ignore[arg-type]
    [judged] = judge([measured], **settings)  # type: ignore[arg-type]
    return judged


def test_the_paired_t_test_is_that_of_a_textbook() -> None:
    """Student's own data (1908): hours of sleep gained by ten patients with two drugs; t = 4.0621, p = 0.00283."""
    first = [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0]
    second = [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]
    c = one(second, first, better="higher")
    assert c.mean == pytest.approx(1.58)
    assert c.interval == pytest.approx((0.7001142, 2.4598858))
    assert c.p == pytest.approx(0.00283289)
    assert c.wins == 0.95
    assert c.verdict == "better"
    assert one(second, first, better="lower").verdict == "worse"


def test_sign_flips_by_a_slow_loop() -> None:
    d = np.array([0.3, -0.1, 0.8, 0.5, 0.2, 0.9, -0.2])
    flips = [sum(x if bits >> i & 1 else -x for i, x in enumerate(d)) for bits in range(2 ** len(d))]
    assert sign_flip_p(d) == pytest.approx(np.mean([abs(s) >= abs(d.sum()) - 1e-9 for s in flips]))


def test_five_seeds_have_no_exact_test_and_six_have() -> None:
    better = [1.0, 1.1, 0.9, 1.05, 0.95, 1.2]
    worse = [2.0, 2.3, 2.1, 2.2, 2.1, 2.0]
    assert one(better[:5], worse[:5]).p_exact is None
    assert one(better, worse).p_exact == 0.03125


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, None, 0.005]) == pytest.approx([0.03, 0.06, 0.06, None, 0.02])
    assert holm([]) == []


def test_holm_is_its_definition(seed: int) -> None:
    p = np.random.default_rng(seed).uniform(size=20).tolist()
    order = sorted(p)
    expected = [min(1.0, max((20 - i) * q for i, q in enumerate(order[: order.index(x) + 1]))) for x in p]
    assert holm(p) == pytest.approx(expected)


def test_one_comparison_more_can_take_a_verdict_back() -> None:
    c = compare("a", {0: 1.0, 1: 1.2, 2: 0.9}, reference="b", reference_runs={0: 1.5, 1: 1.6, 2: 1.5})
    assert c.p is not None
    assert 0.0125 < c.p < 0.05
    assert judge([c])[0].verdict == "better"
    assert judge([c, c, c, c])[0].verdict == "inconclusive"


def test_equivalent_is_told_from_inconclusive() -> None:
    theirs: list[float | None] = [1.0, 1.1, 0.9, 1.05, 0.95]
    near: list[float | None] = [1.001, 1.099, 0.902, 1.049, 0.951]
    noisy: list[float | None] = [1.3, 0.7, 1.2, 0.8, 0.95]
    assert one(near, theirs, min_effect=0.01).verdict == "equivalent"
    assert one(near, theirs).verdict == "inconclusive"
    c = one(noisy, theirs, min_effect=0.01)
    assert c.verdict == "inconclusive"
    assert c.seeds_needed is not None
    assert c.seeds_needed > 1000
    assert str(c.seeds_needed) in c.reason


def test_a_difference_that_is_shown_but_too_small_to_matter_is_equivalent() -> None:
    theirs: list[float | None] = [1.0, 1.1, 0.9, 1.05, 0.95]
    ours: list[float | None] = [0.998, 1.0981, 0.8979, 1.0482, 0.948]
    assert one(ours, theirs).verdict == "better"
    assert one(ours, theirs, min_effect=0.01).verdict == "equivalent"


def test_runs_without_spread_give_no_certainty() -> None:
    same: list[float | None] = [1.0, 1.0, 1.0]
    assert (one(same, same).p, one(same, same).verdict) == (1.0, "inconclusive")
    c = one([0.5, 0.5, 0.5], same)
    assert (c.p, c.verdict) == (0.25, "inconclusive")


def test_runs_that_diverge_count_as_lost() -> None:
    theirs: list[float | None] = [1.0, 1.1, 0.9, 1.05, 0.95, 1.0, 1.2]
    ours: list[float | None] = [0.5, 0.5, NAN, NAN, NAN, NAN, NAN]
    c = one(ours, theirs)
    assert c.diverged == (5, 0)
    assert (c.pairs, c.wins) == (2, 2 / 7)
    assert c.p == pytest.approx(stats.binomtest(2, 7).pvalue)
    assert c.verdict == "inconclusive"
    assert "5 of 7 runs diverged" in c.reason
    all_lost = one([NAN] * 7, theirs)
    assert all_lost.verdict == "worse"
    assert one(theirs, [NAN] * 7).verdict == "better"
    assert one([NAN] * 7, [NAN] * 7).verdict == "inconclusive"


def test_a_failed_run_leaves_the_question_open() -> None:
    theirs: list[float | None] = [1.0, 1.1, 0.9, 1.05, 0.95]
    c = one([0.1, 0.2, 0.05, 0.1, None], theirs)
    assert c.verdict == "inconclusive"
    assert c.reason == "1 of 10 runs have no value; run or retry them"
    assert c.pairs == 4


def test_detectable_differences_are_those_of_the_noncentral_t() -> None:
    """At 80 % power, in units of the sd of differences: 3 pairs 3.27, 5 1.69, 8 1.16, 10 1.00, 20 0.67 (by simulation)."""
    assert [detectable(n) for n in (3, 5, 8, 10, 20)] == pytest.approx([3.27, 1.69, 1.16, 1.00, 0.67], abs=0.01)
    for n in (4, 9):
        assert seeds_needed(detectable(n) * 1.001) == n


def test_power_is_reached_in_simulation(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draws = rng.normal(detectable(6), 1.0, size=(4000, 6))
    found = np.mean(stats.ttest_1samp(draws, 0.0, axis=1).pvalue < 0.05)
    assert abs(found - 0.8) < 4.9 * math.sqrt(0.8 * 0.2 / 4000)  # 4.9 sigma: fails once in a million


STUDIES = 600  # with 200, too many uncorrected ones could be missed once in 70 times


def test_variants_that_are_all_the_same_are_rarely_told_apart(seed: int) -> None:
    """A/A studies: five variants equal to the baseline, five seeds with an effect of their own. False positives at the nominal rate.

    Holm keeps the probability that a study has any below alpha; their number is then at most binomial, and the bound is its quantile at
    one in a million. Without the correction there would be far more, which the test shows too.
    """
    rng = np.random.default_rng(seed)
    most = stats.binom.ppf(1 - 1e-6, STUDIES, 0.05)
    wrong = uncorrected = 0
    for _ in range(STUDIES):
        values = rng.normal(0.0, 1.0, size=(6, 5)) + rng.normal(0.0, 3.0, size=5)  # the seed's effect cancels by pairing
        baseline = dict(enumerate(values[0]))
        measured = [compare("v", dict(enumerate(v)), reference="b", reference_runs=baseline) for v in values[1:]]
        uncorrected += any(c.p is not None and c.p < 0.05 for c in measured)
        wrong += any(c.verdict != "inconclusive" for c in judge(measured))
    assert wrong <= most
    assert uncorrected > most


def test_one_comparison_has_false_positives_at_the_nominal_rate(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = stats.binom.ppf([5e-7, 1 - 5e-7], 400, 0.05)
    zero = dict.fromkeys(range(5), 0.0)
    draws = rng.normal(size=(400, 5))
    verdicts = [one(list(row), list(zero.values())).verdict for row in draws]
    assert low <= sum(v != "inconclusive" for v in verdicts) <= high


def test_equivalence_is_rarely_claimed_at_the_margin(seed: int) -> None:
    rng = np.random.default_rng(seed)
    draws = rng.normal(1.0, 0.4, size=(STUDIES, 8))  # the true difference is min_effect: equivalence is false
    claimed = sum(one(list(row), [0.0] * 8, min_effect=1.0).verdict == "equivalent" for row in draws)
    assert claimed <= stats.binom.ppf(1 - 1e-6, STUDIES, 0.05)
    assert claimed > 0


def test_an_interaction_is_what_two_levels_do_beyond_their_sum(seed: int) -> None:
    rng = np.random.default_rng(seed)
    runs = {}
    for a in "012":
        for b in "01":
            extra = -2.0 if (a, b) == ("2", "1") else 0.0
            base = {"0": 0.0, "1": 0.5, "2": 1.0}[a] + {"0": 0.0, "1": 3.0}[b]
            runs[(("a", a), ("b", b))] = {s: base + extra + 10 * s + rng.normal(0, 0.01) for s in range(6)}
    found = {c.variant: c for c in interactions(runs, baseline={"a": "0", "b": "0"}, min_effect=0.1)}
    assert found["a=1 x b=1"].verdict == "equivalent"
    assert found["a=2 x b=1"].mean == pytest.approx(-2.0, abs=0.05)
    assert found["a=2 x b=1"].verdict == "better"
    del runs[(("a", "2"), ("b", "1"))]
    assert [c.variant for c in interactions(runs, baseline={"a": "0", "b": "0"})] == ["a=1 x b=1"]


def test_interactions_and_their_means_are_over_contexts_with_all_combinations(seed: int) -> None:
    rng = np.random.default_rng(seed)
    cells = [(("a", a), ("b", b), ("c", c)) for a in "01" for b in "01" for c in "012" if (b, c) != ("1", "2")]
    runs = {cell: {s: rng.normal() + (100.0 if ("c", "2") in cell else 0.0) for s in range(4)} for cell in cells}
    [found] = [c for c in interactions(runs, baseline=dict.fromkeys("abc", "0")) if c.variant == "a=1 x b=1"]

    def y(a: str, b: str, c: str, s: int) -> float:
        return runs[(("a", a), ("b", b), ("c", c))][s]

    by_hand = [y("1", "1", c, s) - y("1", "0", c, s) - y("0", "1", c, s) + y("0", "0", c, s) for c in "01" for s in range(4)]
    assert found.mean == pytest.approx(sum(by_hand) / 8)
    assert set(balanced(runs, ("a", "b"))) == {cell for cell in cells if ("c", "2") not in cell}
    assert set(balanced(runs, ("b", "c"))) == set(cells), "with both levels of a, the same combinations exist"
