"""Study files and designs: what they expand to, and what is refused."""

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit.ablation import Study
from attnkit.ablation.design import Variant, label
from attnkit.recipe import recipe_folder, recipe_names
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import STUDY, study

TWO = {"model.stack.norm": ["rms_norm"], "model.stack.position": {"levels": ["none"], "baseline": "learned"}}


def names(**changes: Any) -> list[str]:
    return [v.name for v in study(**changes).expanded()]


def test_one_factor_changes_one_thing_at_a_time() -> None:
    assert names(factors=TWO) == ["baseline", "norm=rms_norm", "position=none"]
    baseline, norm, position = study(factors=TWO).expanded()
    assert baseline.overrides == {"model.stack.position": "learned"}
    assert norm.overrides == {"model.stack.norm": "rms_norm", "model.stack.position": "learned"}
    assert position.overrides == {"model.stack.position": "none"}
    assert [v.reference for v in (baseline, norm, position)] == [None, "baseline", "baseline"]


def test_a_full_design_has_every_combination() -> None:
    factors = {"model.stack.norm": ["rms_norm"], "model.stack.num_layers": [2, 3]}
    assert len(names(factors=factors, design="full_factorial")) == 6
    assert names(factors=factors, design="full_factorial")[:2] == ["baseline", "num_layers=2"]
    assert "norm=rms_norm, num_layers=3" in names(factors=factors, design="full_factorial")


def test_cumulative_compares_each_step_with_the_one_before() -> None:
    variants = study(factors=TWO, design="cumulative").expanded()
    assert [(v.name, v.reference) for v in variants] == [
        ("baseline", None),
        ("+ norm=rms_norm", "baseline"),
        ("+ position=none", "+ norm=rms_norm"),
    ]
    assert variants[2].overrides == {"model.stack.norm": "rms_norm", "model.stack.position": "none"}


def test_leave_one_out_reverts_one_factor() -> None:
    variants = study(factors=TWO, design="leave_one_out").expanded()
    assert [(v.name, v.reference) for v in variants] == [("all", None), ("all - norm", "all"), ("all - position", "all")]
    assert variants[1].overrides == {"model.stack.position": "none"}


def test_a_list_design_keeps_the_files_variants() -> None:
    listed = {"one head": {"model.stack.num_heads": 1}, "deep": {"model.stack.num_layers": 4, "model.optimizer.lr": 1e-3}}
    variants = study(design="list", variants=listed, factors=None).expanded()
    assert [v.name for v in variants] == ["baseline", "one head", "deep"]
    assert variants[2].overrides == listed["deep"]


def test_a_level_may_set_several_things() -> None:
    factors = {"size": {"levels": {"small": {"model.stack.d_model": 4, "model.stack.num_heads": 1}}}}
    assert study(factors=factors).expanded()[1].overrides == {"model.stack.d_model": 4, "model.stack.num_heads": 1}
    assert names(factors=factors) == ["baseline", "size=small"]


def test_a_number_may_be_a_label() -> None:
    factors = {"size": {"levels": {1: {"model.stack.d_model": 8}, 0.5: {"model.stack.d_model": 4}}}}
    assert names(factors=factors) == ["baseline", "size=1", "size=0.5"]


def test_labels_are_short() -> None:
    assert label({"name": "mlp", "ffn_dim": 4, "bias": False}) == "mlp(ffn_dim=4, bias=false)"
    assert label([1, None]) == "[1, none]"


