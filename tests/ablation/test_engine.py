"""The engine: no finished run is repeated or lost, whenever it is killed; failures are distinguished."""

import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from attnkit.ablation.contrasts import family
from attnkit.ablation.engine import explaining_full_disk, retry, run_plan
from attnkit.ablation.estimate import Estimate
from attnkit.ablation.fairness import checklist
from attnkit.ablation.methods import methods
from attnkit.ablation.outline import outline
from attnkit.ablation.plan import Plan
from attnkit.ablation.question import add_seeds
from attnkit.ablation.report import markdown, page, write_report
from attnkit.ablation.results import Results
from attnkit.cli.ablate import ablate
from attnkit.ownership import owned
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import PROVENANCE, status_of, write_json
from tests.ablation.conftest import STUDY, made, study

Use = Callable[[str], None]


def make(**changes: object) -> Plan:
    return study(**changes).plan(Path("runs"))


def lines(name: str) -> Counter[str]:
    return Counter(Path(name).read_text().split()) if Path(name).exists() else Counter()


def states(plan: Plan) -> Counter[str]:
    return Counter(str(status_of(plan.run_folder(r.key)).get("kind", status_of(plan.run_folder(r.key))["status"])) for r in plan.runs)


def test_every_run_happens_once_and_a_rerun_repeats_nothing(worker: Use) -> None:
    said: list[str] = []
    plan = make()
    run_plan(plan, jobs=2, say=said.append)
    run_plan(make(), say=said.append)
    assert states(plan) == {"ok": 9}
    assert set(lines("ran.txt").values()) == {1}
    ended = [re.fullmatch(r"\[(\d)/9\] ok       (.+)  val/loss .+", line) for line in said[:9]]
    assert [found and found[1] for found in ended] == list("123456789")
    assert {found and found[2] for found in ended} == {
        f"{run.variants[0]} seed {run.seed}" for run in plan.runs
    }  # in any order, two at once
    assert said[-1] == "9 of 9 runs are already finished"


def test_a_study_runs_and_reports_in_one_line_of_python(worker: Use) -> None:
    written = write_report(study().run("runs", jobs=2))
    assert written == Path("runs/s/report.html")
    assert "Not every run" not in written.read_text(encoding="utf-8")
    assert len(study().run("runs").frame()) == 9


def test_identical_compositions_run_once(worker: Use) -> None:
    factors = {"model.stack.position": {"baseline": "none", "levels": {"also none": "none", "other": "learned"}}}
    plan = make(factors=factors)
    assert len(plan.runs) == 6
    assert plan.runs[0].variants == ("baseline", "position=also none")
    assert list(family(plan.study, plan)) == ["position=other"]
    assert "note: position=also none is the same composition as baseline and shares its runs" in outline(plan, Estimate(), jobs=1)
    run_plan(plan)
    results = Results(plan)
    assert results.values("baseline") == results.values("position=also none")
    assert [c.variant for c in results.comparisons] == ["position=other"]  # an identical variant costs no correction
    assert results.sentences()[1] == "position=also none is the same composition as baseline"
    assert "| position=also none |" in markdown(results)
    assert "the same as baseline" in page(results)


def test_added_seeds_reuse_finished_runs_and_are_reported(worker: Use) -> None:
    with pytest.raises(ConfigurationError, match="runs/s has no results yet: set seeds in the study file"):
        add_seeds(study(), Path("runs"), 2, spend=0.01)
    run_plan(make())
    assert add_seeds(study(), Path("runs"), 2, spend=0.01).seeds == (0, 1, 2, 3, 4)
    more = make()
    assert len(more.runs) == 15
    run_plan(more)
    assert sum(lines("ran.txt").values()) == 15
    assert add_seeds(study(), Path("runs"), 1, spend=0.01).seeds == (0, 1, 2, 3, 4, 5)
    told = [text for holds, text in checklist(Results(more)) if not holds]
    expected = "but [3, 4] were added later, and paid for: the probability of any false verdict is at most 0.07"
    assert f"the number of seeds was set before the results, {expected}" in told
    said = methods(Results(more))
    assert "for normal differences, all intervals together cover their true values with a probability of at least 0.93 (Bonferroni)" in said
    assert "any false verdict is at most 0.07. Of it, 0.05 was set before the results" in said


