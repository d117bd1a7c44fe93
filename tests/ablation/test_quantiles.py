"""Quantiles of the metric over seeds, for pieces that fail now and then."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

from attnkit.ablation.certificate import DIVERGENT, certificate, simulate
from attnkit.ablation.figures import forest
from attnkit.ablation.noise import ExamplesNoise, examples_noise
from attnkit.ablation.question import Look
from attnkit.ablation.report import markdown, page, write_report
from attnkit.ablation.statistics import (
    Comparison,
    badness,
    compare,
    contrast,
    fewest_seeds,
    judge,
    quantile_interval,
    quantile_p,
    reached,
)
from attnkit.cli.ablate import ablate
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import stored, study
from tests.ablation.test_noise import answered

NAN = math.nan


def one(ours: list[float | None], theirs: list[float | None], share: float, *, family: int = 1, **settings: Any) -> Comparison:
    runs, reference = dict(enumerate(ours)), dict(enumerate(theirs))
    measured = compare("a", runs, reference="b", reference_runs=reference, quantile=share, **settings)
    return judge([measured], better=settings.get("better", "lower"), family=family)[0]


def test_a_quantile_ranks_diverged_runs_last() -> None:
    ten = [float(i) for i in range(9)] + [NAN]
    assert [reached(ten, share) for share in (0.1, 0.5, 0.7, 0.9)] == [0.0, 4.0, 6.0, 8.0], "one in ten fails, and nine in ten reach 8"
    assert math.isnan(reached(ten, 0.91))
    assert reached(ten, 0.9, better="higher") == 0.0, "counted from the best, whichever that is"


def test_the_p_value_matches_its_definition_by_a_slow_loop(seed: int) -> None:
    """For every value that could be the quantile of both: too many below it, too few up to it, or one side wins too often."""
    rng = np.random.default_rng(seed)
    for n, share in ((9, 0.5), (25, 0.8)):
        ours, theirs = rng.normal(0, 1, n).round(1), rng.normal(1.5, 1, n).round(1)
        ours[0] = theirs[1] = math.inf
        found = []
        for a, b in ((ours, theirs), (theirs, ours)):
            largest = 0.0
            for t in [*a, *b, *np.arange(-4.95, 5, 0.1)]:  # values have one digit
                won = sum((x < t) & (y > t) for x, y in zip(a, b, strict=True))
                lost = sum((y <= t) & (x >= t) for x, y in zip(a, b, strict=True))
                many = stats.binomtest(int((a < t).sum()), n, share, alternative="greater").pvalue
                few = stats.binomtest(int((b <= t).sum()), n, share, alternative="less").pvalue
                most = stats.binomtest(int(won), int(won + lost), alternative="greater").pvalue if won + lost else 1.0
                largest = max(largest, min(8 / 3 * many, 8 / 3 * few, 4 * most))
            found.append(largest)
        assert quantile_p(ours, theirs, share) == pytest.approx(min(1.0, 2 * min(found)))


def test_the_minimum_number_of_seeds_just_detects_the_largest_difference() -> None:
    for share, level in ((0.5, 0.05), (0.9, 0.05), (0.2, 0.01)):
        n = fewest_seeds(share, level=level)
        p = [float(quantile_p(np.arange(float(m)), 100 + np.arange(float(m)), share)) for m in (n - 1, n)]
        assert p[1] < level <= p[0]


def test_an_interval_covers_the_true_difference_for_any_distribution(seed: int) -> None:
    """Values with ties, a tenth that diverged, and dependent runs of one seed: at least 95 of 100 intervals cover."""
    rng, studies = np.random.default_rng(seed), 600
    for share, n, ties in ((0.5, 9, False), (0.5, 20, True), (0.8, 40, False)):
        covered = 0
        true = 1.0 if not ties else round(stats.norm.ppf(share / 0.9) + 1.0) - round(stats.norm.ppf(share / 0.9))
        for _ in range(studies):
            shared = rng.standard_normal(n)
            noise = 0.8 * shared + 0.6 * rng.standard_normal((2, n))
            noise[rng.random((2, n)) < 0.1] = math.inf
            ours, theirs = noise[0] + 1.0, noise[1]
            low, high = quantile_interval(*((np.round(x) if ties else x) for x in (ours, theirs)), share, level=0.05)
            covered += low <= true <= high
        assert covered >= stats.binom.ppf(1e-6, studies, 0.95)


def test_the_interval_touches_zero_at_the_p_value(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for share in (0.3, 0.5, 0.9):
        for _ in range(50):
            ours, theirs = rng.normal(0, 1, 50).round(1), rng.normal(rng.normal(), 1, 50).round(1)
            ours[rng.random(50) < 0.1] = math.inf
            p = quantile_p(ours, theirs, share)
            for level in (p * (1 - 1e-9), p * (1 + 1e-9)):
                low, high = quantile_interval(ours, theirs, share, level=level)
                assert (low > 0 or high < 0) == (level > p) or p == 1.0


def test_verdicts_follow_from_the_interval() -> None:
    near, far = [1.0 + 0.01 * i for i in range(12)], [2.0 + 0.01 * i for i in range(12)]
    often: list[float | None] = [*near[:11], NAN]
    c = one(often, [*far], 0.5)
    assert (c.verdict, c.diverged, c.pairs) == ("better", (1, 0), 12)
    assert c.mean == pytest.approx(-1.0)
    assert c.interval is not None
    assert c.interval[1] < 0
    assert "1 of 12 runs diverged, and 0 of b; diverged runs rank last" in c.reason
    assert one([*far], often, 0.5).verdict == "worse"
    assert one(often, [*far], 0.5, better="higher").verdict == "worse"
    assert one([*near], [*near[::-1]], 0.5, min_effect=0.2).verdict == "equivalent", "also of other pairs"
    assert one([*near], [*near], 0.5).verdict == "inconclusive"
    lost = one([NAN] * 12, [*near], 0.5)
    assert (lost.verdict, lost.mean) == ("worse", None), "the median of the variant is a run that diverged"
    assert one([NAN] * 12, [NAN] * 12, 0.5, min_effect=1.0).verdict == "inconclusive", "neither has a number"
    assert one([None, *near[1:]], [*far], 0.5).reason == "1 of 24 runs have no value; run or retry them"


@pytest.mark.parametrize(("better", "sign"), [("lower", 1.0), ("higher", 1.0), ("lower", -1.0)])
def test_a_percentage_of_a_quantile_is_tested_on_scaled_runs(seed: int, better: Any, sign: float) -> None:
    rng, found = np.random.default_rng(seed), set()
    for _ in range(40):
        theirs, ours = (sign * np.exp(0.1 * rng.normal(size=20)) for _ in range(2))
        ours *= rng.choice([1.0, 1.5])
        theirs[rng.random(20) < 0.05] = NAN
        c = one([*ours], [*theirs], 0.5, min_effect="20%", better=better)
        bad, reference = badness(ours, better=better), badness(theirs, better=better)
        lower, upper = (np.where(np.isinf(reference), np.inf, reference * (1 + 0.2 * side * np.sign(reference))) for side in (-1, 1))
        inside = quantile_interval(bad, upper, 0.5, level=0.05)[1] < 0 < quantile_interval(bad, lower, 0.5, level=0.05)[0]
        assert (c.verdict == "equivalent") == inside
        assert c.interval is not None
        assert c.relative is not None
        assert (c.relative[0] > 0, c.relative[1] < 0) == (c.interval[0] > 0, c.interval[1] < 0)
        found.add(c.verdict)
    assert "equivalent" in found
    assert len(found) > 1
    mixed = one([1.0 + i for i in range(9)], [-1.0 + i for i in range(9)], 0.5, min_effect="900%")
    assert (mixed.verdict, mixed.relative) == ("inconclusive", None), "no share of a quantile that may have either sign"
    assert "900% of the reference is not known, as its values, or those compared with it, have both signs" in mixed.reason


def test_too_few_seeds_are_reported_with_the_number_needed() -> None:
    near, far = [float(i) for i in range(41)], [100.0 + i for i in range(41)]
    for n, share, family, needed in ((6, 0.5, 1, 7), (9, 0.5, 5, 10), (41, 0.9, 1, 45)):
        c = one([*near[:n]], [*far[:n]], share, family=family)
        assert (c.verdict, c.mean, c.interval) == ("inconclusive", None, None)
        assert c.reason == f"{n} seeds are too few to show a difference of {share:g} quantiles: it takes {needed}"
    assert one([*near[:8]], [*far[:8]], 0.5).verdict == "better"


def test_each_side_of_a_main_effect_is_averaged_per_seed() -> None:
    runs = [(weight, {s: base + 0.01 * s for s in range(8)}) for weight, base in ((0.5, 1.0), (0.5, 2.0), (-0.5, 4.0), (-0.5, 7.0))]
    c = contrast("x", runs, reference="y", better="lower", quantile=0.5)
    assert c.mean == pytest.approx(1.5 - 5.5)


@pytest.mark.parametrize("share", [0.5, 0.8])
def test_equal_variants_that_diverge_at_times_rarely_get_a_verdict(seed: int, share: float) -> None:
    rng, studies, wrong = np.random.default_rng(seed), 300, 0
    for _ in range(studies):
        values = rng.standard_normal((3, 24)) + rng.standard_normal(24)
        values[rng.random(values.shape) < 0.1] = NAN
        y = [dict(enumerate(row.tolist())) for row in values]
        found = judge([compare("v", v, reference="b", reference_runs=y[0], quantile=share) for v in y[1:]])
        wrong += any(c.verdict != "inconclusive" for c in found)
    assert wrong <= stats.binom.ppf(1 - 1e-6, studies, 0.05)


VALUES: dict[str, list[float | str]] = {
    "baseline": [2.0 + 0.01 * i for i in range(12)],
    "position=none": ["diverged", *(1.0 + 0.01 * i for i in range(11))],
    "position=learned": ["diverged"] * 12,
}


@pytest.mark.usefixtures("guessed")
def test_a_quantile_report_shows_quantiles_throughout() -> None:
    results = stored(VALUES, seeds=12, quantile=0.5, min_effect="10%")
    assert [c.verdict for c in results.comparisons] == ["better", "worse"]
    assert results.comparisons[0].min_effect == pytest.approx(0.205), "of the reference's median"
    text = markdown(results)
    assert "| variant | quantile | difference" in text
    assert "| diverged (12 diverged) |" in text
    assert "position=none is better than baseline: 0.5 quantile of val/loss -1" in text
    assert "Variants are compared by its 0.5 quantile over seeds" in text
    assert "t test" not in text
    html = page(results)
    assert "0.5 quantile of val/loss, lower is better" in html
    assert forest(results).svg is not None
    write_report(results)
    assert ablate(["report", "runs/s/runs.jsonl.gz", "--folder", "again"]) == 0
    assert "is better than baseline: 0.5 quantile of val/loss -1" in Path("again/s/report.md").read_text()


@pytest.mark.usefixtures("guessed", "undrawn")
def test_a_report_with_too_few_seeds_gives_a_reason_not_a_difference() -> None:
    text = markdown(stored(VALUES, seeds=5, quantile=0.5))
    assert "| position=none | 1.02 (1 diverged) | - |" in text
    assert "5 seeds are too few to show a difference of 0.5 quantiles: it takes 8" in text


@pytest.mark.usefixtures("guessed")
def test_the_quantile_certificate_simulates_diverging_runs() -> None:
    found = certificate(stored({name: [*values, *values] for name, values in VALUES.items()}, seeds=24, quantile=0.5))
    assert [noise for noise, _ in found.errors] == ["normal", DIVERGENT]
    assert max(rate for _, rate in found.errors) <= 0.05
    assert found.power[1][1] > found.power[0][1] > 0.05
    assert "standard deviations of a variant's runs, a tenth of which diverge" in " ".join(found.sentences())


def coverage(*, seeds: int = 20, variants: int = 1, share: float = 0.5, common: float = 1.0, together: float = 0.0) -> tuple[float, float]:
    weights = tuple(tuple(float(i == variant) - float(i == 0) for i in range(variants + 1)) for variant in range(1, variants + 1))
    noise = ExamplesNoise(common=common, own=0.5, together=together, groups=50)
    found = simulate(weights, (Look(seeds=seeds, alpha=0.05),), errors=("normal",), quantile=share, noise=noise)
    assert found.coverage is not None
    return found.coverage


def test_the_quantile_certificate_uses_the_family_adjusted_level() -> None:
    [alone, five] = (
        simulate(((1.0, -1.0),) * n, (Look(seeds=20, alpha=0.05),), errors=("normal",), studies=200, quantile=0.5).power for n in (1, 5)
    )
    assert [rate for _, rate in five] < [rate for _, rate in alone], "of the same simulated runs"


def test_a_certificates_coverage_follows_the_design() -> None:
    alone, both = coverage()
    assert alone < 0.8, "docs/explanation/statistics.md: .668 with 1,000 studies"
    assert both > 0.93
    assert coverage(common=0.1)[0] > 0.97, "little noise of examples"
    assert coverage(together=1.0)[0] > 0.97, "all variants have the same noise"
    assert coverage(seeds=60)[0] < alone - 0.1, "shorter intervals of seeds"
    assert coverage(variants=5)[0] < alone - 0.1, "any of five intervals may miss"
    assert coverage(seeds=60, share=0.9)[0] > coverage(seeds=60)[0] + 0.1, "wider intervals of seeds"
    assert coverage(seeds=5) == (1.0, 1.0), "too few seeds for any interval"
    simulate.cache_clear()
    assert coverage() == (alone, both)


@pytest.mark.usefixtures("guessed", "undrawn")
def test_the_quantile_certificate_uses_the_reports_example_noise(seed: int) -> None:
    def runs(common: float, own: float, together: float) -> Any:
        """Return sums by example whose runs have a standard deviation of 1 on one set of examples."""
        rng = np.random.default_rng(seed)
        shared, apart = rng.standard_normal((1, 1, 200)), rng.standard_normal((2, 1, 200))
        parts = common * (math.sqrt(together) * shared + math.sqrt(1 - together) * apart) + own * rng.standard_normal((2, 40, 200))
        tops = 10 + math.sqrt(1 - own**2) * rng.standard_normal((2, 40, 1)) + math.sqrt(200) * parts
        return answered(dict(zip(("baseline", "a=1"), tops, strict=True)), seeds=40, quantile=0.5)

    results = runs(1.0, 0.5, 0.8)
    found = examples_noise(results)
    assert found is not None
    assert (found.common, found.own, found.together) == (  # within five standard deviations of the estimates, over 24 seeds
        pytest.approx(1, abs=0.5),
        pytest.approx(0.5, abs=0.25),
        pytest.approx(0.8, abs=0.11),
    )
    assert found.groups == 200
    certified = certificate(results)
    assert certified.noise == found
    assert f"of {certified.coverage[0]:.3f} ± 0.0" in markdown(results)  # type: ignore[index]
    assert "then all intervals together would cover the true differences with a probability of" in markdown(results)


@pytest.mark.usefixtures("guessed")
def test_without_example_noise_the_certificate_covers_seeds_only() -> None:
    results = stored({name: [*values, *values] for name, values in VALUES.items()}, seeds=24, quantile=0.5)
    assert examples_noise(results) is None
    text = " ".join(certificate(results).sentences())
    assert "then all intervals together would cover the true differences with a probability of" in text
    assert "over other test examples" not in text


@pytest.mark.usefixtures("guessed")
def test_the_plan_states_how_many_seeds_a_verdict_needs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.yaml").write_text("recipe: tiny.yaml\nseeds: 5\nquantile: 0.9\nfactors: {model.a: [1]}\n")
    assert ablate(["plan", "s.yaml", "--no-probe"]) == 0
    assert (
        "With 5 seeds and 1 contrast of the 0.9 quantile, no verdict is possible: that takes at least 45 seeds." in capsys.readouterr().out
    )


@pytest.mark.usefixtures("guessed", "undrawn")
def test_results_of_another_study_are_rejected() -> None:
    results = stored(VALUES, seeds=12, quantile=0.5)
    page_before = write_report(results).read_text()
    asked = {"name": "s", "recipe": "tiny.yaml", "seeds": 12, "min_effect": 0.05, "quantile": 0.5, "alpha": 0.3}
    Path("s.yaml").write_text(yaml.safe_dump(asked | {"factors": {"model.stack.position": ["none", "learned"]}}))
    for command in (["report", "s.yaml"], ["compare", "s.yaml", "baseline", "position=none"]):
        with pytest.raises(ConfigurationError, match="has results of another study: alpha changed since"):
            ablate([*command, "--folder", "runs"])
    assert Path("runs/s/report.html").read_text() == page_before


@pytest.mark.usefixtures("guessed")
def test_changing_the_quantile_changes_the_study() -> None:
    results = stored(VALUES, seeds=12, quantile=0.5)
    for other in (None, 0.8):
        with pytest.raises(ConfigurationError, match="quantile changed since"):
            study(seeds=12, min_effect=0.05, quantile=other).plan(results.plan.folder).lock()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantile": 0.0}, "between 0 and 1"),
        ({"quantile": 1}, "between 0 and 1"),
        ({"quantile": "median"}, "quantile"),
        ({"seeds": None, "decide": {"max_seeds": 20}}, "decide cannot be combined with quantile: looks are planned for t tests"),
        ({"tasks": {"one": {}, "two": {}}}, "tasks cannot be combined with quantile: aggregates"),
        ({"resolution": 0.1}, "resolution cannot be combined with quantile"),
        ({"design": "full_factorial", "factors": {"model.a": [1], "model.b": [1]}}, "'a x b' is an interaction"),
    ],
)
def test_misuse_is_rejected(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        study(**{"quantile": 0.5} | changes)
