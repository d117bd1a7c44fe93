"""Effects over tasks and sizes: checked by other routes to the same numbers, and in the long run."""

import math

import numpy as np
import pytest
from scipy import stats

from attnkit.ablation.statistics import mean_of_tasks, mean_over_tasks, seed_slopes, slope


def test_the_mean_of_tasks_is_a_t_test_of_seed_means(seed: int) -> None:
    d = np.random.default_rng(seed).normal(0.5, [[1.0], [3.0], [0.1]], (3, 6))
    found, student = mean_of_tasks(list(d), alpha=0.1), stats.ttest_1samp(d.mean(0), 0.0)
    assert (found.mean, found.p, found.df) == pytest.approx((d.mean(), student.pvalue, 5))
    assert found.interval == pytest.approx(tuple(student.confidence_interval(0.9)))


def test_the_mean_of_tasks_keeps_its_level_with_tails_and_shared_noise(seed: int) -> None:
    """Satterthwaite's test of tasks with unequal noise was false 7 times as often as its level of .0005, and 3 times as often at .005."""
    rng, wrong = np.random.default_rng(seed), np.zeros(2)
    for _ in range(20_000):
        unequal, shared = rng.normal(0.0, [[1.0], [0.1], [0.1]], (3, 3)), rng.normal(size=3) + 0.3 * rng.normal(size=(3, 3))
        wrong += [_fast(unequal) < 0.005, _fast(shared) < 0.005]
    assert max(wrong) <= stats.binom.ppf(1 - 5e-7, 20_000, 0.005)
    assert mean_of_tasks(list(unequal)).p == pytest.approx(_fast(unequal))


def _fast(d: np.ndarray) -> float:
    """Return the p-value of 3 seeds in closed form: Student's t with 2 degrees of freedom."""
    m = d.mean(0)
    t = abs(m.mean()) / m.std(ddof=1) * math.sqrt(3)
    return float(1 - t / math.sqrt(2 + t * t))


def test_the_mean_of_one_task_is_a_t_test(seed: int) -> None:
    d = np.random.default_rng(seed).normal(0.5, 1.0, 6)
    found, student = mean_of_tasks([d]), stats.ttest_1samp(d, 0.0)
    assert (found.p, found.df) == pytest.approx((student.pvalue, 5))
    assert found.interval == pytest.approx(tuple(student.confidence_interval(0.95)))


def test_tasks_like_these_match_a_balanced_random_effects_analysis(seed: int) -> None:
    """The variance between tasks is that of textbook analysis of variance: (MSB - MSW) / n, from sums of squares."""
    rng = np.random.default_rng(seed)
    d = rng.normal(1.0, 2.0, (6, 1)) + rng.normal(0.0, 0.5, (6, 4))
    found = mean_over_tasks(list(d))
    between = 4 * ((d.mean(1) - d.mean()) ** 2).sum() / 5
    within = ((d - d.mean(1, keepdims=True)) ** 2).sum() / (6 * 3)
    assert found.between == pytest.approx(math.sqrt((between - within) / 4))
    assert found.p == pytest.approx(stats.f.sf(24 * d.mean() ** 2 / between, 1, 5)), "F of the grand mean against the tasks"
    student = stats.ttest_1samp(d.mean(1), 0.0)
    assert found.interval == pytest.approx(tuple(student.confidence_interval(0.95)))


def test_tasks_like_these_match_the_mixed_model_of_statsmodels(seed: int) -> None:
    models = pytest.importorskip("statsmodels.regression.mixed_linear_model")
    rng = np.random.default_rng(seed)
    d = rng.normal(1.0, 2.0, (6, 1)) + rng.normal(0.0, 0.5, (6, 4))
    fit = models.MixedLM(d.ravel(), np.ones(24), groups=np.repeat(np.arange(6), 4)).fit(reml=True)
    found = mean_over_tasks(list(d))
    assert found.mean == pytest.approx(float(fit.fe_params[0]), abs=1e-6)
    assert found.between == pytest.approx(math.sqrt(float(fit.cov_re[0, 0])), rel=1e-3)
    half = stats.t.isf(0.025, 5) * float(fit.bse_fe[0])
    assert found.interval == pytest.approx((found.mean - half, found.mean + half), rel=1e-3)


def test_slopes_match_a_regression_per_seed(seed: int) -> None:
    rng, sizes = np.random.default_rng(seed), [64, 128, 512, 1000]
    d = rng.normal(size=(5, 4))
    by_seed = [stats.linregress(np.log2(sizes), row).slope for row in d]
    assert seed_slopes(d, sizes).tolist() == pytest.approx(by_seed)
    found, student = slope(d, sizes), stats.ttest_1samp(by_seed, 0.0)
    assert (found.mean, found.p) == pytest.approx((np.mean(by_seed), student.pvalue))


STUDIES = 1500
LOW, HIGH = stats.binom.ppf([5e-7, 1 - 5e-7], STUDIES, 0.05) / STUDIES


def test_intervals_over_tasks_cover_at_the_nominal_rate(seed: int) -> None:
    """With heterogeneous tasks, intervals of these tasks cover their mean, those of tasks like these the population's; not vice versa."""
    rng = np.random.default_rng(seed)
    missed = np.zeros(3)
    for _ in range(STUDIES):
        true = rng.normal(0.5, 1.0, 5)
        d = [effect + rng.normal(0.0, 1.0, 4) for effect in true]
        of_these, like_these = mean_of_tasks(d).interval, mean_over_tasks(d).interval
        asked = ((true.mean(), of_these), (0.5, like_these), (0.5, of_these))
        missed += [not low <= t <= high for t, (low, high) in asked]
    assert LOW <= missed[0] / STUDIES <= HIGH
    assert LOW <= missed[1] / STUDIES <= HIGH
    assert missed[2] / STUDIES > HIGH, "these tasks say less about others than about themselves"


def test_slopes_of_dependent_sizes_keep_the_nominal_error_rate(seed: int) -> None:
    """Without a slope, and with noise that the sizes of a seed share, false slopes occur at the nominal rate."""
    rng = np.random.default_rng(seed)
    wrong = 0
    for _ in range(STUDIES):
        d = rng.normal(size=(4, 3)) + 3 * rng.normal(size=(4, 1))
        wrong += slope(d, [1, 2, 4]).p < 0.05
    assert LOW <= wrong / STUDIES <= HIGH


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_of_tasks([[1.0]]), "at least 2 seeds"),
        (lambda: mean_of_tasks([[1.0, math.nan]]), "diverged"),
        (lambda: mean_of_tasks([[1.0, 2.0], [1.0, 2.0, 3.0]]), "the same number of seeds"),
        (lambda: mean_over_tasks([[1.0, 2.0]]), "at least 2 tasks"),
        (lambda: slope([[1.0, 2.0]], [1, 2, 4]), "with 3 sizes"),
        (lambda: slope([[1.0, 2.0]], [2, 2]), "two of them different"),
        (lambda: slope([[1.0, 2.0]], [0, 2]), "above 0"),
    ],
)
def test_invalid_arrays_are_rejected(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_equal_differences_have_no_spread() -> None:
    assert mean_of_tasks([[1.0, 1.0], [1.0, 1.0]]).p == 0.0
    assert mean_of_tasks([[0.0, 0.0], [0.0, 0.0]]).p == 1.0