def test_a_report_counts_runs_that_predate_the_study(worker: Use) -> None:
    """Otherwise another name would be a way to add seeds without paying for them."""
    set_before = (True, "the number of seeds was set before the results")
    run_plan(make())
    run_plan(make())
    assert set_before in checklist(Results(make()))
    Path("runs/s/study.json").rename("kept.json")
    assert (False, "no record shows that the number of seeds was set before the results") in checklist(Results(make()))
    Path("kept.json").rename("runs/s/study.json")
    run_plan(more := make(name="t", seeds=5))
    run_plan(more)
    [told] = [text for holds, text in checklist(Results(more)) if text.startswith(set_before[1]) and not holds]
    assert "but 9 of 15 runs had been made for other studies before this one was declared" in told
    run_plan(looks := make(name="u", seeds=None, decide={"max_seeds": 4}))
    [told] = [text for holds, text in checklist(Results(looks)) if text.startswith("the numbers of seeds") and not holds]
    assert "but 12 of 12 runs had been made" in told


def test_seeds_added_to_the_file_must_be_paid_for(worker: Use) -> None:
    run_plan(make())
    with pytest.raises(ConfigurationError, match=r"the seeds \[3\] were added after the first results.*pay for them with .*--spend ALPHA"):
        make(seeds=4)  # otherwise the report, too, would say that they were set before the results
    add_seeds(study(), Path("runs"), 1, spend=0.01)
    run_plan(make(seeds=4))
    assert json.loads(Path("runs/s/study.json").read_text())["looks_added"] == [{"seeds": 4, "alpha": 0.01}]
    assert len(make().runs) == 12


@pytest.mark.parametrize("seeds", [[0, 1], [0, 2], [0, 2, 1], [3, 0, 1, 2]])
def test_seeds_removed_from_or_moved_in_the_file_are_rejected(guessed: None, seeds: list[int]) -> None:
    """Whoever can remove a seed after the results can choose the answer, so every action that reads the results refuses."""
    make().lock()
    add_seeds(study(), Path("runs"), 1, spend=0.01)
    with pytest.raises(ConfigurationError, match=r"has results for the seeds \[0, 1, 2, 3\], but the study names"):
        make(seeds=seeds)
    assert make(seeds=[0, 1, 2]).study.seeds == make(seeds=[0, 1, 2, 3]).study.seeds == (0, 1, 2, 3)


@pytest.mark.parametrize("looks", ["x", [0.01], [{"seeds": 4}], [{"seeds": 1e9, "alpha": 0.5}], [{"seeds": 4, "alpha": "0.5"}]])
def test_a_study_record_with_damaged_looks_is_rejected(guessed: None, looks: Any) -> None:
    (plan := make()).lock()
    file = plan.study_folder / "study.json"
    write_json(file, json.loads(file.read_text()) | {"looks_added": looks})
    with pytest.raises(ConfigurationError, match=r"study\.json is damaged: .*looks_added"):
        make()


def test_a_study_runs_until_everything_is_decided(worker: Use) -> None:
    worker("value += 100 * ('none' in json.dumps(job['recipe']['model']))")
    plan = make(seeds=None, decide={"max_seeds": 6, "looks": [3, 6]}, factors={"model.stack.position": ["none"]})
    said: list[str] = []
    run_plan(plan, say=said.append)
    assert sum(lines("ran.txt").values()) == 6, "three seeds of two variants show it"
    results = Results(plan)
    assert results.complete
    assert [c.verdict for c in results.comparisons] == ["worse"]
    assert said[0] == "the next look needs 6 more of 12 runs"
    said.clear()
    run_plan(plan, say=said.append)
    assert said == ["6 of 6 runs are already finished"]
    assert sum(lines("ran.txt").values()) == 6
    for run in plan.runs[:1]:
        write_json(plan.run_folder(run.key) / PROVENANCE, asdict(made(packages={"jinja2": "0.1"})))
    said.clear()
    run_plan(plan, say=said.append)
    assert said[0] == "the next look needs 1 more of 12 runs", "the stale one"
    with pytest.raises(ConfigurationError, match="the study plans its looks in advance"):
        add_seeds(plan.study, Path("runs"), 1, spend=0.01)


