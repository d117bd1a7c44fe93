"""Sentences of result pages are recomputed: a query that names nothing, or values that are not the report's, fail here."""

import gzip
import importlib.util
import json
from pathlib import Path
from statistics import mean
from types import ModuleType

import numpy as np
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from scipy import stats

from attnkit.ablation import escape

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "results" / "ablations"
STUDIES = sorted(path.stem for path in (ROOT / "recipes" / "ablations").glob("*.yaml") if (PAGES / f"{path.stem}.md").exists())
assert len(STUDIES) >= 5


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "_tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def verdicts() -> ModuleType:
    """The module, which keeps the results of each study that it has read."""
    return loaded("verdicts")


@pytest.fixture(scope="module")
def ablations() -> ModuleType:
    return loaded("ablations")


@pytest.mark.parametrize("study", STUDIES)
def test_every_query_of_a_page_has_an_answer(study: str, verdicts: ModuleType) -> None:
    text = (verdicts.OUT / f"{study}.md").read_text(encoding="utf-8").partition("<!-- Below:")[0]
    assert verdicts.QUERY.search(text)
    answered = verdicts.answered(text, study)
    assert "{{" not in answered, "also no query of another form"


@pytest.mark.parametrize("study", STUDIES)
def test_a_studys_page_matches_the_report_of_the_current_code(
    study: str, verdicts: ModuleType, ablations: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FigureCanvasSVG, "print_svg", lambda self, file, **_: file.write("<svg"))  # the page has names of figures only
    results = verdicts.results(study)
    page = (verdicts.OUT / f"{study}.md").read_text(encoding="utf-8")
    assert page.partition(ablations.MARKER)[2].strip() == ablations.below(study, results).strip()
    assert (verdicts.OUT / study / "report.csv").read_text(encoding="utf-8") == escape.csv(results.summary())
    assert (verdicts.OUT / study / "runs.csv").read_text(encoding="utf-8") == escape.csv(results.frame())


def test_an_answer_follows_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = loaded("verdicts")
    runs, query = verdicts.results("position"), '{{ verdict("position=rotary") }}'
    baseline = runs.values("baseline")
    pairs = {seed: (error, baseline[seed]) for seed, error in runs.values("position=rotary").items()}  # decided after fewer seeds
    effect = mean(error - reference for error, reference in pairs.values())
    assert verdicts.answered(f"x {query}", "position").startswith(f"x better, {100 * effect:+.1f} points [")
    study, *lines = map(json.loads, gzip.decompress((PAGES / "position" / "runs.jsonl.gz").read_bytes()).splitlines())
    keys = runs.plan.key_by_variant
    worse = {keys["position=rotary", seed]: reference + 0.3 for seed, (_, reference) in pairs.items()}
    for line in lines:
        if line.get("key") in worse:  # the first line of the trials has no key
            line["result"]["metrics"][study["study"]["metric"]] = worse[line["key"]]
    (tmp_path / "position").mkdir()
    edited = "".join(f"{json.dumps(line)}\n" for line in (study, *lines))
    (tmp_path / "position" / "runs.jsonl.gz").write_bytes(gzip.compress(edited.encode()))
    monkeypatch.setattr(verdicts, "OUT", tmp_path)
    for cached in (verdicts.results, verdicts.family):
        cached.cache_clear()
    assert verdicts.answered(f"x {query}", "position").startswith("x worse, +30.0 points [")
    for wrong in ('verdict("position=rotari")', 'mean("position=rotari")', 'verdict("position=rotary", 3)', 'right("baseline")'):
        with pytest.raises(KeyError, match=r"position=rotari|does not take"):
            verdicts.answered(f"{{{{ {wrong} }}}}", "position")


def test_queries_about_runs_are_answered(verdicts: ModuleType) -> None:
    assert verdicts.answered('{{ above("distance=16", 0.99) }}', "mixers_recall") == "3"
    assert verdicts.answered('{{ right("position=rotary", 17, 24) }}', "position") == "17.9 %"
    assert verdicts.answered('{{ tuned("residual=none") }}', "residual_norm") == "warmup_steps=0.5"
    assert verdicts.answered('{{ mean("start=pretrained", "test/title/rougeL") }}', "t5_pretraining") == "1.9"
    assert verdicts.answered('{{ mean("baseline", "test/module/sequence_error_rate") }}', "t5_pretraining") == "66.0 %"
    assert verdicts.answered('{{ runs("pattern=convolution") }}', "mixers_recall") == "38.0 to 38.8 %"
    assert verdicts.answered('{{ size("pattern=state_space") }}', "mixers_language") == "21 %"
    assert verdicts.answered("{{ frail() }}", "transformer_2017") == "`D label_smoothing=0`"
    with pytest.raises(KeyError, match="does not take"):
        verdicts.answered("{{ frail() }}", "t5_pretraining")  # no source but seeds is known


