"""The report: from stored files alone, bold only where a difference is shown, and nothing left out."""

import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.report import latex, markdown, page, write_report
from attnkit.ablation.results import Results
from attnkit.ablation.store import write_json
from tests.ablation.conftest import study

pytestmark = pytest.mark.usefixtures("guessed")
BASE = [2.0, 2.1, 1.9, 2.05, 1.95, 2.0]


def stored(values: dict[str, list[float | str]], *, hashes: dict[int, str] | None = None, **changes: Any) -> Results:
    """Return the results of a study whose runs have these values; a word is a status."""
    plan = study(**{"seeds": 6, "min_effect": 0.05} | changes).plan(Path("runs"))
    plan.lock()
    for run in plan.runs:
        value = values[run.variants[0]][run.seed]
        folder = plan.run_folder(run.key)
        number = None if isinstance(value, str) else value
        curve = [{"tokens": t, "seconds": t / 10, "val/loss": (number or 1.0) + 1 / t} for t in (10, 20, 30)]
        digest = (hashes or {}).get(run.seed, "h") if run.variants[0] == "baseline" else "h"
        result = {"metrics": {"val/loss": number}, "curve": curve, "batch_hash": digest, "parameters": 10}
        status = {"status": "ok"} if number is not None else {"status": value, "kind": "timeout", "message": "took more than 3 s"}
        write_json(folder / "environment.json", {"torch": "2.13"})
        write_json(folder / "result.json", result)
        write_json(folder / "status.json", status)
    return Results(plan)


@pytest.fixture
def results() -> Results:
    better = [v - 0.5 - 0.01 * i for i, v in enumerate(BASE)]
    lost: list[float | str] = ["diverged"] * 6
    return stored({"baseline": list(BASE), "position=none": list(better), "position=learned": lost})


def test_the_verdicts_are_sentences(results: Results) -> None:
    better, worse = results.sentences()
    assert better.startswith(
        "position=none is better than baseline: val/loss -0.525 (95% interval -0.545 to -0.505, adjusted p < 0.001, 6 pairs)"
    )
    assert worse.startswith("position=learned is worse than baseline: (adjusted p 0.031, 0 pairs); 6 of 6 runs diverged")


def test_only_differences_that_are_shown_are_bold() -> None:
    shown = [v - 0.5 - 0.01 * i for i, v in enumerate(BASE)]
    noisy = [v + (0.4 if i % 2 else -0.5) for i, v in enumerate(BASE)]
    text = markdown(stored({"baseline": list(BASE), "position=none": list(shown), "position=learned": list(noisy)}))
    assert "| **position=none** |" in text
    assert "| position=learned |" in text
    assert text.count("**") == 6
    assert "| 6/6 |" in text


def test_runs_without_a_number_are_listed() -> None:
    values: dict[str, list[float | str]] = {
        "baseline": list(BASE),
        "position=none": [*BASE[:5], "failed"],
        "position=learned": [*BASE[:5], "diverged"],
    }
    results = stored(values)
    text = markdown(results)
    assert "- position=none, seed 5: failed (timeout: took more than 3 s)" in text
    assert "- position=learned, seed 5: diverged" in text
    assert "| 5/6 |" in text
    assert "(1 diverged)" in text
    assert not results.complete
    assert "Not every run has an outcome yet" in page(results)
    assert [c.verdict for c in results.comparisons] == ["inconclusive", "inconclusive"]


def test_a_broken_pairing_is_reported() -> None:
    values: dict[str, list[float | str]] = {name: list(BASE) for name in ("baseline", "position=none", "position=learned")}
    results = stored(values, hashes={2: "other"})
    assert results.unpaired() == [2]
    assert "- [ ] all variants saw the same batches in the same order, but not with the seeds [2]" in markdown(results)


def test_the_page_is_whole_and_loads_nothing(results: Results) -> None:
    html = page(results)

    loads: list[str] = []
    ids: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            for name, value in attrs:
                if name in ("src", "href", "xlink:href") and not str(value).startswith("#"):
                    loads.append(str(value))
                if name == "id" and tag == "clippath":
                    ids.append(value)
            assert tag not in ("script", "link", "img", "iframe")

    Reader().feed(html)
    assert loads == []
    assert len(set(ids)) == len(ids)  # or one figure is cut by the clip of another
    assert html.count("<svg") == 4
    assert "position=learned is worse than baseline" in html
    assert '<meta name="viewport"' in html


def test_names_cannot_break_the_page_or_the_table() -> None:
    factors = {"model.x": {"levels": {"<b>&|_%": 1}}}
    name = "x=<b>&|_%"
    results = stored({"baseline": list(BASE), name: list(BASE)}, factors=factors)
    assert "<b>" not in page(results)
    assert r"x=<b>&\|_%" in markdown(results)
    assert r"x=$<$b$>$\&|\_\%" in latex(results)


def test_all_forms_are_written_from_what_is_stored(results: Results) -> None:
    write_report(results, Path("out"))
    assert sorted(p.name for p in Path("out").iterdir()) == ["report.csv", "report.html", "report.md", "report.tex", "runs.csv"]
    assert len(Path("out/runs.csv").read_text().splitlines()) == 19
    rows = Path("out/report.csv").read_text().splitlines()
    assert rows[0].startswith("variant,mean,")
    assert len(rows) == 4
    again = Results(study(seeds=6, min_effect=0.05).plan(Path("runs")))
    assert markdown(again) == markdown(results)


def test_a_frame_has_a_row_for_each_run(results: Results) -> None:
    frame = results.frame()
    assert len(frame) == 18
    assert frame.groupby("variant")["val/loss"].mean()["baseline"] == pytest.approx(2.0)
    assert "<table" in results._repr_html_()
    assert math.isnan(results.values("position=learned")[0] or 0)


def test_interactions_are_reported_for_full_designs() -> None:
    factors = {"model.a": [1], "model.b": [1]}
    values: dict[str, list[float | str]] = {
        "baseline": list(BASE),
        "a=1": [v - 0.2 for v in BASE],
        "b=1": [v - 0.2 for v in BASE],
        "a=1, b=1": [v - 0.9 - 0.001 * i for i, v in enumerate(BASE)],
    }
    text = markdown(stored(values, factors=factors, design="full"))
    assert "## Interactions\n\n- a=1 x b=1: val/loss -0.503 [-0.504, -0.501], adjusted p < 0.001: an interaction" in text