def test_a_changed_study_under_the_same_name_is_rejected(worker: Use, capsys: pytest.CaptureFixture[str]) -> None:
    run_plan(make())
    with pytest.raises(ConfigurationError, match=r"runs/s has results of another study: min_effect changed since"):
        run_plan(make(min_effect=0.5))
    for effect, refused in ((0.5, True), (None, False)):
        Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"min_effect": effect}))
        assert ablate(["plan", "s.yaml", "--no-probe", "--folder", "runs"]) == 0
        assert ("note: attnkit ablate run refuses it: runs/s has results of another study" in capsys.readouterr().out) == refused
    run_plan(make(min_effect=0.5, name="t"))
    assert sum(lines("ran.txt").values()) == 9


def test_a_changed_recipe_is_reported_by_variant_and_setting(worker: Use) -> None:
    make(set={"model.deep": 1}).lock()
    expected = (
        r"another study: set, the complete recipes of baseline, position=none, position=learned "
        r"\(in baseline: model\.model\.deep\) changed since\. .* give the study another name \(equal runs are reused\), or undo the change"
    )
    with pytest.raises(ConfigurationError, match=expected):
        make(set={"model.deep": 2}).lock()


def test_a_study_of_another_version_is_rejected_with_advice(worker: Use) -> None:
    run_plan(plan := make())
    file = plan.study_folder / "study.json"
    old = json.loads(file.read_text())
    del old["format"]
    write_json(file, old | {"design": "full"})
    with pytest.raises(ConfigurationError, match=r"runs/s was made by another version of attnkit, .* rename the study or move"):
        make()


def test_failures_are_classified_and_retried_on_demand(worker: Use) -> None:
    worker("sys.exit(3)")
    plan = make()
    run_plan(plan)
    assert states(plan) == {"error": 9}
    assert [c.verdict for c in Results(plan).comparisons] == ["inconclusive", "inconclusive"]
    worker("")
    run_plan(plan, say=(said := list[str]()).append)
    assert said == ["9 of 9 runs are already finished; 9 of them failed, and attnkit ablate retry repeats them"]
    assert states(plan) == {"error": 9}
    assert retry(plan) == 9
    run_plan(plan)
    assert states(plan) == {"ok": 9}


def test_a_killed_run_is_retried_once(worker: Use) -> None:
    worker("if not (folder / 'second').exists(): (folder / 'second').touch(); os.kill(os.getpid(), signal.SIGKILL)")
    plan = make(seeds=2)
    run_plan(plan)
    assert states(plan) == {"ok": 6}
    worker("os.kill(os.getpid(), signal.SIGKILL)")
    plan = make(seeds=2, name="t", set={"model.optimizer.lr": 1e-3})
    run_plan(plan)
    assert states(plan) == {"killed": 6}
    assert set(lines("ran.txt").values()) == {2}


def test_a_run_beyond_its_timeout_is_ended(worker: Use) -> None:
    worker("time.sleep(600)")
    plan = make(timeout=0.5, seeds=2, factors={"model.stack.position": ["none"]})
    run_plan(plan, jobs=4)
    assert states(plan) == {"timeout": 4}


def test_fail_fast_stops_at_the_first_failure(worker: Use) -> None:
    worker("sys.exit(3)")
    with pytest.raises(ConfigurationError, match=r"baseline seed 0 failed \(error\): exit status 3; see attnkit ablate logs"):
        run_plan(make(), fail_fast=True)
    assert sum(lines("ran.txt").values()) == 1


