"""How long runs will take: estimated from finished runs, or else from the probe, which may fail in any way."""

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from attnkit.ablation import estimate as estimates
from attnkit.ablation.estimate import Estimate, estimate
from attnkit.ablation.plan import Plan
from attnkit.cli.ablate import ablate
from attnkit.worker.folder import write_json
from tests.ablation.conftest import STUDY, study

PROBER = """
import json, os, sys, time
question = json.load(open(sys.argv[1] + "/job.json"))
with open("asked.txt", "a") as file:
    file.write("".join(json.dumps(job["recipe"]["model"]) + chr(10) for job in question["jobs"]))
for number, job in enumerate(question["jobs"]):
    answer = dict(startup=1.0, step=0.5, steps=10 * (number + 1), training=5.0 * (number + 1), validation=2.0, validations=3)
    BODY
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def prober(folder: Path, monkeypatch: pytest.MonkeyPatch, guessed: None) -> Callable[[str], None]:
    """Set what the probe's process does before each answer (default: nothing)."""

    def use(body: str = "pass") -> None:
        (folder / "fake_prober.py").write_text(PROBER.replace("BODY", body), encoding="utf-8")
        monkeypatch.setattr(estimates, "PROBE", "fake_prober")

    use()
    return use


def planned(**changes: Any) -> Plan:
    return study(**changes).plan(Path("runs"))


def seconds(found: Estimate) -> dict[str, float]:
    return {name: timing.seconds for name, timing in found.timings.items()}


def asked() -> int:
    """Return how many jobs have been probed in total."""
    return len(Path("asked.txt").read_text().splitlines()) if Path("asked.txt").exists() else 0


def test_pending_variants_are_probed_once_and_only_the_answer_is_written(prober: Any) -> None:
    plan = planned()
    assert estimate(plan, probe=False).mean is None
    found = estimate(plan, probe=True)
    assert seconds(found) == {"baseline": 12.0, "position=none": 17.0, "position=learned": 22.0}
    assert found.mean == 17.0
    assert estimate(plan, probe=True) == estimate(planned(seeds=7), probe=False) == found  # seeds make no difference
    assert asked() == 3
    assert {path.parent.name for path in Path("runs").rglob("*.json")} == {"probes"}


def test_finished_runs_take_precedence_over_a_probe(prober: Any) -> None:
    plan = planned()
    for run in plan.runs[:2]:
        write_json(plan.run_folder(run.key) / "status.json", {"status": "ok", "wall_seconds": 30 + run.seed})
        write_json(plan.run_folder(run.key) / "result.json", {"metrics": {}})
    found = estimate(plan, probe=True)
    assert [timing.basis for timing in found.timings.values()] == ["finished runs", "finished runs", "a probe of a few steps"]
    assert (asked(), *seconds(found).values()) == (1, 30, 30, 12)


def test_a_sample_of_many_variants_is_probed_and_extrapolated(prober: Any, seed: int) -> None:
    plan = planned(factors={"model.stack.num_layers": list(range(2, 30))})
    sizes = Random(seed).sample(range(1000), len(plan.variants))
    inspections = {v.name: replace(plan.inspections[v.name], parameters=n) for v, n in zip(plan.variants, sizes, strict=True)}
    plan = replace(plan, inspections=inspections)
    found = estimate(plan, probe=True)
    probed = [name for name, timing in found.timings.items() if timing.like is None]
    assert asked() == len(probed) == estimates.MOST
    assert "baseline" in probed
    assert set(found.timings) == {v.name for v in plan.variants}
    for name, timing in found.timings.items():
        gaps = {other: abs(inspections[other].parameters - inspections[name].parameters) for other in probed}
        assert gaps[timing.like or name] == min(gaps.values())
        assert timing.seconds == found.timings[timing.like or name].seconds
    estimate(plan, probe=True)
    assert asked() == estimates.MOST  # one sample is enough


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("answer = answer if number == 0 else {'error': 'FileNotFoundError: no data'}", "no data"),
        ("number and os._exit(9)", "ended with status 9"),
        ("number and time.sleep(60)", "took more than 3 s"),
    ],
)
def test_a_failed_probe_is_reported_and_not_fatal(prober: Any, monkeypatch: pytest.MonkeyPatch, body: str, message: str) -> None:
    prober(body)
    monkeypatch.setattr(estimates, "PATIENCE", 3.0)
    found = estimate(planned(), probe=True)
    assert found.timings["baseline"].seconds == 12.0
    assert message in found.failed["position=none"]
    assert [timing.like for timing in found.timings.values()] == [None, "baseline", "baseline"]


def test_a_probe_process_that_cannot_start_yields_no_estimate(prober: Any) -> None:
    Path("fake_prober.py").write_text("raise SystemExit(3)", encoding="utf-8")
    found = estimate(planned(), probe=True)
    assert found.mean is None
    assert found.failed == {"baseline": "its process ended with status 3"}


def test_a_plan_shows_the_estimated_time_and_its_basis(prober: Any, capsys: pytest.CaptureFixture[str]) -> None:
    Path("s.yaml").write_text(yaml.safe_dump(STUDY), encoding="utf-8")
    assert ablate(["plan", "s.yaml", "--no-probe"]) == 0
    assert (asked(), " a run" in capsys.readouterr().out) == (0, False)
    assert ablate(["plan", "s.yaml", "--jobs", "3"]) == 0
    out = capsys.readouterr().out
    assert "position=none: 10 parameters, about 17 s a run\n" in out
    assert "9 runs to do: about 51 s, 3 at a time" in out
    assert "Times by variant: 3 from a probe of a few steps." in out


def test_a_plan_reports_a_metric_that_is_never_logged(prober: Any, capsys: pytest.CaptureFixture[str]) -> None:
    prober("answer['logged'] = ['val/accuracy', 'val/loss']")
    for metric, told in (("val/los", True), ("val/loss", False), ("test/los", False)):
        Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"metric": metric, "better": "lower"}), encoding="utf-8")
        assert ablate(["plan", "s.yaml"]) == 0
        out = capsys.readouterr().out
        assert (
            "note: no validation of the probe logged the metric 'val/los'. Did you mean 'val/loss'? Logged: val/accuracy," in out
        ) == told


def test_the_estimate_module_does_not_import_torch() -> None:
    program = "import sys; import attnkit.ablation.estimate; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
