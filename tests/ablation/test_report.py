"""The report: made from stored files alone, bold only where a difference is shown, and complete."""

import math
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from scipy import stats

from attnkit.ablation.certificate import certificate
from attnkit.ablation.discard import restart, set_aside
from attnkit.ablation.fairness import checklist
from attnkit.ablation.figures import forest
from attnkit.ablation.methods import methods
from attnkit.ablation.noise import saved_by_pairing
from attnkit.ablation.plan import Tuned, stored_plan
from attnkit.ablation.report import ENVIRONMENT, latex, markdown, page, write_report
from attnkit.ablation.results import Results
from attnkit.ablation.sections import Tune
from attnkit.ablation.statistics import power
from attnkit.ablation.tables import Table, effects_table
from attnkit.cli.ablate import ablate
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import BASE, STUDY, stored, study

pytestmark = pytest.mark.usefixtures("guessed")


def test_verdicts_are_sentences(results: Results) -> None:
    better, worse = results.sentences()
    assert better.startswith(
        "position=none is better than baseline: val/loss -0.525 (95% interval -0.549 to -0.501, adjusted p < 0.001, 6 pairs)"
    )
    assert worse.startswith("position=learned is worse than baseline: (adjusted p 0.002, 0 pairs); 6 of 6 runs diverged")


@pytest.mark.usefixtures("undrawn")
def test_only_established_differences_are_bold() -> None:
    shown = [v - 0.5 - 0.01 * i for i, v in enumerate(BASE)]
    noisy = [v + (0.4 if i % 2 else -0.5) for i, v in enumerate(BASE)]
    text = markdown(stored({"baseline": list(BASE), "position=none": list(shown), "position=learned": list(noisy)}))
    assert "| **position=none** |" in text
    assert "| position=learned |" in text
    assert text.count("**") == 6
    assert "| 6/6 |" in text


@pytest.mark.usefixtures("undrawn")
def test_runs_without_a_value_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "Not every run is finished yet" in page(results)
    assert "Not every run is finished yet" in text
    assert [c.verdict for c in results.comparisons] == ["inconclusive", "inconclusive"]
    packed = write_report(results).with_name("runs.jsonl.gz")
    assert ablate(["report", str(packed)]) == 1
    assert capsys.readouterr().out.startswith("Not every run is finished yet. There are verdicts only where all runs of a comparison are")


@pytest.mark.usefixtures("undrawn")
def test_a_broken_pairing_is_reported() -> None:
    values: dict[str, list[float | str]] = {name: list(BASE) for name in ("baseline", "position=none", "position=learned")}
    results = stored(values, hashes={2: "other"})
    assert results.unpaired() == [2]
    assert "- [ ] all variants saw the same batches in the same order, by a hash of every batch, but not with the seeds [2]" in markdown(
        results
    )


def test_the_page_is_self_contained(results: Results) -> None:
    html = page(results)

    loads: list[str] = []
    ids: list[str] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: Any) -> None:
            if (tag, attrs) == ("link", [("rel", "icon"), ("href", "data:,")]):
                return  # no icon; otherwise a browser asks the server for one
            for name, value in attrs:
                if name in ("src", "href", "xlink:href") and not str(value).startswith("#"):
                    loads.append(str(value))
                if name == "id" and tag == "clippath":
                    ids.append(value)
            assert tag not in ("script", "link", "img", "iframe")

    Reader().feed(html)
    assert loads == []
    assert len(set(ids)) == len(ids)  # otherwise, the clip path of one figure would cut another
    assert html.count("<svg") == 5
    assert "position=learned is worse than baseline" in html
    assert '<meta name="viewport"' in html
    assert '<link rel="icon" href="data:,">' in html


@pytest.mark.usefixtures("undrawn")
def test_means_over_other_seeds_than_the_differences_are_flagged() -> None:
    """The second variant was decided after 3 seeds and has had none since; all runs of the baseline are in its mean."""
    told = "a difference is over the seeds with which it was decided, so it is not always the difference of two means"
    values: dict[str, list[float | str]] = {name: list(BASE) for name in ("baseline", "position=none", "position=learned")}
    whole = stored(values)
    assert told not in markdown(whole)
    for seed in (3, 4, 5):
        (whole.plan.run_folder(whole.plan.key_by_variant["position=learned", seed]) / "result.json").unlink()
        (whole.plan.run_folder(whole.plan.key_by_variant["position=learned", seed]) / "status.json").unlink()
    fewer = Results(whole.plan)
    assert [c.pairs for c in fewer.comparisons] == [6, 3]
    assert told in markdown(fewer)
    assert told in page(fewer)


