"""Looks at the seeds so far: further seeds are spent where nothing is decided."""

from pathlib import Path

import pytest

from attnkit.ablation.looks import chance, planned
from attnkit.ablation.planning import make_plan
from attnkit.ablation.question import Look, add_seeds
from attnkit.ablation.report import markdown
from attnkit.ablation.results import Results
from attnkit.ablation.sections import Decide
from attnkit.ablation.statistics import compare
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import BASE, stored, study

pytestmark = pytest.mark.usefixtures("guessed")


def test_a_look_without_a_share_of_alpha_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match="obrien_fleming spends no alpha on the look at 2 seeds: remove it from looks"):
        planned(Decide(max_seeds=2000, looks=(2, 2000), spending="obrien_fleming"), 0.05)


def test_unfinished_seeds_do_not_change_decided_verdicts(results: Results) -> None:
    more = Results(make_plan(add_seeds(study(seeds=6, min_effect=0.05), Path("runs"), 2, spend=0.01), Path("runs")))
    assert [(c.verdict, c.pairs, c.p) for c in more.comparisons] == [(c.verdict, c.pairs, c.p) for c in results.comparisons]
    assert not more.complete


@pytest.mark.usefixtures("undrawn")
def test_there_is_no_verdict_before_all_runs_of_a_comparison_have_ended() -> None:
    """A look that was not planned would have to be paid for; the level of a comparison does not depend on the others."""
    worse = [value + 0.5 + 0.01 * i for i, value in enumerate(BASE)]
    running = ["running"] * 3
    found = stored({"baseline": list(BASE), "position=none": list(worse), "position=learned": [*worse[:3], *running]}).comparisons
    assert [(c.verdict, c.pairs) for c in found] == [("worse", 6), ("inconclusive", 3)]
    assert found[1].reason == "no verdict yet: 3 of 6 seeds ended"


@pytest.mark.usefixtures("undrawn")
def test_a_comparison_outside_the_family_waits_for_its_runs_too() -> None:
    worse = [value + 0.5 + 0.01 * i for i, value in enumerate(BASE)]
    results = stored({"baseline": list(BASE), "position=none": list(worse), "position=learned": [*worse[:3], *["running"] * 3]})
    early = results.compared("position=learned", "position=none")
    assert (early.verdict, early.pairs, early.reason) == ("inconclusive", 3, "no verdict yet: 3 of 6 seeds ended")
    assert results.compared("position=none", "baseline").verdict == "worse"


def decided(values: dict[str, list[float | str]], looks: tuple[int, ...] = (3, 5, 8)) -> Results:
    return stored(values, seeds=None, decide={"power": 0.9, "max_seeds": 8, "looks": looks})


EIGHT: list[float | str] = [2.0, 2.1, 1.9, 2.05, 1.95, 2.0, 2.02, 1.97]


@pytest.mark.usefixtures("undrawn")
def test_seeds_are_spent_on_undecided_contrasts() -> None:
    worse = [float(v) + 0.5 + 0.001 * i for i, v in enumerate(EIGHT)]
    noisy = [float(v) + (0.4 if i % 2 else -0.3) for i, v in enumerate(EIGHT)]
    results = decided({"baseline": EIGHT, "position=none": list(worse), "position=learned": list(noisy)})
    assert [step.look.seeds for step in results.path] == [3, 5, 8]
    assert [[c.variant for c in step.compared] for step in results.path] == [
        ["position=none", "position=learned"],
        *[["position=learned"]] * 2,
    ]
    assert {c.variant: (c.verdict, c.pairs) for c in results.comparisons} == {
        "position=none": ("worse", 3),
        "position=learned": ("inconclusive", 8),
    }
    other = results.compared("position=learned", "position=none")
    assert (other.pairs, "no verdict yet" in other.reason) == (3, False), "of the seeds that the study needs for both"
    seeds = {name: len(results.values(name)) for name in ("baseline", "position=none", "position=learned")}
    assert seeds == {"baseline": 8, "position=none": 3, "position=learned": 8}
    assert results.complete
    assert results.failures() == []
    text = markdown(results)
    assert "; up to 8 seeds; design " in text
    assert "- 3 seeds, alpha " in text
    assert "decided: position=none worse" in text
    assert "- runs that were not needed: 5 of 24" in text
    assert sum(step.look.alpha for step in results.path) == pytest.approx(0.05)
    later = ["pending"] * 4
    unfinished = decided(
        {"baseline": [*EIGHT[:4], *later], "position=none": [*worse[:4], *later], "position=learned": [*noisy[:4], *later]}
    )
    assert not unfinished.complete
    assert "not needed" not in markdown(unfinished)  # not known yet


