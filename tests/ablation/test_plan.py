"""Plans: made quickly and without torch, with the registry's reasons, and explicit about what differs."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit.ablation import Study
from attnkit.ablation.design import Variant, differences
from attnkit.ablation.estimate import Estimate
from attnkit.ablation.outline import outline
from attnkit.ablation.plan import Plan
from attnkit.ablation.planning import derived_seed
from attnkit.ablation.results import Results
from attnkit.ablation.spec import SEED_KINDS
from attnkit.registry import ConfigurationError
from attnkit.worker.answers import Inspection
from tests.ablation.conftest import STUDY, study

Answers = dict[str, dict[str, Any]]


def planned(monkeypatch: pytest.MonkeyPatch, answers: Answers, **changes: Any) -> Plan:
    """Return a plan with these answers, by the position of the variant."""

    def inspect(recipe: str, compositions: Any, **_: Any) -> list[Inspection]:
        found = []
        for overrides in compositions:
            position = overrides.get("model.stack.position", "baseline")
            resolved = {"model": {"stack": {"position": {"name": position}}}, "data": {"name": "d"}}
            found.append(Inspection(**({"recipe": resolved, "takes_seed": True} | answers.get(position, {}))))
        return found

    monkeypatch.setattr("attnkit.ablation.planning.inspect", inspect)
    return study(**changes).plan(Path("runs"))


def test_seeds_are_separate_and_paired(guessed: None) -> None:
    plan = study().plan(Path("runs"))
    for seed in (0, 1, 2):
        seeds = [run.job["seeds"] for run in plan.runs if run.seed == seed]
        assert len(seeds) == 3
        assert all(s == seeds[0] for s in seeds)
        assert len(set(seeds[0].values())) == 3
        assert all(run.job["recipe"]["data"]["seed"] == run.job["seeds"]["data"] for run in plan.runs)


def test_only_seeds_listed_under_vary_change(guessed: None) -> None:
    plan = study(vary=["data"]).plan(Path("runs"))
    assert len({run.job["seeds"]["data"] for run in plan.runs}) == 3
    assert {run.job["seeds"]["dropout"] for run in plan.runs} == {derived_seed("dropout", 0)}
    assert set(SEED_KINDS) == set(plan.runs[0].job["seeds"])


def test_illegal_variants_are_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(monkeypatch, {"none": {"recipe": None, "error": "no such thing", "kind": "illegal"}})
    assert [v.name for v in plan.variants] == ["baseline", "position=learned"]
    assert [(v.name, reason) for v, reason in plan.left_out] == [("position=none", "no such thing")]


def test_a_level_that_never_builds_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="position=none: unknown name"):
        planned(monkeypatch, {"none": {"recipe": None, "error": "unknown name", "kind": "mistake"}})


def test_a_baseline_that_cannot_be_built_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="the reference 'baseline' cannot be built: no such thing"):
        planned(monkeypatch, {"baseline": {"recipe": None, "error": "no such thing", "kind": "illegal"}})


def test_a_study_without_comparisons_is_rejected_with_the_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {"none": {"recipe": None, "error": "no such thing", "kind": "illegal"}}
    gone["learned"] = {"recipe": {"model": {"stack": {"position": {"name": "baseline"}}}, "data": {"name": "d"}}}
    reasons = "position=learned is the same composition as baseline; position=none is left out: no such thing"
    with pytest.raises(ConfigurationError, match=f"^the study 's' has nothing to compare: {reasons}$"):
        planned(monkeypatch, gone)


def test_a_study_from_python_names_a_recipe_as_a_file_does(guessed: None) -> None:
    alone = Variant(name="a", overrides={"model.label_smoothing": 0.2})
    spec = Study(name="p", recipe="g2p/luong_dot", design="list", variants=(replace(alone, reference="baseline"),))
    assert Path(spec.plan("runs").study.recipe).name == "luong_dot.yaml"
    with pytest.raises(ConfigurationError, match=r"^no recipe 'tyny.yaml': .* Did you mean 'tiny.yaml'\?"):
        replace(spec, recipe="tyny.yaml").plan("runs")
    with pytest.raises(ConfigurationError, match=r"'p' has nothing to compare: a has no reference, such as 'baseline'$"):
        replace(spec, variants=(alone,)).plan("runs")


def test_identical_variants_share_runs_and_are_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    same = {"learned": {"recipe": {"model": {"stack": {"position": {"name": "none"}}}, "data": {"name": "d"}}}}
    plan = planned(monkeypatch, same)
    assert (plan.same, plan.twins) == ({}, {"position=learned": "position=none"})
    assert "note: position=learned is the same composition as position=none and shares its runs" in outline(plan, Estimate(), jobs=1)
    first, second = Results(plan).sentences()
    assert "its runs are those of" not in first
    assert second.endswith("; its runs are those of position=none")


def test_an_effect_never_compares_runs_with_themselves(guessed: None) -> None:
    factors = {
        "model.stack.position": {"baseline": "none", "levels": {"also none": "none", "new": "learned", "also new": "learned"}},
        "model.b": {"baseline": 0, "levels": [1]},
    }
    found = Results(study(factors=factors, design="full_factorial").plan(Path("runs")))
    assert [*found.contrasts] == [
        *("position=new", "position=also new", "b=1"),
        *("position=new x b=1", "position=also new x b=1"),
    ]
    same = ["position=also none is the same composition as position=none", "position=also none x b=1 has the same runs on both sides"]
    assert found.sentences()[-2:] == same
    assert [text.partition("; its")[2] for text in found.sentences()[:3]] == ["", " runs are those of position=new", ""]


def test_a_cumulative_step_whose_predecessor_is_left_out_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    factors = {"model.stack.position": ["none"], "more": {"levels": [{"model.stack.position": "learned"}]}}
    with pytest.raises(ConfigurationError, match=r"is compared with '\+ position=none', which is left out"):
        planned(monkeypatch, {"none": {"recipe": None, "error": "x", "kind": "illegal"}}, factors=factors, design="cumulative")


SIZE = {"model.stack.d_model": [8], "size": {"levels": {"small": {"model.stack.d_model": 4}}}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"design": "full_factorial", "factors": SIZE}, r"'d_model=8, size=small' sets model.stack.d_model twice, by d_model=8 and by"),
        ({"design": "leave_one_out", "factors": SIZE}, "'all' sets model.stack.d_model twice"),
        (
            {"factors": {"size": SIZE["size"], "model.stack.d_model": {"baseline": 6, "levels": [8]}}},
            "'size=small' sets model.stack.d_model twice, by size=small and by d_model=6",
        ),
        (
            {
                "design": "full_factorial",
                "factors": {
                    "a": {"levels": {"x": {"model.stack.norm": {"name": "rms_norm"}}}},
                    "b": {"levels": {"y": {"model.stack": {"name": "encoder", "norm": "layer_norm"}}}},
                },
            },
            "'a=x, b=y' sets model.stack.norm twice",
        ),
        ({"factors": {"trainer.max_steps": [5]}, "budget": {"steps": 3}}, "budget: it replaces trainer.max_steps of 'max_steps=5'"),
        ({"set": {"trainer.max_epochs": 3}, "budget": {"steps": 3}}, "budget: it replaces trainer.max_epochs of set, which would have no"),
        (
            {"factors": {"model.stack.d_model": [6]}, "match": {"on": "params", "adjust": "model.stack.d_model"}},
            "match: it replaces model.stack.d_model of 'd_model=6'",
        ),
        (
            {
                "factors": {"model.stack.feed_forward": [{"name": "glu", "ffn_dim": 9}]},
                "match": {"on": "params", "adjust": "model.stack.feed_forward.ffn_dim"},
            },
            r"match replaces model.stack.feed_forward.ffn_dim, which the label of feed_forward=glu\(ffn_dim=9\) shows",
        ),
    ],
)
def test_a_level_that_another_setting_overrides_is_rejected(changes: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match=message):
        planned(monkeypatch, {}, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"design": "full_factorial", "factors": SIZE, "exclude": [{"when": {"d_model": 8, "size": "small"}, "reason": "same key"}]},
        {"design": "cumulative", "factors": SIZE},
        {"design": "full_factorial", "factors": {"model.stack.attention": ["additive"], "model.stack.attention.hidden_dim": [8]}},
        {"factors": {"trainer.max_steps": [5]}, "budget": {"tokens": 30}},
    ],
)
def test_compatible_levels_are_accepted(changes: dict[str, Any], guessed: None) -> None:
    assert len(study(**changes).plan(Path("runs")).variants) > 1


def test_side_effects_of_a_swap_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    quiet = {"model": {"stack": {"position": {"name": "none"}}}, "data": {"name": "d"}}
    loud = {"model": {"stack": {"position": {"name": "learned", "max_length": 9}}, "lr": 1}, "data": {"name": "d"}}
    base = {"model": {"stack": {"position": {"name": "sinusoidal", "base": 2}}, "lr": 2}, "data": {"name": "d"}}
    note = "position: learned replaces sinusoidal, so base=2 no longer applies"
    plan = planned(
        monkeypatch,
        {
            "baseline": {"recipe": base},
            "none": {"recipe": quiet | {"model": {**quiet["model"], "lr": 2}}},
            "learned": {"recipe": loud, "notes": [note]},
        },
    )
    assert plan.side_effects == {"baseline": (), "position=none": (), "position=learned": ("model.lr: 2 -> 1", note)}


def test_long_values_are_shown_by_prefix_and_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    def recipe(pieces: str) -> dict[str, object]:
        return {"recipe": {"model": {"stack": {"position": {"name": "none"}}}, "data": {"tokenizer": pieces}}}

    plan = planned(monkeypatch, {"baseline": recipe("a" * 5000), "none": recipe("b" * 5000), "learned": recipe("a" * 4999 + "b")})
    one, other = (plan.side_effects[f"position={name}"][0] for name in ("none", "learned"))
    assert one.startswith(f"data.tokenizer: {'a' * 50}... (5,000 characters, sha256 ")
    assert len(one) < 250
    before, after = other.split(" -> ")
    assert before.removeprefix("data.tokenizer: ") != after, "by the hash"


def test_differences_are_keyed_by_dotted_path() -> None:
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}}) == {"a.b": (1, 3), "a.c": (2, ...)}


PROGRAM = """
import sys, time
from attnkit.ablation import Study
start = time.process_time()
plan = Study.from_yaml("s.yaml").plan("runs")
assert len(plan.runs) == 1000, len(plan.runs)
assert not {"torch", "lightning", "scipy", "matplotlib", "pandas"} & set(sys.modules)
print(time.process_time() - start)
"""


def test_a_thousand_runs_are_planned_within_two_seconds_without_torch() -> None:
    """Measures processor time, because the machine may be busy. The first plan of a study asks a second process; its answers are kept."""
    factors = {
        "model.stack.position": ["none", "learned", "alibi"],
        "model.stack.num_heads": [1],
        "model.label_smoothing": [0.0, 0.2, 0.3, 0.4],
    }
    content = STUDY | {"factors": factors, "design": "full_factorial", "seeds": 25}  # 4 x 2 x 5 x 25
    Path("s.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    Study.from_yaml("s.yaml").plan("runs")
    second = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert second.returncode == 0, second.stderr
    assert float(second.stdout) < 2