def test_exclusions_carry_a_reason() -> None:
    rule = {"when": {"norm": "rms_norm", "position": "none"}, "reason": "known not to train"}
    variants = study(factors=TWO, design="full_factorial", exclude=[rule]).expanded()
    assert [v.excluded for v in variants if v.excluded] == ["known not to train"]
    assert [v.name for v in variants if v.excluded] == ["norm=rms_norm, position=none"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seeds": 1}, r"seeds: a study needs at least 2, but has 1: from one run, a difference cannot be told from chance"),
        ({"seeds": 0}, r"at least 2, but has 0"),
        ({"name": "runs"}, r"'runs' cannot name a results folder"),
        ({"name": "../s"}, r"'../s' cannot name a results folder"),
        ({"design": "list", "variants": {"baseline": {}}}, r"variants: 'baseline' is the recipe itself"),
        ({"seeds": [1, 1]}, r"lists a seed twice"),
        ({"seeds": [1, -1]}, r"integers from 0, but has -1"),
        ({"seeds": "many"}, r"integers from 0, but has 'm'"),
        ({"factor": {}}, r"unknown key 'factor'. Did you mean 'factors'\?"),
        ({"factors": None}, r"the design one_factor needs factors"),
        ({"factors": {"modle.stack.norm": ["rms_norm"]}}, r"unknown key 'modle.stack.norm'. Did you mean 'model'\?"),
        ({"factors": {"norm": ["rms_norm"]}}, r"factor 'norm' is not a dotted key"),
        ({"factors": {"model.stack.norm": {"level": ["a"], "levels": ["b"]}}}, r"has no key 'level'. Did you mean 'levels'\?"),
        ({"factors": {"model.stack.norm": {"levels": {(1,): "a"}}}}, r"\(1,\) cannot be a name as it is; put the name in quotation marks"),
        ({"factors": None, "design": "list", "variants": {None: {"model.stack.norm": "a"}}}, "None cannot be a name as it is"),
        ({"factors": {"model.stack.norm": []}}, r"factor 'model.stack.norm' needs levels"),
        ({"factors": {"model.stack.norm": ["a", "a"]}}, r"has the level 'a' twice"),
        (
            {"factors": {"model.stack.norm": {"baseline": "a", "levels": ["a"]}}},
            r"lists its baseline 'a' among its levels",
        ),
        ({"factors": {"model.norm": ["a"], "data.norm": ["b"]}}, r"two keys end in the same word"),
        ({"design": "full_factorail"}, r"design: unknown 'full_factorail'. Did you mean 'full_factorial'\?"),
        ({"design": "cumulative"}, r"cumulative takes one level for each factor, but 'position' has several"),
        ({"better": "low"}, r"better: unknown 'low'. Did you mean 'lower'\?"),
        ({"min_effect": -1}, r"min_effect must be above 0"),
        ({"min_effect": math.nan}, r"s.yaml: min_effect must be a finite number, but is nan"),
        ({"alpha": 5}, r"alpha must be between 0 and 1"),
        ({"metric": "val/accuracy"}, r"is a lower or a higher val/accuracy better\? Add better: lower or better: higher"),
        ({"tasks": {"t": {"metric": "val/accuracy"}}}, r"tasks: the metric of t is not the study's: add better: lower or higher to it"),
        (
            {"tasks": {"t": {"metric": "val/accuracy", "better": "higher"}}, "min_effect": 0.02},
            r"tasks: min_effect: 0.02 is in units of val/loss, but the metric of t is val/accuracy: add min_effect to it, or use a percent",
        ),
        (
            {"tasks": {"t": {"metric": "val/accuracy", "better": "higher"}}, "min_effect": "2%", "resolution": 0.1},
            r"tasks: resolution: 0.1 is in units of val/loss, but the metric of t is val/accuracy: add resolution to it, or leave it out",
        ),
        (
            {
                "tasks": {"t": {"set": {"model.stack.dropout": 0.0}}},
                "scales": {"a": {"at": 1, "set": {"model.stack": {"dropout": 0.1}}}, "b": {"at": 2, "set": {"model.d": 2}}},
            },
            r"scales: a replaces model.stack.dropout of the task t, which would have no effect",
        ),
        ({"timeout": 0}, r"timeout must be a number of seconds above 0, but is 0; omit it"),
        ({"retries": {"kiled": 1}}, r"retries: no kind of failure 'kiled'. Did you mean 'killed'\?"),
        ({"retries": {"killed": -1}}, r"retries: killed must be at least 0, but is -1"),
        (
            {"count_as_diverged": ["timeout"]},
            r"count_as_diverged: only error and out_of_memory can be outcomes, but it has 'timeout': other",
        ),
        ({"count_as_diverged": "error"}, r"count_as_diverged must be a list, as in \[out_of_memory\], but is 'error'"),
        ({"decide": {"max_seeds": 10_000_000}, "seeds": None}, r"decide: max_seeds must be at most 10,000"),
        ({"decide": {"max_seeds": 8, "looks": [3, "8"]}, "seeds": None}, r"decide: looks\[1\] must be an integer, but is '8'"),
        ({"tune": {"grid": {"model.optimizer.lr": 1}}}, r"tune: grid.model.optimizer.lr must be a list, but is 1"),
        ({"tune": {"grid": {"model.optimizer.lr": [1, math.inf]}}}, r"tune: grid.model.optimizer.lr\[1\] must be a finite number"),
        (
            {"design": "list", "factors": None, "variants": {" ": {}}},
            r"variants: the blank name ' ' would be invisible in tables",
        ),
        ({"vary": ["initialization"]}, r"vary\[0\]: unknown 'initialization'. Did you mean 'initialisation'\?"),
        ({"vary": []}, r"at least one kind of seed must differ"),
        ({"exclude": [{"when": {"position": "none"}}]}, r"exclude: each rule must be"),
        ({"exclude": [{"when": {"positon": "none"}, "reason": "x"}]}, r"no factor 'positon'. Did you mean 'position'\?"),
        ({"exclude": [{"when": {"position": "learnd"}, "reason": "x"}]}, r"no level 'learnd'. Did you mean 'learned'\?"),
        ({"match": {"on": "params"}}, r"s.yaml: match needs the key adjust"),
        (
            {"match": {"on": "params", "adjust": "model.stack.d_model", "tolerance": -1}},
            r"match: tolerance must be a fraction .* but is -1",
        ),
        ({"match": {"on": "size", "adjust": "model.stack.d_model"}}, r"match: on: unknown 'size'. One of: params, flops"),
        ({"recipe": "tinny.yaml"}, r"no recipe 'tinny.yaml'"),
        ({"variants": {"a": {"model.stack.norm": "rms_norm"}}}, r"variants: the design one_factor has factors, not variants"),
        ({"design": "list", "variants": {"a": {"model.stack.norm": "rms_norm"}}}, r"factors: the design list has variants, not factors"),
        (
            {
                "design": "full_factorial",
                "factors": {"a": {"levels": {"1, b=2": {"model.x": 1}, 1: {"model.x": 2}}}, "b": {"levels": {2: {"model.y": 2}}}},
            },
            r"two variants would be named 'a=1, b=2'",
        ),
    ],
)
def test_a_wrong_study_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        study(**changes).expanded()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"design": "full"}, r"study: design: unknown 'full'\. Did you mean 'full_factorial'\? One of: one_factor, full_factorial, "),
        ({"lengths": "src"}, r"study: lengths: unknown 'src'. Did you mean|study: lengths: unknown 'src'. One of: source, target"),
        ({"alpha": "small"}, r"study: alpha must be a number, but is 'small'"),
        ({"match": {"on": "params"}}, r"study: match needs the key adjust"),
    ],
)
def test_a_wrong_study_from_python_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Study(**{"name": "s", "recipe": "r", "design": "list", "variants": (Variant(name="a"),), **changes})