@pytest.fixture
def signals() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("engine", [{"name": "local"}, {"name": "slurm", "cluster": "local"}], ids=["local", "slurm"])
@pytest.mark.parametrize("interrupt", [signal.default_int_handler, signal.SIG_IGN], ids=["foreground", "background"])
def test_fail_fast_ends_the_other_runs_which_can_resume(worker: Use, engine: dict[str, str], interrupt: Any, signals: None) -> None:
    signal.signal(signal.SIGINT, interrupt)  # commands started with a shell's `&` ignore it
    if engine["name"] == "slurm":
        pytest.importorskip("submitit", reason="the engine slurm needs submitit")
    worker(
        """
try:
    open("second", "x").close()  # only one of the two runs makes it
except FileExistsError:
    pass
else:
    while not os.path.exists("pid"): time.sleep(0.05)
    sys.exit(3)
with open("pid.part", "w") as file: file.write(str(os.getpid()))
os.replace("pid.part", "pid")
time.sleep(600)
"""
    )
    plan = make(seeds=2, factors={"model.stack.position": ["none"]})
    with pytest.raises(ConfigurationError, match="see attnkit ablate logs"):
        run_plan(plan, jobs=2, fail_fast=True, engine=engine)
    deadline = time.monotonic() + 30
    while Path("/proc", Path("pid").read_text()).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not Path("/proc", Path("pid").read_text()).exists()
    assert states(plan) == {"error": 1, "interrupted": 1, "pending": 2}


def test_a_metric_that_reused_runs_have_not_logged_stops_the_study(worker: Use) -> None:
    run_plan(make(seeds=2))
    message = r"'val/los' is never logged. Did you mean 'val/loss'\? Logged: val/loss"
    for _ in range(2):
        with pytest.raises(ConfigurationError, match=message):
            run_plan(make(name="t", seeds=2, metric="val/los", better="lower"))


def test_a_metric_that_is_never_logged_stops_the_study(worker: Use) -> None:
    with pytest.raises(ConfigurationError, match=r"'val/los' is never logged. Did you mean 'val/loss'\? Logged: val/loss"):
        run_plan(make(metric="val/los", better="lower"))
    assert sum(lines("ran.txt").values()) == 1


def test_a_variant_that_alone_lacks_the_metric_is_named(worker: Use) -> None:
    worker(
        """
if "none" in json.dumps(job["recipe"]):
    write("result.json", {"metrics": {"val/other": 1.0}, "batch_hash": ""})
    write("status.json", {"status": "ok", "wall_seconds": 1.0})
    sys.exit()
"""
    )
    with pytest.raises(
        ConfigurationError, match=r"^position=none seed 0 has not logged the metric 'val/loss', which other runs have logged"
    ):
        run_plan(make(seeds=2, factors={"model.stack.position": ["none"]}))


def test_a_non_finite_final_metric_is_reported(worker: Use) -> None:
    worker("value = None")
    lines: list[str] = []
    run_plan(study(seeds=2).plan(Path("runs")), say=lines.append)
    assert sum("val/loss is not finite: counts as diverged" in line for line in lines) == 6


def test_a_full_disk_stops_the_study_which_resumes_once_there_is_room(worker: Use) -> None:
    worker("write('status.json', {'status': 'failed', 'kind': 'disk_full', 'message': 'No space left on device'}); sys.exit(1)")
    with pytest.raises(ConfigurationError, match="the disk of runs is full; free some space and run the command again"):
        run_plan(make())
    worker("")
    run_plan(make())
    assert states(make()) == {"ok": 9}


def test_all_runs_stopped_by_a_full_disk_resume_once_there_is_room(worker: Use) -> None:
    full = "write('status.json', {'status': 'failed', 'kind': 'disk_full', 'message': 'No space left on device'})"
    worker(f"while len(list(folder.parent.iterdir())) < 2: time.sleep(0.01)\n{full}; sys.exit(1)")
    with pytest.raises(ConfigurationError, match="finished runs are kept, and the others continue"):
        run_plan(make(), jobs=2)
    assert states(make())["disk_full"] == 1, "one run was told, the other was not"
    worker("")
    run_plan(make())
    assert states(make()) == {"ok": 9}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_disk_too_full_for_the_plan_is_reported(worker: Use) -> None:
    Path("runs/s").mkdir(parents=True)
    Path(f"runs/s/.study.json.{os.getpid()}.tmp").symlink_to("/dev/full")
    with pytest.raises(ConfigurationError, match="the disk of runs is full"):
        run_plan(make())
    assert list(Path("runs/s").iterdir()) == []


