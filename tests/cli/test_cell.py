"""A run of a study: paired, exact when it goes on, and honest about how it ended."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit.ablation.store import read_json, status_of, write_json
from attnkit.cli import cell
from attnkit.cli.inspection import Inspector
from tests.ablation.conftest import RECIPE, STUDY

SEEDS = {"initialisation": 1, "data": 2, "dropout": 3}


@pytest.fixture(autouse=True)
def recipe(tmp_path: Path, toys: None) -> None:
    """The small recipe of the ablation tests and its data, in the current folder."""
    words = "".join(f"{a}{b}{c}\t{c} {b} {a}\n" for a in "abcd" for b in "abcd" for c in "ab")
    (tmp_path / "words.tsv").write_text(f"source\ttarget\n{words}", encoding="utf-8")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE), encoding="utf-8")


def run(name: str, *layers: dict[str, Any], seeds: dict[str, int] = SEEDS, test: bool = False) -> dict[str, Any]:
    """Train the recipe under layers, as a study would; return the result."""
    folder = Path(name).absolute()
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed(layers)
    recipe["data"]["seed"] = seeds["data"]
    write_json(folder / "job.json", {"recipe": recipe, "seeds": seeds, "test": test})
    cell.main(folder)
    return dict(read_json(folder / "result.json") or {})


def test_variants_see_the_same_batches_and_other_seeds_others() -> None:
    one = run("one")
    other = run("other", {"model": {"stack": {"num_layers": 2, "position": "learned"}}})
    assert one["batches"] == other["batches"] > 4
    assert one["batch_hash"] == other["batch_hash"]
    assert one["metrics"]["val/loss"] != other["metrics"]["val/loss"]
    assert run("data", seeds=SEEDS | {"data": 9})["batch_hash"] != one["batch_hash"]


def test_each_seed_does_what_it_is_for() -> None:
    one = run("one")
    assert run("again")["metrics"] == one["metrics"]
    for kind in ("initialisation", "dropout"):
        other = run(kind, seeds=SEEDS | {kind: 9})
        assert other["batch_hash"] == one["batch_hash"]
        assert other["metrics"]["val/loss"] != one["metrics"]["val/loss"]


def test_a_run_that_was_cut_short_ends_as_one_that_was_not(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("whole")

    class CutError(Exception):
        pass

    def cut(self: cell.Recorder, trainer: Any, *_: Any) -> None:
        if trainer.current_epoch == 1:
            raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(cell.Recorder, "on_train_batch_end", cut)
        run("cut")
    assert status_of(Path("cut"))["kind"] == "error"
    Path("cut/status.json").unlink()
    cell.main(Path("cut").absolute())
    resumed = read_json(Path("cut/result.json"))
    assert status_of(Path("cut"))["status"] == "ok"
    for key in ("metrics", "batches", "batch_hash", "tokens"):
        assert resumed[key] == whole[key]
    assert len(resumed["curve"]) == 2


def test_a_run_that_diverges_says_so() -> None:
    run("wild", {"model": {"optimizer": {"name": "sgd", "lr": 1e30}}, "trainer": {"max_epochs": 3}})
    assert status_of(Path("wild"))["status"] == "diverged"


def test_test_metrics_are_those_of_the_best_checkpoint() -> None:
    assert "test/loss" in run("tested", test=True)["metrics"]


def test_a_wrong_recipe_is_a_failed_run_with_its_message() -> None:
    run("wrong", {"model": {"stack": {"num_heads": 3}}})
    status = status_of(Path("wrong"))
    assert (status["status"], status["kind"]) == ("failed", "configuration")


def test_a_run_that_another_process_is_at_is_left_alone() -> None:
    Path("busy").mkdir()
    with cell.FileLock(Path("busy/.lock")):
        assert cell.main(Path("busy")) == cell.BUSY


def test_an_inspection_says_what_is_wrong_and_what_cannot_be() -> None:
    inspector = Inspector("tiny.yaml", match=None, baseline=[])
    wrong = inspector.answer([{"model": {"stack": {"positon": "none"}}}])
    assert wrong["kind"] == "mistake"
    assert "Did you mean 'position'?" in wrong["error"]
    assert "Did you mean 'max_epochs'?" in inspector.answer([{"trainer": {"max_epoch": 3}}])["error"]
    illegal = inspector.answer([{"model": {"stack": {"position": "rotary"}}}])
    assert illegal["kind"] == "illegal"
    assert "position 'rotary' is not legal with attention 'additive'" in illegal["error"]
    fine = inspector.answer([{"model": {"stack": {"attention": "cosine"}}}])
    assert fine["notes"] == ["model.stack.attention: cosine replaces additive, so hidden_dim=4 no longer applies"]
    assert fine["takes_seed"]


def test_sizes_are_matched() -> None:
    match = {"on": "params", "adjust": "model.stack.feed_forward.ffn_dim", "tolerance": 0.01}
    inspector = Inspector("tiny.yaml", match=match, baseline=[])
    answer = inspector.answer([{"model": {"stack": {"feed_forward": "glu"}}}])
    assert abs(answer["parameters"] / inspector.target - 1) < 0.01
    assert answer["recipe"]["model"]["stack"]["feed_forward"]["ffn_dim"] == answer["adjusted"]
    assert inspector.answer([])["adjusted"] is None


def test_flops_are_matched() -> None:
    match = {"on": "flops", "adjust": "model.stack.feed_forward.ffn_dim", "tolerance": 0.05}
    mlp = {"model": {"stack": {"feed_forward": {"name": "mlp", "ffn_dim": 96}}}}
    inspector = Inspector("tiny.yaml", match=match, baseline=[mlp])
    answer = inspector.answer([{"model": {"stack": {"feed_forward": {"name": "glu", "ffn_dim": 96}}}}])
    assert answer["adjusted"] == 64  # three matrices in the place of two
    assert answer["flops"] == inspector.target
    deep = inspector.answer([mlp, {"model": {"stack": {"num_layers": 9}}}])
    assert deep["kind"] == "illegal"
    assert "model.stack.feed_forward.ffn_dim=1 comes nearest, but is +" in deep["error"]


def test_a_package_that_is_missing_is_named(attnkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": 2}), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "statsmodels.stats.power", None)
    monkeypatch.delitem(sys.modules, "attnkit.ablation.statistics", raising=False)
    outcome = attnkit("ablate", "compare", "s.yaml", "baseline", "position=none")
    assert outcome.status == 2
    assert "attnkit ablate needs the package 'statsmodels" in outcome.err
    assert "pip install attnkit[ablate]" in outcome.err


@pytest.mark.slow
def test_a_study_from_plan_to_report(attnkit: Any) -> None:
    factors = {"model.stack.position": ["rotary", "none"]}
    Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": 2, "factors": factors}), encoding="utf-8")
    planned = attnkit("ablate", "plan", "s.yaml")
    assert planned.status == 0, planned.err
    assert "s: 2 variants x 2 seeds = 4 runs of tiny.yaml" in planned.out
    assert "left out: position=rotary: position 'rotary' is not legal with attention 'additive'" in planned.out
    ran = attnkit("ablate", "run", "s.yaml", "--jobs", 2)
    assert ran.status == 0, ran.err
    assert "position=none cannot be told from baseline: val/loss " in ran.out
    page = Path("runs/ablations/s/report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 4
    assert "http" not in page.replace("http://www.w3.org", "")  # which names SVG, and is not asked for anything
    assert "✓ all variants saw the same batches in the same order" in page
    key = next(Path("runs/ablations/runs").iterdir()).name
    assert attnkit("ablate", "reproduce", "s.yaml", key).status == 0
    assert "model.stack.position.name" in attnkit("ablate", "diff", "s.yaml", "baseline", "position=none").out
    assert "no variant 'basline'. Did you mean 'baseline'?" in attnkit("ablate", "compare", "s.yaml", "basline", "position=none").err
    assert attnkit("ablate", "status", "s.yaml").out.count("ok ") == 4
