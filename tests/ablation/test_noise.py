"""Noise of test examples and of tuning: what is kept of runs, standard errors, and intervals that hold for them, too."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnkit.ablation.noise import noise_sentence, noise_table, noises
from attnkit.ablation.report import markdown, page
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import examples_error, joint_half, tuning_spread
from attnkit.worker.folder import PROVENANCE, write_json
from tests.ablation.conftest import made, study


def answered(tops: dict[str, Any], *, metric: str = "val/token_accuracy", **changes: Any) -> Results:
    """Return a study of two variants whose runs kept what is averaged, [seeds, examples] by variant."""
    plan = study(**{"factors": {"model.a": [1]}, "seeds": 4, "metric": metric, "better": "higher"} | changes).plan(Path("runs"))
    plan.lock()
    for run in plan.runs:
        top = tops[run.variants[0]][run.seed].tolist()
        name = metric.partition("/")[2]
        result = {"metrics": {metric: sum(top) / len(top)}, "examples": {name: [top, [1.0] * len(top)]}}
        write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made()))
        write_json(plan.run_folder(run.key) / "result.json", result)
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok"})
    return Results(plan)


def test_the_error_of_examples_is_that_of_their_paired_differences(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ours, theirs = rng.random((2, 3, 40))
    ones = np.ones(40)
    error, df = examples_error([*((1 / 3, run, ones) for run in ours), *((-1 / 3, run, ones) for run in theirs)])
    assert (error, df) == (pytest.approx(stats.sem(ours.mean(0) - theirs.mean(0))), 39)
    with pytest.raises(ValueError, match="other examples"):
        examples_error([(1.0, ours[0], ones), (-1.0, theirs[0], 2 * ones)])


def test_the_error_of_a_quotient_is_that_of_the_jackknife(seed: int) -> None:
    rng = np.random.default_rng(seed)
    b = rng.integers(5, 15, 300).astype(float)
    a = b * rng.random(300)
    left_out = (a.sum() - a) / (b.sum() - b)
    jackknife = math.sqrt(299 / 300 * ((left_out - left_out.mean()) ** 2).sum())
    assert examples_error([(1.0, a, b)])[0] == pytest.approx(jackknife, rel=0.01)


def test_a_joint_interval_covers_whatever_the_two_errors_are(seed: int) -> None:
    """Seeds and examples: crossed, as in a study. At least 95 of 100, up to the error of the simulation."""
    rng = np.random.default_rng(seed)
    studies, n, examples = 1000, 4, 60
    for of_seeds, of_examples in ((1.0, 0.1), (0.3, 3.0), (0.1, 5.0)):
        by_seed = of_seeds * rng.standard_normal((studies, n, 1))
        d = by_seed + of_examples * rng.standard_normal((studies, 1, examples)) + rng.standard_normal((studies, n, examples))
        covered = 0
        for one in d:
            parts = [(stats.sem(one.mean(1)), n - 1.0), (stats.sem(one.mean(0)), examples - 1.0)]
            covered += abs(one.mean()) < joint_half(parts, alpha=0.05)
        assert covered >= stats.binom.ppf(1e-6, studies, 0.95)


def test_a_repeated_tuning_moves_nothing_where_one_value_is_far_better() -> None:
    assert tuning_spread([1.0, 9.0, 9.0], 0.1) == 0.0
    assert tuning_spread([9.0, 1.0], 0.1, higher=True) == 0.0
    half = tuning_spread([0.0, 1.0], 1.0)
    assert half == pytest.approx(math.sqrt(stats.norm.sf(1 / math.sqrt(2))), rel=0.1), "the other one as often as it looks better"


def test_the_report_has_an_interval_for_other_examples_of_every_contrast(guessed: None, seed: int) -> None:
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
    assert "## Other examples, another tuning" in text
    assert "for these test examples. A table has the standard errors" in " ".join(text.split())
    assert "Other examples, another tuning" in page(results)
    for key in results.result:
        del results.result[key]["examples"]
    assert noise_table(results).rows == [], "nothing is known of examples"
    assert noise_sentence(results).endswith(
        "No other source is known: token_accuracy was not kept by example, or is no mean over examples."
    )


def test_sums_that_do_not_give_the_metric_are_not_used(guessed: None, seed: int) -> None:
    rows = list(np.random.default_rng(seed).random((4, 30)))
    results = answered({"baseline": rows, "a=1": [r + 0.1 for r in rows]})
    for key in results.result:
        results.result[key]["metrics"]["val/token_accuracy"] += 0.01
    [one] = noises(results)
    assert (one.examples, one.missing) == (None, ("token_accuracy is not the mean of what was kept by example",))


def test_examples_that_differ_between_runs_are_told_apart(guessed: None, seed: int) -> None:
    """Between seeds, their noise is in that of the seeds; between variants, nothing is paired."""
    rows = list(np.random.default_rng(seed).random((4, 30)))
    results = answered({"baseline": rows, "a=1": [r + 0.1 for r in rows]})
    keys = results.plan.key_by_variant
    for name, word in (("a=1", "variants have other test examples"), ("baseline", "each seed has test examples of its own")):
        sums = results.result[keys[name, 0]]["examples"]
        sums["token_accuracy"] = [tuple(2 * value for value in column) for column in sums["token_accuracy"]]
        assert noises(results)[0].missing[0].startswith(word)
        assert ("each with test examples of its own" in noise_sentence(results)) == word.startswith("each seed")
