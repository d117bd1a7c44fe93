"""The change of contrasts with the length of texts."""

import math
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attnkit.ablation.figures import lengths
from attnkit.ablation.lengths import lengths_table, slope_of
from attnkit.ablation.report import markdown, page
from attnkit.ablation.results import Results
from attnkit.worker.folder import read_json, write_json
from tests.ablation.conftest import BASE, stored

pytestmark = pytest.mark.usefixtures("guessed", "undrawn")

NAME = "sequence_error_rate"
COUNTS = {1: 40, 2: 25, 4: 10, 8: 5}
FACTORS = {"model.position": ["none", "learned"]}
VALUES: dict[str, list[float | str]] = {name: [*BASE] for name in ("baseline", "position=none", "position=learned")}


def with_slopes(slopes: dict[str, list[float]], values: dict[str, list[float | str]] | None = None, **changes: Any) -> Results:
    """Return results in which the error rate of each run rises by its slope with each doubling of the length."""
    plan = stored(values or VALUES, **{"factors": FACTORS, "lengths": "target"} | changes).plan
    for run in plan.runs:
        file = plan.run_folder(run.key) / "result.json"
        b = slopes[run.variants[0]][run.seed]
        table = [{"length": n, "count": count, NAME: 0.1 + b * math.log2(n)} for n, count in COUNTS.items()]
        write_json(file, {**(read_json(file) or {}), "lengths": {"target": table}})
    return Results(plan)


SLOPES = {
    "baseline": [0.01 * (i % 3) for i in range(6)],
    "position=none": [0.05 + 0.01 * (i % 2) for i in range(6)],
    "position=learned": [0.01 * (i % 3) + 0.002 * (i % 2) for i in range(6)],
}


def test_the_slope_of_a_run_is_that_of_least_squares_over_its_examples() -> None:
    rng = np.random.default_rng(0)
    rows = [{"length": n, "count": count, NAME: float(rng.random())} for n, count in COUNTS.items()]
    x = np.concatenate([[math.log2(row["length"])] * int(row["count"]) for row in rows])
    y = np.concatenate([[row[NAME]] * int(row["count"]) for row in rows])
    assert slope_of(rows, NAME) == pytest.approx(stats.linregress(x, y).slope)


def test_a_contrast_has_the_mean_slope_of_its_seeds_with_an_interval_simultaneous_over_the_table() -> None:
    found = lengths_table(with_slopes(SLOPES))
    assert found.headers[2] == f"change of the difference in {NAME} [interval]"
    for (_, cells), name in zip(found.rows, ("position=none", "position=learned"), strict=True):
        differences = np.subtract(SLOPES[name], SLOPES["baseline"])
        p = stats.ttest_1samp(differences, 0).pvalue * 2
        low, high = stats.ttest_1samp(differences, 0).confidence_interval(1 - 0.05 / 2)
        assert cells[:3] == (name, "baseline", f"{differences.mean():+.3g} [{low:.3g}, {high:.3g}]")
        assert cells[3] == "6"
        assert cells[4] == ("< 0.001" if p < 0.001 else f"{min(1.0, p):.3f}")


def test_both_formats_of_the_report_show_the_slopes() -> None:
    results = with_slopes(SLOPES)
    for text in (markdown(results), page(results)):
        assert "By length of the target" in text
        assert "change of the difference in sequence" in text
    without = with_slopes(SLOPES, lengths=None)
    assert "By length" not in markdown(without) + page(without)


def test_slopes_wait_for_all_runs() -> None:
    results = with_slopes(SLOPES, {**VALUES, "position=none": [*BASE[:5], "failed"]})
    assert not lengths_table(results).rows


def test_a_slope_that_has_no_interval_says_why() -> None:
    results = with_slopes(SLOPES, {**VALUES, "position=none": [*BASE[:5], "diverged"]})
    assert lengths_table(results).rows[0][1][2:] == ("- (1 run diverged)", "6", "")
    same = {**SLOPES, "position=none": SLOPES["baseline"]}
    assert lengths_table(with_slopes(same)).rows[0][1][2] == "- (+0 with every seed, so its noise is unknown)"
    results = with_slopes(SLOPES)
    file = results.plan.run_folder(results.plan.runs[0].key) / "result.json"
    write_json(file, {**(read_json(file) or {}), "lengths": {"target": [{"length": 3, "count": 9, NAME: 0.5}]}})
    assert lengths_table(Results(results.plan)).rows[0][1][2] == "- (not all runs have a value at each of several lengths)"


@pytest.mark.parametrize("rows", [[], [{"length": 0, "count": 3, NAME: 1.0}, {"length": 2, "count": 3, NAME: 1.0}]])
def test_a_single_length_has_no_slope(rows: list[dict[str, float]]) -> None:
    assert slope_of(rows, NAME) is None


def test_an_undefined_value_has_no_slope() -> None:
    for undefined in (math.nan, None):
        assert slope_of([{"length": 1, "count": 3, NAME: undefined}, {"length": 2, "count": 3, NAME: 1.0}], NAME) is None


def test_a_length_without_a_value_is_a_gap_of_the_figure_that_its_title_explains() -> None:
    results = with_slopes(SLOPES)
    file = results.plan.run_folder(results.keys_of("baseline")[0]) / "result.json"
    table = [{"length": n, "count": 100, NAME: None if n == 2 else 0.5} for n in (1, 2, 4)]
    write_json(file, {**(read_json(file) or {}), "lengths": {"target": table}})
    found = Results(results.plan)
    values = {round(length): value for length, value in found.by_length("baseline", "target")[1]}
    assert not math.isnan(values[1])
    assert math.isnan(values[2])
    assert lengths(found).title.endswith("(a gap: no finite value in some run)")
    assert lengths_table(found).rows[0][1][2] == "- (not all runs have a value at each of several lengths)"


def test_a_metric_that_some_runs_lack_has_no_slope() -> None:
    results = with_slopes(SLOPES)
    for key in results.keys_of("position=none"):
        file = results.plan.run_folder(key) / "result.json"
        write_json(file, {**(read_json(file) or {}), "lengths": {"target": [{"length": n, "count": 9, "bleu": 0.5} for n in (1, 2)]}})
    assert lengths_table(Results(results.plan)).rows[0][1][2] == "- (not all runs have a value at each of several lengths)"


def test_a_run_that_diverged_after_the_decision_is_not_left_out_of_a_slope() -> None:
    noisy = [0.01 * (-1) ** i for i in range(6)]
    values: dict[str, list[float | str]] = {
        "baseline": [*BASE],
        "position=none": [*(v + 1 + d for v, d in zip(BASE[:5], noisy, strict=False)), "diverged"],
        "position=learned": [v + 1 + 3 * d for v, d in zip(BASE, noisy, strict=True)],
        "position=rotary": [v + d for v, d in zip(BASE, noisy, strict=True)],
    }
    results = with_slopes(
        {**SLOPES, "position=rotary": SLOPES["position=none"]},
        values,
        factors={"model.position": ["none", "learned", "rotary"]},
        seeds=None,
        min_effect=None,
        decide={"looks": [3, 6], "max_seeds": 6, "power": 0.99},
        compare=[["position=learned", "position=none"]],
    )
    first = results.family[0]
    assert (first.variant, first.verdict, first.pairs, first.diverged) == ("position=none", "worse", 3, (0, 0))
    assert lengths_table(results).rows[0][1][2] == "- (1 run diverged)"
