"""Noise of test examples and of tuning: what runs keep for it, standard errors, and intervals that include it."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnkit.ablation.noise import OWN, noise_sentence, noise_table, noises
from attnkit.ablation.plan import Tuned
from attnkit.ablation.report import markdown, page
from attnkit.ablation.results import Results
from attnkit.ablation.sections import Tune
from attnkit.ablation.statistics import (
    examples_error,
    joint_half,
    quantile_examples_error,
    quantile_interval,
    reached,
    tuning_spread,
    with_error,
)
from attnkit.worker.folder import PROVENANCE, write_json
from tests.ablation.conftest import made, study


def answered(tops: dict[str, Any], *, metric: str = "val/token_accuracy", **changes: Any) -> Results:
    """Return a study of two variants whose runs have kept the averaged numbers, [seeds, examples] by variant."""
    plan = study(**{"factors": {"model.a": [1]}, "seeds": 4, "metric": metric, "better": "higher"} | changes).plan(Path("runs"))
    plan.lock()
    for run in plan.runs:
        top = tops[run.variants[0]][run.seed].tolist()
        name = metric.partition("/")[2]
        result = {"metrics": {metric: sum(top) / len(top)}, "examples": {name: [top, [1.0] * len(top)]}, "example_set": "0"}
        write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made()))
        write_json(plan.run_folder(run.key) / "result.json", result)
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
    return Results(plan)


def test_the_example_error_is_the_standard_error_of_paired_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = rng.random((2, 3, 40))
    ones = np.ones(40)
    error, df = examples_error([*((1 / 3, run, ones) for run in ours), *((-1 / 3, run, ones) for run in theirs)])
    assert (error, df) == (pytest.approx(stats.sem(ours.mean(0) - theirs.mean(0))), 39)
    with pytest.raises(ValueError, match="different examples"):
        examples_error([(1.0, ours[0], ones), (-1.0, theirs[0], 2 * ones)])


def test_the_error_of_a_ratio_matches_the_jackknife(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = rng.integers(5, 15, 300).astype(float)
    a = b * rng.random(300)
    left_out = (a.sum() - a) / (b.sum() - b)
    jackknife = math.sqrt(299 / 300 * ((left_out - left_out.mean()) ** 2).sum())
    assert examples_error([(1.0, a, b)])[0] == pytest.approx(jackknife, rel=0.01)


def test_a_joint_interval_covers_at_any_ratio_of_the_two_errors(seed: int) -> None:
    """Seeds and examples are crossed, as in a study. At least 95 of 100 intervals cover, up to the error of the simulation."""
    rng = np.random.default_rng(seed)
    studies, n, examples = 1000, 4, 60
    for of_seeds, of_examples in ((1.0, 0.1), (0.3, 3.0), (0.1, 5.0)):
        by_seed = of_seeds * rng.standard_normal((studies, n, 1))
        d = by_seed + of_examples * rng.standard_normal((studies, 1, examples)) + rng.standard_normal((studies, n, examples))
        errors = zip(stats.sem(d.mean(2), axis=1), stats.sem(d.mean(1), axis=1), strict=True)
        halves = [joint_half([(rows, n - 1.0), (columns, examples - 1.0)], alpha=0.05) for rows, columns in errors]
        covered = (np.abs(d.mean((1, 2))) < halves).sum()
        assert covered >= stats.binom.ppf(1e-6, studies, 0.95)


def test_a_clearly_best_value_leaves_no_tuning_noise() -> None:
    assert tuning_spread([1.0, 9.0, 9.0], 0.1) == 0.0
    assert tuning_spread([9.0, 1.0], 0.1, higher=True) == 0.0
    assert tuning_spread([1.0, 2.0], 0.0) == 0.0
    half = tuning_spread([0.0, 1.0], 1.0)
    assert half == pytest.approx(math.sqrt(stats.norm.sf(1 / math.sqrt(2)))), "the other one as often as it looks better"
    rare = tuning_spread([0.0, 1.0], 0.2)
    assert rare == pytest.approx(math.sqrt(stats.norm.sf(1 / 0.2 / math.sqrt(2)))), "which few redraws would not see"
    lost = tuning_spread([0.0, 1.0], 0.01, lost=0.2)
    assert lost == pytest.approx(math.sqrt(0.2 * 0.8)), "the other one where only the best has a trial that diverges"


def test_a_repeated_tuning_moves_as_far_as_drawing_the_means_anew(seed: int) -> None:
    rng = np.random.default_rng(seed)
    means, lost = rng.standard_normal(6), 0.3
    drawn = np.where(rng.random((100_000, 6)) < lost, -math.inf, means + rng.standard_normal((100_000, 6)))
    squares = (means[drawn.argmax(1)] - means.max()) ** 2
    assert abs(tuning_spread(means.tolist(), 1.0, higher=True, lost=lost) ** 2 - squares.mean()) < 5 * stats.sem(squares)


@pytest.mark.usefixtures("undrawn")
def test_the_report_gives_each_contrast_an_interval_over_examples(guessed: None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = (rng.random(50) < 0.5).astype(float)
    tops = {"baseline": [known] * 4, "a=1": [np.where(np.arange(50) < 2 + s % 2, 1.0, known) for s in range(4)]}
    results = answered(tops)
    [one] = noises(results)
    [c] = results.family
    d = np.mean(tops["a=1"], axis=0) - known
    assert (one.examples, one.tuning) == (pytest.approx(stats.sem(d)), None)
    half = joint_half([(c.sd / 2, 3), (stats.sem(d), 49)], alpha=0.05)  # type: ignore[operator]
    assert one.interval == pytest.approx((d.mean() - half, d.mean() + half))
    text = markdown(results)
    assert "## Noise of test examples and tuning" in text
    assert "given these test examples. A table has the standard errors" in " ".join(text.split())
    assert "Noise of test examples and tuning" in page(results)
    for key in results.result:
        del results.result[key]["examples"]
    assert noise_table(results).rows == [], "nothing is known of examples"
    assert noise_sentence(results).endswith(
        "No other source is known: token_accuracy was not kept by example, or is not a mean over examples."
    )


def test_differences_of_a_rate_are_resolved_to_one_example(guessed: None, seed: int) -> None:
    """Two seeds with the same difference of two examples out of 20 would otherwise have no spread at all."""
    known = (np.random.default_rng(seed).permutation(20) < 9).astype(float)
    better = known.copy()
    better[np.flatnonzero(known == 0)[:2]] = 1.0
    [c] = answered({"baseline": [known] * 2, "a=1": [better] * 2}, seeds=2).family
    assert (c.sd, c.verdict) == (1 / 20, "inconclusive")
    [c] = answered({"baseline": [known] * 2, "a=1": [better] * 2}, seeds=2, resolution=1e-9, name="fine").family
    assert c.verdict == "better"
    [c] = answered({"baseline": [known + 0.25] * 2, "a=1": [better + 0.25] * 2}, seeds=2, name="no_count").family
    assert c.verdict == "better", "a mean of other numbers has no such step"
    results = answered({"baseline": [known] * 2, "a=1": [better] * 2}, seeds=2, name="fewer")
    top, bottom = results.result[results.runs[0].key]["examples"]["token_accuracy"]
    results.result[results.runs[0].key]["examples"]["token_accuracy"] = (top[:10], bottom[:10])
    assert results.resolution == 1 / 10, "that of the run with the fewest"


def test_example_sums_that_do_not_reproduce_the_metric_are_ignored(guessed: None, seed: int) -> None:
    rows = list(np.random.default_rng(seed).random((4, 30)))
    results = answered({"baseline": rows, "a=1": [r + 0.1 for r in rows]})
    for key in results.result:
        results.result[key]["metrics"]["val/token_accuracy"] += 0.01
    [one] = noises(results)
    assert (one.examples, one.missing) == (None, ("token_accuracy is not the mean of what was kept by example",))


def test_examples_that_differ_between_runs_are_detected(guessed: None, seed: int) -> None:
    """Between seeds, the noise of examples is part of that of the seeds; between variants, nothing is paired."""
    rows = list(np.random.default_rng(seed).random((4, 30)))
    results = answered({"baseline": rows, "a=1": [r + 0.1 for r in rows]})
    keys = results.plan.key_by_variant
    for name, word in (("a=1", "variants have different test examples"), ("baseline", "each seed has its own test examples")):
        sums = results.result[keys[name, 0]]["examples"]
        sums["token_accuracy"] = [tuple(2 * value for value in column) for column in sums["token_accuracy"]]
        assert noises(results)[0].missing[0].startswith(word)
        assert ("each with its own test examples" in noise_sentence(results)) == word.startswith("each seed")


def test_a_checksum_distinguishes_examples_with_equal_denominators(guessed: None, seed: int) -> None:
    rows = list(np.random.default_rng(seed).random((4, 30)))
    results = answered({"baseline": rows, "a=1": [r + 0.1 for r in rows]})
    keys = results.plan.key_by_variant
    assert noises(results)[0].examples is not None
    for name, word in (("a=1", "variants have different test examples"), ("baseline", "each seed has its own test examples")):
        results.result[keys[name, 0]]["example_set"] = "1f0c2a9b"
        assert noises(results)[0].missing[0].startswith(word)


def test_seed_dependent_example_order_assumes_fully_shared_errors(guessed: None, seed: int) -> None:
    """Runs of earlier versions: groups of examples cannot be matched between seeds, so shared errors would seem to average out."""
    rng = np.random.default_rng(seed)
    known, better = rng.random((2, 400))  # errors that all seeds share
    orders = [rng.permutation(400) for _ in range(4)]
    results = answered({"baseline": [known[order] for order in orders], "a=1": [better[order] for order in orders]})
    [too_small] = noises(results)
    for result in results.result.values():
        result["example_set"] = None
    [one] = noises(results)
    assert one.examples == pytest.approx(stats.sem(better - known), rel=1e-6)
    assert too_small.examples == pytest.approx(one.examples / 2, rel=0.2)
    assert "as if all seeds erred on the same ones" in noise_sentence(results)
    for name in ("baseline", "a=1"):
        sums = results.result[results.plan.key_by_variant[name, 0]]["examples"]
        sums["token_accuracy"] = [tuple(2 * value for value in column) for column in sums["token_accuracy"]]
    assert noises(results)[0].missing[0] == OWN, "another number of examples"


def test_the_error_of_a_quantile_matches_resampled_examples(seed: int) -> None:
    """For runs that are equal except for a shift shared by every example, it is that of a mean; for others, compare with a slow loop."""
    rng = np.random.default_rng(seed)
    ones, row, other = np.ones(60), rng.random(60), rng.random(60)
    shift = rng.random((9, 1))
    found = quantile_examples_error([(1.0, row + shift, ones), (-1.0, other + shift[::-1], ones)], 0.5, redraws=4000)
    assert found == pytest.approx(stats.sem(row - other), rel=0.05)
    bottom = rng.integers(1, 9, 60).astype(float)
    tops = bottom * (rng.random((2, 9, 60)) + np.array([[[3.0]], [[0.0]]]))  # the sums of the first side vary far more than the quotients
    tops[0, 3] = math.nan  # a diverged run ranks last
    drawn = []
    for _ in range(1000):
        chosen = rng.integers(60, size=60)
        values = [[run[chosen].sum() / bottom[chosen].sum() for run in side] for side in tops]
        drawn.append(reached(values[0], 0.8, better="higher") - reached(values[1], 0.8, better="higher"))
    found = quantile_examples_error([(1.0, tops[0], bottom), (-1.0, tops[1], bottom)], 0.8, better="higher", redraws=1000)
    assert found == pytest.approx(np.std(drawn) * math.sqrt(60 / 59), rel=0.15)


def test_intervals_of_quantiles_cover_other_examples(seed: int) -> None:
    """The variants are equal over all possible examples; intervals over seeds alone miss that, as examples are half of the variance."""
    rng = np.random.default_rng(seed)
    studies, ones, covered = 300, np.ones(80), np.zeros(2)
    for _ in range(studies):
        seeds = rng.standard_normal((2, 25, 1))
        tops = seeds + math.sqrt(80) * (1 + 0.3 * seeds) * rng.standard_normal((2, 1, 80)) + rng.standard_normal((2, 25, 80))
        values = tops.mean(2)
        alone = quantile_interval(*values, 0.8, level=0.05)
        middle = reached(values[0].tolist(), 0.8) - reached(values[1].tolist(), 0.8)
        error = quantile_examples_error([(1.0, tops[0], ones), (-1.0, tops[1], ones)], 0.8, redraws=100)
        intervals = (alone, with_error(middle, alone, error, level=0.05))
        covered += [low <= 0 <= high for low, high in intervals]
    assert covered[0] < 0.8 * studies
    assert covered[1] >= stats.binom.ppf(1e-6, studies, 0.95)


def test_intervals_of_quantiles_cover_repeated_tuning(seed: int) -> None:
    """The variants are equal over repeated tuning, but not after this one: if a trial of the best value diverged, another was chosen."""
    rng = np.random.default_rng(seed)
    studies, covered = 300, np.zeros(2)
    for _ in range(studies):
        runs, spreads = [], []
        for _ in range(2):
            diverged = rng.random(2) < 1 - 0.9**2  # two trials of each value; the means of the others have little noise
            means = [mean for mean, gone in zip((0.0, 2.0), diverged, strict=True) if not gone] or [0.0]
            runs.append(np.where(rng.random(20) < 0.1, math.inf, means[0] + 0.5 * rng.standard_normal(20)))
            share = float(np.isfinite(runs[-1]).mean())
            spreads.append(tuning_spread([0.0, 2.0], 0.5 / math.sqrt(2), lost=1 - share**2))
        alone = quantile_interval(*runs, 0.5, level=0.05)
        middle = reached(runs[0].tolist(), 0.5) - reached(runs[1].tolist(), 0.5)
        covered += [low <= 0 <= high for low, high in (alone, with_error(middle, alone, math.hypot(*spreads), level=0.05))]
    assert covered[0] < 0.85 * studies
    assert covered[1] >= stats.binom.ppf(1e-6, studies, 0.95)


@pytest.mark.usefixtures("undrawn")
def test_the_quantile_report_has_an_interval_over_tuning(guessed: None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    tops = {"baseline": rng.random((10, 50)), "a=1": rng.random((10, 50)) + 1}
    tune = {"grid": {"model.optimizer.lr": [1, 2, 3]}, "seeds": 2}
    results = answered(tops, seeds=10, quantile=0.5, better="lower")
    folder = results.plan.run_folder(results.plan.key_by_variant["a=1", 4])
    write_json(folder / "status.json", {"status": "diverged"})
    write_json(folder / "result.json", {"metrics": {results.study.metric: None}})
    means = {"baseline": (0.5, 0.51, None), "a=1": (1.5, 1.52, 2.5)}
    found = {name: Tuned(chosen={}, means=tuple(({}, mean) for mean in of), edges=()) for name, of in means.items()}
    results = Results(replace(results.plan, study=replace(results.study, tune=Tune(**tune)), tuned=found))
    [one], [c] = noises(results), results.family
    ours = [row.mean() for seed, row in enumerate(tops["a=1"]) if seed != 4]
    spreads = (
        tuning_spread([1.5, 1.52, 2.5], np.std(ours, ddof=1) / math.sqrt(2), lost=1 - 0.9**2),
        tuning_spread([0.5, 0.51], tops["baseline"].mean(1).std(ddof=1) / math.sqrt(2)),
    )
    assert (one.tuning, one.missing) == (pytest.approx(math.hypot(*spreads)), ())
    assert min(spreads) > 0
    assert one.examples is not None
    both = math.hypot(one.examples, *spreads)
    assert one.interval == pytest.approx(with_error(c.mean, c.interval, both, level=0.05))  # type: ignore[arg-type]
    assert "a repeated choice among the trials of tuning" in " ".join(noise_sentence(results).split())
    for key in results.result:
        results.result[key].pop("examples", None)
    [one] = noises(results)
    assert one.examples is None
    assert one.interval == pytest.approx(with_error(c.mean, c.interval, math.hypot(*spreads), level=0.05))  # type: ignore[arg-type]


@pytest.mark.usefixtures("undrawn")
def test_the_quantile_report_has_an_interval_over_examples(guessed: None, seed: int) -> None:
    rng = np.random.default_rng(seed)
    known = rng.random((10, 1)) < rng.random(50)
    tops = {"baseline": known.astype(float), "a=1": np.where(np.arange(50) < 12, 1.0, known)}
    results = answered(tops, seeds=10, quantile=0.5, better="lower")
    [one] = noises(results)
    [c] = results.family
    ones = np.ones(50)
    error = quantile_examples_error([(1.0, tops["a=1"], ones), (-1.0, tops["baseline"], ones)], 0.5)
    assert (one.seeds, one.examples, one.missing) == (None, error, ())
    assert one.interval == with_error(c.mean, c.interval, error, level=0.05)  # type: ignore[arg-type]
    assert one.interval[0] < c.interval[0] <= c.mean <= c.interval[1] < one.interval[1]  # type: ignore[index, operator]
    text = " ".join(markdown(results).split())
    assert "## Noise of test examples and tuning" in text
    assert "estimated by redrawing the examples, the same ones for all runs" in text
    diverged, pending = (results.plan.run_folder(results.plan.key_by_variant["a=1", seed]) for seed in (2, 4))
    write_json(diverged / "status.json", {"status": "diverged"})
    write_json(diverged / "result.json", {"metrics": {results.study.metric: None}})
    for name in ("status.json", "result.json"):
        (pending / name).unlink()
    ended = [0, 1, 2, 3, 5, 6, 7, 8, 9]
    ours = tops["a=1"][ended].copy()
    ours[2] = math.nan
    [one] = noises(Results(results.plan))
    assert one.examples == quantile_examples_error([(1.0, ours, ones), (-1.0, tops["baseline"][ended], ones)], 0.5)
    for key in results.result:
        del results.result[key]["examples"]
    assert noise_table(results).rows == []
    assert "token_accuracy was not kept by example" in noise_sentence(results)