def test_a_study_file_accepts_the_documented_size_match(folder: Path) -> None:
    (folder / "s.yaml").write_text(yaml.safe_dump(STUDY) + "match: {on: params, adjust: model.stack.d_model}\n", encoding="utf-8")
    read = Study.from_yaml("s.yaml").match
    assert read is not None
    assert read.on == "params"


def test_a_study_is_read_from_a_file_beside_its_recipe(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "position.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    monkeypatch.chdir(folder / "elsewhere")
    read = Study.from_yaml("../position.yaml")
    assert (read.name, read.seeds) == ("position", (0, 1, 2))
    assert Path(read.recipe).samefile(folder / "tiny.yaml")
    with pytest.raises(ConfigurationError, match="no study 'positio'"):
        Study.from_yaml("positio")
    with pytest.raises(ConfigurationError, match=r"tiny.yaml is not a study: it needs the key recipe"):
        Study.from_yaml("../tiny.yaml")


def test_the_run_archive_of_a_report_is_rejected_as_a_study_file() -> None:
    with pytest.raises(
        ConfigurationError, match="holds the runs of a report, which attnkit ablate report, compare, diff and reproduce read"
    ):
        Study.from_yaml("runs.jsonl.gz")


def test_seeds_are_added_once() -> None:
    assert study().with_seeds(2, 7).seeds == (0, 1, 2, 7)


def test_shipped_studies_state_the_command_that_runs_them() -> None:
    files = sorted((recipe_folder() / "ablations").glob("*.yaml"))
    assert {f.stem for f in files} >= {"attention", "position"}
    for file in files:
        assert file.read_text(encoding="utf-8").splitlines()[0] == f"# attnkit ablate run ablations/{file.stem}"
        assert len(Study.from_yaml(f"ablations/{file.stem}").expanded()) > 1
        assert f"ablations/{file.stem}" not in recipe_names()
