"""The figures of a report."""

from itertools import combinations
from pathlib import Path

import pytest

from attnkit.ablation.canvas import Line, lines, look
from attnkit.ablation.figures import VERDICT_COLOURS, figures, forest
from attnkit.ablation.plan import stored_plan
from attnkit.ablation.results import Results
from tests.ablation.conftest import BASE, stored, study

pytestmark = pytest.mark.usefixtures("guessed")


def test_lengths_are_drawn_on_request(results: Results) -> None:
    assert results.by_length("baseline", "target") == ("sequence_error_rate", [(n, pytest.approx(n / 10)) for n in (1, 2, 4)])
    assert results.by_length("baseline", "source") == ("", [])
    assert not any(figure.name == "lengths" for figure in figures(results))
    planned = stored_plan(study(seeds=6, min_effect=0.05, lengths="target"), Path("runs"))
    assert planned is not None
    [drawn] = [figure for figure in figures(Results(planned)) if figure.name == "lengths"]
    assert drawn.svg is not None
    assert "tokens of the target" in drawn.svg


def test_batches_of_numbers_have_neither_a_speed_nor_curves_by_tokens(results: Results) -> None:
    for result in results.result.values():
        result |= {"tokens": 0, "tokens_per_second": 0.0, "curve": [{**point, "tokens": 0} for point in result["curve"]]}
    assert results.mean_cost("baseline", "tokens_per_second") is None
    assert {figure.name for figure in figures(results)} >= {"curves_seconds", "cost_quality"}
    assert not any(figure.name == "curves_tokens" for figure in figures(results))


def test_rare_lengths_are_grouped(results: Results) -> None:
    rows = [{"length": n, "count": count, "token_error_rate": 0.5} for n, count in ((1, 3), (2, 500), (3, 40), (5, 2), (9, 1))]
    for result in results.result.values():
        result["lengths"] = {"source": rows}
    name, points = results.by_length("baseline", "source")
    assert name == "token_error_rate"
    assert [value for _, value in points] == pytest.approx([0.5] * 2)
    assert [length for length, _ in points] == pytest.approx([(3 + 1000) / 503, (120 + 10 + 9) / 43])


def test_figures_state_which_runs_their_means_lack() -> None:
    values: dict[str, list[float | str]] = {
        "baseline": list(BASE),
        "position=none": ["diverged", *BASE[1:]],
        "position=learned": list(BASE),
    }
    results = stored(values)
    [run] = [run for run in results.plan.runs if (run.variants[0], run.seed) == ("position=none", 0)]
    results.result[run.key]["curve"] = [{"tokens": 10, "seconds": 1.0, "val/loss": None}]
    svg = {figure.name: figure.svg or "" for figure in figures(results)}
    for name in ("curves_tokens", "curves_seconds", "cost_quality"):
        assert "position=none (5 runs, 1 diverged)" in " ".join(svg[name].split()), name
        assert "baseline (" not in svg[name]


def test_figures_show_long_names_in_full() -> None:
    factors = {"model.residual": ["sandwich_norm"], "model.norm": ["rms_norm"], "model.num_layers": [6]}
    parts = [f"{name.rpartition('.')[2]}={level}" for name, [level] in factors.items()]
    names = [", ".join(part for part in parts if part in chosen) for n in (1, 2, 3) for chosen in combinations(parts, n)]
    results = stored({"baseline": list(BASE), **{name: list(BASE) for name in names}}, factors=factors, design="full_factorial")
    svg = {figure.name: figure.svg or "" for figure in figures(results)}
    assert [svg["paired"].count(part) for part in parts] == [4, 4, 4], "each level is in half of the eight variants"
    assert [svg["forest"].count(part) for part in parts] == [3, 3, 3], "a main effect, and two interactions"


def test_a_forest_plot_does_not_call_an_interaction_better() -> None:
    factors = {"model.norm": ["rms_norm"], "model.num_layers": [6]}
    values = {"baseline": 0.0, "norm=rms_norm": 0.0, "num_layers=6": 0.0, "norm=rms_norm, num_layers=6": -9.0}
    results = stored({name: [x + shift for x in BASE] for name, shift in values.items()}, factors=factors, design="full_factorial")
    [found] = [c for c in results.family if c.kind == "interaction"]
    assert found.verdict == "better", "the sign alone"
    svg = forest(results).svg or ""
    assert "vs the sum of the two" in " ".join(svg.split())
    assert "vs none" not in svg
    assert VERDICT_COLOURS["interaction"].lower() in svg.lower()


@pytest.mark.parametrize("installed", [True, False])
def test_names_in_any_script_are_drawn_without_warnings(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A font that has the characters is requested beside matplotlib's own; without one, the text is left to the reader's browser."""
    monkeypatch.setattr("attnkit.ablation.canvas.families", lambda characters: (["DejaVu Sans", *["DejaVu Serif"] * installed], ""))
    drawn = lines("name", "title", [Line("기준 모델", [(0.0, 1.0), (1.0, 2.0)], look(0, 0, 0))], "토큰", "val/loss", height=3.0)
    assert drawn.svg is not None
    assert "기준 모델" in drawn.svg
    assert ("DejaVu Serif" in drawn.svg) == installed