def test_special_characters_in_names_are_escaped() -> None:
    factors = {"model.x": {"levels": {"<u>&|_%$`": 1}}}
    name = "x=<u>&|_%$`"
    results = stored({"baseline": list(BASE), name: list(BASE)}, factors=factors)
    assert "<u>" not in page(results)
    assert r"x=&lt;u>&\|\_%\$\`" in markdown(results)
    assert "<u>" not in markdown(results)
    assert r"x=$<$u$>$\&\textbar{}\_\%\$\textasciigrave{}" in latex(results)


def test_every_format_is_written_from_stored_files(results: Results) -> None:
    write_report(results, Path("out"))
    assert sorted(p.name for p in Path("out").iterdir()) == [
        *("figures", "report.csv", "report.html", "report.md", "report.tex", "runs.csv", "runs.jsonl.gz")
    ]
    assert all(f"](figures/{p.name})" in Path("out/report.md").read_text() for p in Path("out/figures").iterdir())
    assert len(Path("out/runs.csv").read_text().splitlines()) == 19
    rows = Path("out/report.csv").read_text().splitlines()
    assert rows[0].startswith("variant,reference,mean,difference,")
    assert len(rows) == 4
    again = Results(study(seeds=6, min_effect=0.05).plan(Path("runs")))
    assert markdown(again) == markdown(results)


def test_a_report_does_not_inspect_recipes(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.ablation.planning.inspect", None)
    planned = stored_plan(study(seeds=6, min_effect=0.05), Path("runs"))
    assert planned is not None
    assert page(Results(planned)) == page(results)


@pytest.mark.parametrize(
    "changes", [{"min_effect": 0.1}, {"seeds": 7}, {"metric": "test/loss"}, {"name": "other"}, {"recipe": "synthetic/decoder"}]
)
def test_a_stored_plan_of_another_study_is_ignored(results: Results, changes: dict[str, Any]) -> None:
    assert stored_plan(study(**{"seeds": 6, "min_effect": 0.05} | changes), Path("runs")) is None


@pytest.mark.usefixtures("undrawn")
def test_presentation_settings_may_change_after_the_first_results(results: Results) -> None:
    published = {"source": "A 2020", "better": "higher", "rows": {"baseline": {"base": 20}}}
    planned = stored_plan(study(seeds=6, min_effect=0.05, lengths="target", published=published), Path("runs"))
    assert planned is not None
    planned.lock()
    assert "## Comparison with the published table\n\nA 2020." in markdown(Results(planned))


@pytest.mark.usefixtures("undrawn")
def test_the_table_and_the_frame_include_costs(results: Results) -> None:
    assert "| baseline | 40 s | 12.3 k | 2.5 GB | 10 | 60.0 | 30.0 k |" in markdown(results)
    summary = results.summary().set_index("variant")
    assert summary.loc["baseline", "flops"] == 30_000
    assert summary.loc["position=none", "difference"] == pytest.approx(-0.525)
    assert summary.loc["position=learned", "difference"] is None
    results.result[results.plan.runs[0].key]["metrics"] |= {"memory": 7.0, "seed": 8.0}  # metrics of a user's module
    row = results.frame().loc[0]
    assert [row["memory"], row["seed"], row["metric memory"], row["metric seed"]] == [2.5e9, 0, 7.0, 8.0]


def test_latex_contains_the_chosen_columns(results: Results) -> None:
    text = latex(results, ("variant", "verdict", "flops"))
    assert r"\begin{tabular}{lrr}" in text
    assert r"variant & verdict & FLOPs \\" in text
    assert r"\textbf{position=none} & \textbf{better} & 30.0 k \\" in text
    assert latex(results).count("&") == 4 * 4, "by default five columns, which fit a page"
    with pytest.raises(ConfigurationError, match=r"no column 'verdit'\. Did you mean 'verdict'"):
        latex(results, ("variant", "verdit"))


@pytest.mark.usefixtures("undrawn")
def test_no_table_of_the_page_is_wider_than_eight_columns(results: Results) -> None:
    """Eight fit on A4 paper; at 375 px, every cell is a line labelled by its header."""
    html = page(results)
    tables = html.split("<thead")[1:]
    assert max(table.partition("</thead>")[0].count("<th ") for table in tables) <= 8
    assert html.count("<td ") == html.count('<td role="cell" data-label="')
    assert "prefers-color-scheme: dark" in html
    assert "@media print" in html


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "s.yaml", "position=none", "position=none"], "both variants are 'position=none': name two"),
        (["run", "s.yaml", "--gpus", "0,x"], r"--gpus takes the numbers of GPUs, as in 0,1; not '0,x'"),
    ],
)
def test_wrong_arguments_are_rejected(results: Results, arguments: list[str], message: str) -> None:
    Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": 6, "min_effect": 0.05}))
    with pytest.raises(ConfigurationError, match=message):
        ablate([*arguments, "--folder", "runs"])