def test_a_read_only_folder_of_results_is_reported() -> None:
    told = r"runs cannot be written to \(runs/s/a.json: Permission denied\); copy it .* as --folder"
    with pytest.raises(ConfigurationError, match=told), explaining_full_disk("runs"):
        raise PermissionError(errno.EACCES, "Permission denied", "runs/s/a.json")
    with pytest.raises(PermissionError), explaining_full_disk("runs"):
        raise PermissionError(errno.EACCES, "Permission denied", "words.tsv")


KINDS = {"timeout": True, "out_of_memory": True, "error": False, "configuration": False}


@pytest.mark.parametrize("kind", KINDS)
def test_the_kind_of_failure_decides_where_a_retry_starts(worker: Use, kind: str) -> None:
    worker(
        f"""
saved = folder / "checkpoints" / "last.ckpt"
with open("began.txt", "a") as file:
    file.write(f"{{saved.exists()}}" + chr(10))
if not (folder / "tried").exists():
    (folder / "tried").touch(); saved.parent.mkdir(); saved.touch()
    write("status.json", {{"status": "failed", "kind": {kind!r}, "message": "m"}}); sys.exit(1)
"""
    )
    plan = make(seeds=2, factors={"model.stack.position": ["none"]}, retries={kind: 1})
    run_plan(plan)
    assert states(plan) == {"ok": 4}
    assert lines("began.txt") == {"False": 4, str(KINDS[kind]): 4} if KINDS[kind] else {"False": 8}


def test_runs_are_assigned_to_the_given_gpus(worker: Use) -> None:
    worker("(folder / 'gpu').write_text(os.environ['CUDA_VISIBLE_DEVICES']); time.sleep(0.3)")
    plan = make(seeds=2)
    run_plan(plan, jobs=2, gpus=[3, 5])
    seen = Counter((plan.run_folder(r.key) / "gpu").read_text() for r in plan.runs)
    assert set(seen) == {"3", "5"}


def test_an_unknown_engine_or_engine_argument_is_rejected() -> None:
    with pytest.raises(ConfigurationError, match=r"engine: unknown 'slrum'. Did you mean 'slurm'\?"):
        study(engine="slrum")
    with pytest.raises(ConfigurationError, match=r"engine ray has no argument 'cpu'. Did you mean 'cpus'\?"):
        study(engine={"name": "ray", "cpu": 2})


@pytest.mark.parametrize(("name", "package"), [("slurm", "submitit"), ("ray", "ray")])
def test_an_engine_without_its_package_names_the_install_command(
    worker: Use, monkeypatch: pytest.MonkeyPatch, name: str, package: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigurationError, match=rf"engine {name} needs the package '{package}': pip install 'attnkit\[{name}\]'"):
        run_plan(make(engine=name))


def test_slurm_requires_sbatch(worker: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("submitit", reason="the engine slurm needs submitit")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigurationError, match=r"engine slurm: .* It needs sbatch"):
        run_plan(make(engine="slurm"))


def table(plan: Plan) -> list[dict[str, object]]:
    frame = Results(plan).frame()
    return [dict(row) for row in frame.drop(columns="seconds").to_dict("records")]


@pytest.mark.parametrize("engine", [{"name": "slurm", "cluster": "local"}, pytest.param({"name": "ray"}, marks=pytest.mark.slow)])
def test_every_engine_gives_the_same_table(worker: Use, engine: dict[str, str]) -> None:
    pytest.importorskip("submitit" if engine["name"] == "slurm" else "ray", reason=f"the engine {engine['name']} is not installed")
    factors = {"model.stack.position": ["none"]}
    here = study(seeds=2, factors=factors).plan(Path("here"))
    there = study(seeds=2, factors=factors, engine=engine).plan(Path("there"))
    run_plan(here, jobs=2)
    run_plan(there, jobs=2)
    assert states(there) == {"ok": 4}
    assert table(there) == table(here)
    assert markdown(Results(there)) == markdown(Results(here))


