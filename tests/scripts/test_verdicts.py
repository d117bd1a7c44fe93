"""Sentences of result pages are recomputed: a query that names nothing, or values that are not the report's, fail here."""

import csv
import gzip
import importlib.util
import json
from pathlib import Path
from statistics import mean
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results" / "ablations"
STUDIES = sorted(path.stem for path in (ROOT / "recipes" / "ablations").glob("*.yaml") if (PAGES / f"{path.stem}.md").exists())
assert len(STUDIES) >= 5


@pytest.fixture
def verdicts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("verdicts", ROOT / "docs" / "_tools" / "verdicts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("study", STUDIES)
def test_every_query_of_a_page_has_an_answer(study: str, verdicts: ModuleType) -> None:
    text = (verdicts.OUT / f"{study}.md").read_text(encoding="utf-8").partition("<!-- Below:")[0]
    assert verdicts.QUERY.search(text)
    answered = verdicts.answered(text, study)
    assert "{{" not in answered, "also no query of another form"


@pytest.mark.parametrize("study", STUDIES)
def test_the_values_of_runs_are_those_of_the_report(study: str, verdicts: ModuleType) -> None:
    with (verdicts.OUT / study / "report.csv").open(encoding="utf-8") as file:
        means = {row["variant"].lstrip("'"): float(row["mean"]) for row in csv.DictReader(file)}
    found = {name: mean(v for v in runs.values() if v is not None) for name, runs in verdicts.values(study).items()}
    assert found == pytest.approx(means, abs=1e-6)


def test_an_answer_follows_the_data(verdicts: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs, query = verdicts.values("position"), '{{ verdict("position=rotary") }}'
    pairs = {seed: (error, runs["baseline"][seed]) for seed, error in runs["position=rotary"].items()}  # decided after fewer seeds
    effect = mean(error - reference for error, reference in pairs.values())
    assert verdicts.answered(f"x {query}", "position").startswith(f"x better, {100 * effect:+.1f} points [")
    study, *lines = map(json.loads, gzip.decompress((PAGES / "position" / "runs.jsonl.gz").read_bytes()).splitlines())
    keys = verdicts.results("position").plan.key_by_variant
    worse = {keys["position=rotary", seed]: reference + 0.3 for seed, (_, reference) in pairs.items()}
    for line in lines:
        if line["key"] in worse:
            line["result"]["metrics"][study["study"]["metric"]] = worse[line["key"]]
    (tmp_path / "position").mkdir()
    edited = "".join(f"{json.dumps(line)}\n" for line in (study, *lines))
    (tmp_path / "position" / "runs.jsonl.gz").write_bytes(gzip.compress(edited.encode()))
    monkeypatch.setattr(verdicts, "OUT", tmp_path)
    for cached in (verdicts.results, verdicts.values, verdicts.family):
        cached.cache_clear()
    assert verdicts.answered(f"x {query}", "position").startswith("x worse, +30.0 points [")
    with pytest.raises(KeyError, match="position=rotari"):
        verdicts.answered('{{ verdict("position=rotari") }}', "position")


def test_only_fractions_are_written_in_per_cent(verdicts: ModuleType) -> None:
    loss, accuracy = (verdicts.answer(study, "mean", "baseline") for study in ("mixers_language", "mixers_recall"))
    assert (loss, accuracy) == ("3.689", "100.0 %")
    assert verdicts.answer("mixers_language", "verdict", "pattern=gru").startswith("inconclusive, -0.021 [-0.042, 0.001], p ")