def test_a_percentage_refers_to_the_baseline_even_for_interactions_without_it() -> None:
    factors = {"model.a": [1], "model.b": [1], "model.c": [1]}
    parts = ("a=1", "b=1", "c=1")
    names = [", ".join(part for part in parts if part in chosen) for n in (1, 2, 3) for chosen in combinations(parts, n)]
    kept = [name for name in names if name != "a=1, b=1"]
    more = {"design": "full_factorial", "effects": ["a x b"], "factors": factors, "min_effect": "10%"}
    more["exclude"] = [{"when": {"a": "1", "b": "1", "c": "baseline"}, "reason": "not asked"}]
    results = stored({"baseline": [2.0 + v for v in BASE], **{name: [*BASE] for name in kept}}, **more)
    [c] = results.family
    assert "baseline" not in results.contrasts[c.variant].weights
    assert c.min_effect == pytest.approx(0.1 * (2.0 + sum(BASE) / len(BASE)))


def test_restarting_a_run_removes_a_link_to_checkpoints_but_not_its_target(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "last.ckpt").touch()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    restart(tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert (tmp_path / "disk" / "last.ckpt").exists()


def test_a_replaced_run_moves_to_an_unused_folder(results: Results) -> None:
    for number in (2, 1):
        Path(f"runs/replaced/{results.plan.runs[0].key}-{number}").mkdir(parents=True)
        Path(f"runs/replaced/{results.plan.runs[0].key}-{number}/x").touch()
    shutil.rmtree(f"runs/replaced/{results.plan.runs[0].key}-1")
    set_aside(results.plan, results.plan.runs[0])
    assert Path(f"runs/replaced/{results.plan.runs[0].key}-1/status.json").exists()


def test_the_frame_has_one_row_per_run(results: Results) -> None:
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
    text = markdown(stored(values, factors=factors, design="full_factorial"))
    assert "| a=1 x b=1 | the sum of the two effects | -0.50" in text
    assert "| an interaction | " in text
    assert "2 better, 0 worse, 0 equivalent, 0 inconclusive; of 1 interactions: 1 shown, 0 too small to matter, 0 inconclusive:" in text
    assert "| **a=1** | a=baseline | **-0.451 [" in text, "averaged over b"
    assert "| a=1 | 1.8 |  |  | - |" in text, "the row of the variant has no difference: that of its name is a main effect"
    only = stored(values, factors=factors, design="full_factorial", effects=["a"], name="t")
    assert [cells[0] for _, cells in effects_table(only).rows] == ["a=1"]
    assert [row["difference"] for row in only.summary().to_dict("records")] == [None] * 4


@pytest.mark.usefixtures("undrawn")
def test_tuning_has_a_checklist_item_and_a_table(results: Results) -> None:
    assert "- [ ] every variant was tuned with the same number of trials: nothing was tuned" in markdown(results)
    lr = "model.optimizer.lr"
    tune = Tune(grid={lr: (0.1, 0.2, 0.3)}, seeds=2)
    found = {
        name: Tuned(chosen={lr: best}, means=(({lr: 0.1}, 2.0), ({lr: 0.2}, 1.5), ({lr: 0.3}, None)), edges=(lr,) if best == 0.1 else ())
        for name, best in (("baseline", 0.2), ("position=none", 0.2), ("position=learned", 0.1))
    }
    text = markdown(Results(replace(results.plan, study=replace(results.study, tune=tune), tuned=found)))
    assert "- [x] every variant was tuned with the same number of trials: model.optimizer.lr, 3 values with 2 seeds each" in text
    assert (
        "- [ ] the best values of tuning are inside their grids or ranges, but not for position=learned: a better one may lie beyond"
        in text
    )
    assert "| position=learned | lr=0.1 | 2 | 1.5 | diverged |" in text
    assert "failed independently" not in text, "no noise of examples is known"
    assert "Unknown sources are shown as -: loss was not kept by example" in text
    unfinished = markdown(Results(replace(results.plan, study=replace(results.study, tune=tune))))
    assert "- [ ] every variant was tuned with the same number of trials: the trials are not finished" in unfinished


@pytest.mark.usefixtures("undrawn")
def test_a_percentage_refers_to_the_mean_of_the_reference() -> None:
    near = [v + 0.001 * (-1) ** i for i, v in enumerate(BASE)]
    values: dict[str, list[float | str]] = {"baseline": list(BASE), "position=none": list(near), "position=learned": list(near)}
    results = stored(values, min_effect="2%")
    assert [c.min_effect for c in results.comparisons] == [pytest.approx(0.02 * 2.0)] * 2
    assert {c.verdict for c in results.comparisons} == {"equivalent"}
    text, [low, high] = markdown(results), [f"{100 * end:.3g}%" for end in results.comparisons[0].relative or ()]
    assert f"+0% [{low}, {high}] of the reference, adjusted p" in text.replace("-0%", "+0%")
    assert "Equivalence: the whole interval of the difference as a share of the reference's mean, at the same level" in text
    assert results.summary()["relative_low"][1] == pytest.approx((results.comparisons[0].relative or (0.0,))[0])
    assert "in % of the reference" in str(forest(results).svg)
    for wrong in ("2", "two%", "-2%", "0%"):
        with pytest.raises(ConfigurationError, match="min_effect must be"):
            study(min_effect=wrong)


@pytest.mark.usefixtures("undrawn")
def test_a_report_states_the_error_rate_and_power_of_its_design(results: Results) -> None:
    found = certificate(results)
    assert {noise for noise, _ in found.errors} == {"normal", "heavy-tailed"}
    assert max(rate for _, rate in found.errors) < stats.binom.ppf(1 - 1e-6, found.studies, 0.05) / found.studies
    exact = [power(effect, 6, alpha=0.025) for effect, _ in found.power]
    assert [rate for _, rate in found.power] == pytest.approx(exact, abs=0.05)
    [(_, rate), *_] = found.errors
    shown = f"would be {rate:.3f} ± {math.sqrt(rate * (1 - rate) / found.studies):.3f} with normal noise"
    assert shown in markdown(results).partition("## Certificate\n\n- if all variants were the same")[2]
    assert "if all variants were the same" in page(results)


def test_parameters_initialised_unlike_the_baseline_are_counted_per_variant() -> None:
    values: dict[str, list[float | str]] = {name: list(BASE) for name in ("baseline", "position=none", "position=learned")}
    starts = {
        "baseline": {"head": "(3, 4) aa", "norm": "(4,) bb", "old": "(1,) cc"},
        "position=none": {"head": "(3, 4) aa", "norm": "(4,) bb"},
        "position=learned": {"head": "(3, 4) dd", "norm": "(5,) ee", "new": "(1,) cc"},  # a norm of another shape is a different parameter
    }
    found = stored(values, starts=starts)
    assert found.starts() == (12, {"position=learned": 6})
    [(holds, text)] = [check for check in checklist(found) if "start with its values" in check[1]]
    assert not holds
    assert text.endswith("by a hash of each: 12 of 18, but not 6 in position=learned")
    found = stored(values, starts=dict.fromkeys(values, starts["baseline"]))
    [(holds, text)] = [check for check in checklist(found) if "start with its values" in check[1]]
    assert holds
    assert text.endswith(": 36 of 36")
    assert not [text for _, text in checklist(stored(values)) if "start with its values" in text]  # earlier runs did not record this


def test_the_methods_state_the_variance_saved_by_pairing() -> None:
    apart = [0.0, 2.0, 0.0, 2.0, 0.0, 2.0]
    together: dict[str, list[float | str]] = {
        "baseline": list(apart),
        "position=none": [v + 1 for v in apart],
        "position=learned": list(apart),
    }
    assert saved_by_pairing(stored(together)) == pytest.approx(1)
    against: dict[str, list[float | str]] = {**together, "position=none": [-v for v in apart], "position=learned": [-v for v in apart]}
    assert saved_by_pairing(stored(against)) == pytest.approx(-1)  # var(2 x) = 4 var(x), against 2 var(x)
    assert "Pairing by seed adds 100% of the variance" in methods(stored(against))
    few: list[float | str] = [0.0, -2.0, 0.0, "failed", "failed", "failed"]
    runs: dict[str, list[float | str]] = {"baseline": [0.0, 2.0, 0.0, 20.0, 0.0, 40.0], "position=none": few, "position=learned": few}
    assert saved_by_pairing(stored(runs)) == pytest.approx(-1), "both variances are of the same runs"


def test_the_methods_state_when_the_metric_was_measured() -> None:
    found = stored({name: list(BASE) for name in ("baseline", "position=none", "position=learned")})
    assert "(lower is better), after the last step." in methods(found), "runs of before did not record it"
    for run in found.plan.runs:
        result = found.result[run.key]
        result |= {"batches": 24, "curve": [{**point, "batches": 8 * (i + 1)} for i, point in enumerate(result["curve"])]}
    assert "(lower is better), after the last step. " in methods(found)
    for run in found.plan.runs[:3]:
        found.result[run.key]["curve"] = found.result[run.key]["curve"][:2]
    assert "(lower is better), at the last validation, after 16 to 24 of 24 batches. " in methods(found)


def test_long_names_in_tables_may_break_after_signs() -> None:
    table = Table(("effect of",), [(False, ("norm=a where residual=b|c<d",))])
    assert "<span>norm=<wbr>a where residual=<wbr>b|<wbr>c&lt;d</span>" in ENVIRONMENT.get_template("macros.html").module.grid(table)  # type: ignore[attr-defined]