def test_a_gain_in_another_metric_gets_a_paired_t_interval(verdicts: ModuleType) -> None:
    metric = "test/title/loss"
    ours, theirs = (verdicts._metrics("t5_pretraining", v, metric) for v in ("start=pretrained", "baseline"))
    found = stats.ttest_rel(ours, theirs)
    low, high = found.confidence_interval()
    text = verdicts.answered(f'{{{{ gain("start=pretrained", "{metric}") }}}}', "t5_pretraining")
    assert text == f"{mean(ours) - mean(theirs):.3f} [{low:.3f}, {high:.3f}]"


def test_only_fractions_are_shown_as_percentages(verdicts: ModuleType) -> None:
    loss, accuracy = (verdicts.answer(study, "mean", "baseline") for study in ("mixers_language", "mixers_recall"))
    assert (loss, accuracy) == ("3.689", "100.0 %")
    assert verdicts.answer("mixers_language", "verdict", "pattern=gru").startswith("inconclusive, -0.021 [-0.042, 0.001], p ")


def test_pages_that_compare_two_studies_agree_with_both(verdicts: ModuleType) -> None:
    language, recall = map(verdicts.family, ("mixers_language", "mixers_recall"))
    found = {v: [c.verdict, *(recall[f"{v} at distance={d}"].verdict for d in (0, 16))] for v, c in language.items()}
    assert found["pattern=convolution"] == ["better", "worse", "worse"]
    assert found["pattern=linear_attention"] == ["worse", "inconclusive", "inconclusive"]
    assert found["pattern=gated_delta"] == ["worse", "equivalent", "inconclusive"]
    for hybrid in ("pattern=convolution + attention", "pattern=state_space + attention"):
        assert found[hybrid] == ["better", "equivalent", "inconclusive"]
    beyond, within = map(verdicts.family, ("position", "position_within"))
    both = {v.removeprefix("position="): (c.verdict, within[v].verdict) for v, c in beyond.items()}
    assert both["rotary"] == both["relative"] == ("better", "equivalent"), "equivalent to sinusoidal ones here, and better beyond"
    assert both["alibi"] == ("better", "worse"), "ALiBi is better there, and worse here"
    assert both["learned"][0] == both["none"][0] == "equivalent", "equivalent in failing"


def test_early_rankings_are_compared_with_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_tools"))
    found = loaded("early_orders")
    assert found.agreements("residual_norm") == [(5, 6), (5, 6), (6, 6)]
    assert found.agreements("position") == [(1, 3)] * 3, "longer commands than those of validation"
    counts = np.sum([found.agreements(study) for study in STUDIES], axis=0).tolist()
    page = " ".join((ROOT / "docs" / "explanation" / "statistics.md").read_text(encoding="utf-8").split())
    (fifth, early), (half, middle), (end, known) = counts
    assert found.agreements("mixers_language")[:2] == [(0, 0), (0, 0)], "its only validation is the last"
    assert f"of their {known} significant differences between variants, {end} have the same sign in the last validation" in page
    assert f"{fifth} of the {early} that have a validation near a fifth of the training" in page
    assert f"{half} of the {middle} that have one near half of it" in page


def test_the_statistics_page_counts_the_runs_saved_by_looks(verdicts: ModuleType) -> None:
    found = [one for one in map(verdicts.results, STUDIES) if one.study.decide]
    assert not any(one.open for one in found)
    contrasts, runs, most = (sum(map(len, of)) for of in ([o.family for o in found], [o.runs for o in found], [o.plan.runs for o in found]))
    page = " ".join((ROOT / "docs" / "explanation" / "statistics.md").read_text(encoding="utf-8").split())
    assert f"decided all of their {contrasts} contrasts with {runs} of the {most} runs" in page