def test_p_values_and_intervals_of_a_look_agree_at_the_study_level() -> None:
    noisy = [float(v) + 0.1 * i - 0.1 for i, v in enumerate(EIGHT)]
    clear = [float(v) + 0.5 + 0.01 * i for i, v in enumerate(EIGHT)]
    results = decided({"baseline": EIGHT, "position=none": list(noisy), "position=learned": list(clear)})
    shown, open_ = results.comparisons[1], results.comparisons[0]
    last = results.path[-1].look
    assert open_.p is not None
    assert last.alpha < 2 * open_.p < 0.05, "the level of the look is below that of the study"
    for c in (shown, open_):
        assert c.p_adjusted is not None
        assert c.interval is not None
        assert (c.interval[0] > 0) == (c.p_adjusted < 0.05) == (c.verdict == "worse")


def test_a_contrast_unlikely_to_be_decided_is_abandoned() -> None:
    noisy = [float(v) + (40.0 if i % 2 else -39.0) for i, v in enumerate(EIGHT)]
    results = decided({"baseline": EIGHT, "position=none": list(noisy), "position=learned": list(noisy)}, (3, 7, 8))
    assert results.path[-1].look.seeds == 7
    assert results.path[-1].given_up == ("position=none", "position=learned")
    assert "given up" in results.comparisons[0].reason


def test_the_chance_of_deciding_a_percentage_depends_on_reference_noise() -> None:
    last = Look(seeds=6, alpha=0.05)

    def of(reference: list[float], min_effect: float | str) -> float:
        theirs = dict(enumerate(reference))
        runs = {seed: value + 0.03 * (-1) ** seed for seed, value in theirs.items()}
        return chance(compare("a", runs, reference="b", reference_runs=theirs, min_effect=min_effect), last, 1)

    steady, noisy = [1.05] * 4, [1.0, 3.4, -1.3, 1.1]
    assert 0.4 < of(steady, 0.035 * 1.05) < 0.99
    assert of(steady, "3.5%") == pytest.approx(of(steady, 0.035 * 1.05))
    assert of(noisy, "3.5%") < of(noisy, 0.035 * 1.05) == pytest.approx(of(steady, 0.035 * 1.05))


@pytest.mark.usefixtures("undrawn")
def test_seeds_that_were_paid_for_form_another_look() -> None:
    noisy = [float(v) + (0.1 if i % 2 else -0.01) for i, v in enumerate(EIGHT)]
    worse = [float(v) + 0.5 + 0.001 * i for i, v in enumerate(EIGHT)]
    values = {"baseline": EIGHT, "position=none": list(worse), "position=learned": list(noisy)}
    first = stored(values, seeds=3)
    add_seeds(study(seeds=3, min_effect=0.05), Path("runs"), 5, spend=0.01)
    more = stored(values, seeds=8)
    assert [(c.variant, c.verdict, c.pairs) for c in more.comparisons] == [
        ("position=none", "worse", 3),  # as before
        ("position=learned", more.comparisons[1].verdict, 8),
    ]
    assert more.comparisons[1].level == 0.005
    assert more.comparisons[0] == first.comparisons[0]
    assert "the probability of any false verdict is at most 0.06" in markdown(more)
