"""Pairs of variants that a study declares in addition to the contrasts of its design."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.across import Across
from attnkit.ablation.answers import packed
from attnkit.ablation.published import published
from attnkit.ablation.question import question_of
from attnkit.ablation.report import markdown
from attnkit.ablation.results import Results
from attnkit.ablation.statistics import compare, judge
from attnkit.cli.ablate import ablate
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import BASE, stored, study

pytestmark = pytest.mark.usefixtures("guessed", "undrawn")

FACTORS = {"model.position": ["none", "learned"]}
PAIR = ["position=learned", "position=none"]
VALUES: dict[str, list[float | str]] = {
    "baseline": [*BASE],
    "position=none": [v + 0.2 + 0.01 * (-1) ** i for i, v in enumerate(BASE)],
    "position=learned": [v + 0.5 for v in BASE],
}


def of(**changes: Any) -> Results:
    """Return stored results in which every variant is worse than the one before."""
    return stored(VALUES, **{"factors": FACTORS, "compare": [PAIR]} | changes)


def test_a_pair_joins_the_family() -> None:
    results = of()
    ours = {name: dict(enumerate(values)) for name, values in VALUES.items()}
    three = [("position=none", "baseline"), ("position=learned", "baseline"), ("position=learned", "position=none")]
    expected = judge([compare(a, ours[a], reference=b, reference_runs=ours[b]) for a, b in three])
    assert [c.variant for c in results.family] == ["position=none", "position=learned", "position=learned vs position=none"]
    assert [(c.mean, c.p, c.p_adjusted, c.interval, c.verdict) for c in results.family] == [
        (pytest.approx(c.mean), pytest.approx(c.p), pytest.approx(c.p_adjusted), pytest.approx(c.interval), c.verdict) for c in expected
    ]
    assert of(name="t", compare=None).family[0].p_adjusted == pytest.approx(2 / 3 * (results.family[0].p_adjusted or 0))
    assert results.by_variant.keys() == {"position=none", "position=learned"}  # rows of the main table keep their own reference


def test_the_report_shows_a_pair_with_its_reference() -> None:
    text = markdown(of())
    assert "position=learned is worse than position=none: val/loss +0.3" in text.replace("\\", "")
    assert "The contrasts include 1 comparison of two variants that the study declares in addition to its design." in text
    assert "## Further comparisons" in text
    assert "## Effects" not in text
    assert "The study has 3 contrasts, as one family" in text
    assert "Further comparisons" not in markdown(of(name="t", compare=None))


def test_a_pair_of_equal_compositions_is_no_hypothesis() -> None:
    same = {"model.position": "none"}
    values: dict[str, list[float | str]] = {"baseline": [*BASE], "a": [*BASE], "b": [*BASE]}
    results = stored(values, factors=None, design="list", variants={"a": same, "b": same}, compare=[["b", "a"]])
    assert [c.variant for c in results.family] == ["a", "b"]
    assert "b is the same composition as a" in results.sentences()


def test_a_full_factorial_compares_a_pair_beside_its_effects() -> None:
    factors = {"model.position": ["none"], "model.deep": [1]}
    values: dict[str, list[float | str]] = {
        name: [v + 0.1 * i for v in BASE] for i, name in enumerate(["baseline", "deep=1", "position=none", "position=none, deep=1"])
    }
    pair = ["position=none", "deep=1"]
    results = stored(values, factors=factors, design="full_factorial", compare=[pair])
    assert [c.variant for c in results.family] == ["position=none", "deep=1", "position=none x deep=1", "position=none vs deep=1"]
    assert results.family[-1].mean == pytest.approx(0.1)
    assert any(s.startswith("the variant position=none is worse than the variant deep=1") for s in results.sentences())
    assert "| **the variant position=none** | the variant deep=1 |" in markdown(results).replace("\\", "")


def test_a_published_table_keeps_the_reference_of_the_design() -> None:
    rows = {"baseline": {"base": 1.0}, "position=none": {"none": 2.0}, "position=learned": {"learned": 1.5}}
    changes = {"published": {"source": "A", "better": "lower", "rows": rows}}
    with_pair, without = published(of(**changes)), published(of(name="t", compare=None, **changes))
    assert with_pair is not None
    assert without is not None
    assert with_pair.table == without.table


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([["position=learnt", "baseline"]], r"compare: no variant 'position=learnt'. Did you mean 'position=learned'"),
        ([["baseline", "baseline"]], "'baseline' cannot be compared with itself"),
        ([["position=none", "baseline"]], "'position=none' and 'baseline' are compared already, by the contrast 'position=none'"),
        ([["baseline", "position=none"]], "are compared already"),
        ([PAIR, PAIR], "are compared already, by the contrast 'position=learned vs position=none'"),
        ([PAIR, PAIR[::-1]], "are compared already"),
        ([["baseline"]], "compare"),
        ("baseline", "compare"),
        ([["baseline", "position=none", "position=learned"]], "compare"),
    ],
)
def test_mistakes_are_refused_before_the_first_run(pairs: Any, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        study(factors={"model.stack.position": ["none", "learned"]}, compare=pairs).plan()


def test_a_pair_with_a_variant_that_is_left_out_is_refused() -> None:
    exclude = [{"when": {"position": "none"}, "reason": "measured already"}]
    with pytest.raises(ConfigurationError, match="'position=none' is left out, because: measured already; remove its pairs"):
        study(exclude=exclude, compare=[PAIR]).plan()


def test_questions_recorded_before_pairs_existed_stay_the_same() -> None:
    assert "compare" not in question_of(study())
    assert question_of(study(compare=[PAIR]))["compare"] == [PAIR]


def test_the_trials_of_tuning_have_no_pairs(folder: Path) -> None:
    found = study(compare=[PAIR], tune={"grid": {"model.optimizer.lr": [1e-3, 3e-3]}, "seeds": 2}).plan()
    assert found.trials is not None
    assert found.trials.study.compare == ()


def test_a_default_effect_that_cannot_be_estimated_is_left_out_and_named() -> None:
    factors = {"model.position": ["none"], "model.deep": [1]}
    exclude = [{"when": {"position": "none", "deep": 1}, "reason": "measured already"}]
    values: dict[str, list[float | str]] = {name: [*BASE] for name in ("baseline", "deep=1", "position=none")}
    results = stored(values, factors=factors, design="full_factorial", exclude=exclude)
    assert [c.variant for c in results.family] == ["position=none where deep=baseline", "deep=1 where position=baseline"]
    assert "position x deep cannot be estimated, as variants are left out" in markdown(results)
    with pytest.raises(ConfigurationError, match="'position x deep' cannot be estimated"):
        study(factors={"model.stack.position": ["none"], "model.deep": [1]}, design="full_factorial", exclude=exclude,
              effects=["position x deep"]).plan()  # fmt: skip


def test_a_design_none_of_whose_effects_can_be_estimated_is_refused() -> None:
    exclude = [{"when": when, "reason": "-"} for when in ({"position": "none", "deep": "baseline"}, {"position": "baseline", "deep": 1})]
    changes: dict[str, Any] = {"factors": {"model.position": ["none"], "model.deep": [1]}, "design": "full_factorial", "exclude": exclude}
    with pytest.raises(
        ConfigurationError, match="none of 'position', 'deep', 'position x deep' can be estimated, as variants are left out"
    ):
        study(**changes).plan()


@pytest.mark.parametrize("pairs", [[["a", "b"]], [["a", "b vs c"], ["a vs b", "c"]]])
def test_two_contrasts_of_one_name_are_refused(pairs: list[list[str]]) -> None:
    variants = {name: {"model.deep": i} for i, name in enumerate(["a", "b", "c", "a vs b", "b vs c"])}
    with pytest.raises(ConfigurationError, match=r"two contrasts would be named 'a vs b.*': give a variant or a level another name"):
        study(factors=None, design="list", variants=variants, compare=pairs).plan()


def test_a_table_over_tasks_names_the_side_of_a_pair() -> None:
    whole = study(factors=FACTORS, seeds=2, compare=[PAIR], tasks={"t": {}, "u": {"set": {"model.deep": 2}}})
    results = [(cell, Results(cell.study.plan(Path("runs")))) for cell in whole.cells()]
    rows = [cells[:2] for _, cells in Across(whole, results).aggregates_table().rows]
    assert rows == [("position=none", "baseline"), ("position=learned", "baseline"), ("position=learned", "position=none")]


def test_the_command_says_whether_the_study_declares_the_pair(capsys: pytest.CaptureFixture[str]) -> None:
    for pairs, said in (
        ([PAIR], "the verdict of the study is that on 'position=learned vs position=none'"),
        (None, "is not in the study's"),
    ):
        results = of(compare=pairs)
        Path("runs.jsonl.gz").write_bytes(packed(results.plan, results.answers))
        assert ablate(["compare", "runs.jsonl.gz", *PAIR[::-1]]) == 0
        assert said in capsys.readouterr().out
        shutil.rmtree("runs")