def test_a_run_is_running_while_a_process_has_its_lock(worker: Use) -> None:
    plan = make()
    run = plan.run_folder(plan.runs[0].key)
    assert status_of(run)["status"] == "pending"
    run.mkdir(parents=True)
    (run / "stderr.txt").touch()
    with owned(run):
        found = status_of(run)
        assert (found["status"], found["owner"].pid) == ("running", os.getpid())
    assert status_of(run)["status"] == "interrupted"


def test_waiting_for_a_run_names_the_process_that_holds_it(worker: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.ablation.progress.REPORT_INTERVAL", 1.0)
    plan, said = make(), list[str]()
    run = plan.run_folder(plan.runs[0].key)
    run.mkdir(parents=True)
    (run / "stderr.txt").touch()
    holding = ExitStack()
    holding.enter_context(owned(run))

    def say(line: str) -> None:
        said.append(line)
        if "so far" in line:
            holding.close()

    run_plan(plan, say=say)
    waits = [line for line in said if line.startswith("waiting")]
    assert waits[0].startswith(f"waiting for baseline seed 0, held by process {os.getpid()}, since 20")
    assert re.match(r"waiting for baseline seed 0 \(\d+ s so far\), held by process ", waits[1])
    assert states(plan) == {"ok": 9}


@pytest.mark.parametrize("status", [138, 143])  # by SIGUSR1 of SLURM, by SIGTERM
def test_a_terminated_worker_counts_as_killed(status: int, worker: Use) -> None:
    worker(f"sys.exit({status})")
    plan = make(seeds=2, factors={"model.stack.position": ["none"]}, retries={})
    run_plan(plan)
    assert states(plan) == {"killed": 4}


def test_a_failed_write_leaves_no_partial_file(tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        write_json(tmp_path / "status.json", {"status": "ok", "bad": object()})
    assert list(tmp_path.glob("*status*")) == []


ENGINE = """
import pathlib, sys
from attnkit.ablation import engine
from attnkit.worker import launch
from attnkit.worker.answers import Inspection
import attnkit.ablation.planning as planning
launch.shared = lambda: None  # the fake worker imports nothing, so a server would only cost its start
planning.inspect = lambda recipe, compositions, **_: [
    Inspection(recipe={"model": over, "data": {"name": "d"}}, parameters=10, takes_seed=True) for over in compositions]
engine.RUN = "fake_worker"
from tests.ablation.conftest import study
engine.run_plan(study(seeds=10).plan(pathlib.Path("runs")), jobs=2)
"""


def test_a_study_resumes_after_being_killed_at_any_point(worker: Use, seed: int) -> None:
    """Thirty runs; the engine is killed three times, alternately alone and with its children."""
    worker("time.sleep(0.05)")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]))
    for attempt in range(3):
        process = subprocess.Popen([sys.executable, "-c", ENGINE], env=environment, stdout=subprocess.DEVNULL)
        deadline, before = time.monotonic() + 60, sum(lines("ran.txt").values())
        while sum(lines("ran.txt").values()) < before + 1 + (seed + attempt) % 3 and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split() if process.poll() is None else []
        process.kill()
        process.wait()
        if attempt % 2:
            for child in children:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(child), signal.SIGKILL)
        done = set(lines("ended.txt"))
        assert all(json.loads((Path("runs/runs") / key / "status.json").read_text())["status"] == "ok" for key in done)
    time.sleep(0.5)  # children that outlived their parents can end
    finished = lines("ended.txt")
    plan = make(seeds=10)
    assert len(plan.runs) == 30
    run_plan(plan, jobs=2)
    assert states(plan) == {"ok": 30}
    for key, count in finished.items():
        assert lines("ended.txt")[key] == count  # no finished run was started again
    assert Results(plan).complete
    assert not Results(plan).unpaired()
