"""A run of a study: paired, exact when it goes on, and honest about how it ended."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import yaml

from attnkit import ablation
from attnkit.ablation import Study
from attnkit.ablation.results import Results
from attnkit.ownership import owned
from attnkit.worker import recorder as recording
from attnkit.worker.costs import count
from attnkit.worker.folder import BUSY, read_json, read_record, status_of
from attnkit.worker.provenance import Provenance
from attnkit.worker.recorder import Recorder
from attnkit.worker.run import failure, main
from tests.ablation.conftest import SEEDS, STUDY
from tests.worker.conftest import run

pytestmark = pytest.mark.usefixtures("small_recipe")


KILL_REASON = "takes minutes: set ATTNKIT_KILL=1"


def test_variants_see_equal_batches_and_other_seeds_different_ones() -> None:
    one = run("one")
    other = run("other", {"model": {"stack": {"num_layers": 2, "position": "learned"}}})
    assert one["batches"] == other["batches"] > 4
    assert one["batch_hash"] == other["batch_hash"]
    assert one["metrics"]["val/loss"] != other["metrics"]["val/loss"]
    assert run("data", seeds=SEEDS | {"data": 9})["batch_hash"] != one["batch_hash"]
    shared = one["starts"].keys() & other["starts"].keys()
    assert len(shared) == len(one["starts"]) > 5  # the deeper model has all, and more
    assert all(one["starts"][name] == other["starts"][name] for name in shared)


def test_a_stopped_run_has_not_failed_even_if_lightnings_teardown_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        finally:
            raise RuntimeError("Please call `iter(combined_loader)` first.")

    Path("one").mkdir()
    with monkeypatch.context() as patched:
        patched.setattr("attnkit.worker.run.train", stopped)
        assert main(Path("one").absolute()) == 128 + signal.SIGTERM
    assert read_json(Path("one/status.json")) is None
    assert run("one")["metrics"]


def test_per_example_records_reproduce_the_metrics_of_the_run() -> None:
    """Their quotient is the metric; of the test, if that was the last evaluation."""
    for name, layers, test in (("val", (), False), ("test", (), True)):
        found = run(name, {"model": {"metrics": ["sequence_error_rate", "token_error_rate"]}}, *layers, test=test)
        assert found["examples"].keys() == {"loss", "token_accuracy", "sequence_error_rate", "token_error_rate"}
        for metric, (top, bottom) in found["examples"].items():
            assert sum(top) / sum(bottom) == pytest.approx(found["metrics"][f"{name}/{metric}"], rel=1e-5)
        assert sum(found["examples"]["sequence_error_rate"][1]) == sum(row["count"] for row in found["lengths"]["source"])


def test_an_examples_group_does_not_depend_on_the_data_seed() -> None:
    """The order of the batches of an evaluation depends on that seed; what differs from example to example is the number of tokens."""
    Path("words.tsv").write_text("".join(f"{'abcd'[i % 4] * (i % 3 + 1)}{i}\t{'a ' * (i % 5)}b\n" for i in range(24)), encoding="utf-8")
    one, other = (run(str(seed), seeds=SEEDS | {"data": seed}, test=True) for seed in (1, 2))
    assert len(set(one["examples"]["loss"][1])) > 1
    assert one["examples"]["loss"][1] == other["examples"]["loss"][1]
    assert one["example_set"] == other["example_set"]


def test_each_seed_kind_controls_only_its_purpose() -> None:
    one = run("one")
    assert run("again")["metrics"] == one["metrics"]
    for kind in ("initialisation", "dropout"):
        other = run(kind, seeds=SEEDS | {kind: 9})
        assert other["batch_hash"] == one["batch_hash"]
        assert (other["starts"] == one["starts"]) is (kind == "dropout")
        assert other["metrics"]["val/loss"] != one["metrics"]["val/loss"]


def test_an_interrupted_run_resumes_to_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run("whole")

    class CutError(Exception):
        pass

    end = Recorder.on_train_batch_end

    def cut(self: Recorder, trainer: Any, *others: Any) -> None:
        end(self, trainer, *others)
        self.began -= 1000  # as if each batch took so long
        if trainer.current_epoch == 1:
            raise CutError

    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "on_train_batch_end", cut)
        run("cut")
    assert (status_of(Path("cut"))["kind"], status_of(Path("cut"))["in_training"]) == ("error", True)
    Path("cut/status.json").unlink()
    main(Path("cut").absolute())
    resumed = read_json(Path("cut/result.json"))
    assert status_of(Path("cut"))["status"] == "ok"
    kept = whole["batches"] / 2  # those of the first epoch; the others were trained again
    assert 1000 * kept < status_of(Path("cut"))["wall_seconds"] < 1000 * (kept + 1)
    for key in ("metrics", "batches", "batch_hash", "starts", "tokens"):
        assert resumed[key] == whole[key]
    assert len(resumed["curve"]) == 2


def test_a_run_killed_after_its_last_step_keeps_its_last_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that continues has nothing left to train or to validate, but for a sanity check of a few batches."""
    with monkeypatch.context() as patch:
        patch.setattr("attnkit.worker.run.operations_per_token", None)
        run("cut", {"model": {"metrics": ["sequence_error_rate"]}, "trainer": {"max_epochs": 1}})
    assert status_of(Path("cut"))["kind"] == "error"
    assert "in_training" not in status_of(Path("cut"))
    Path("cut/status.json").unlink()
    main(Path("cut").absolute())
    found = read_json(Path("cut/result.json"))
    assert [sum(row["count"] for row in found["lengths"][side]) for side in ("source", "target")] == [32, 32]
    assert [sum(found["examples"][name][1]) for name in ("loss", "sequence_error_rate")] == [6 * 32, 32]
    assert sum(found["examples"]["loss"][0]) / (6 * 32) == pytest.approx(found["metrics"]["val/loss"], rel=1e-5)


def test_a_terminated_run_saves_a_checkpoint_first(monkeypatch: pytest.MonkeyPatch) -> None:
    end = Recorder.on_train_batch_end

    def asked(self: Recorder, trainer: Any, *others: Any) -> None:
        end(self, trainer, *others)
        if trainer.global_step == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Recorder, "on_train_batch_end", asked)
    run("asked")
    assert not Path("asked/status.json").exists()  # so that it goes on
    assert torch.load("asked/checkpoints/last.ckpt", weights_only=True)["global_step"] == 2
    assert main(Path("asked").absolute()) == 0
    assert status_of(Path("asked"))["status"] == "ok"


def test_a_run_with_a_dead_process_counts_as_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: Any) -> None:
        raise RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer")

    monkeypatch.setattr(Recorder, "on_train_batch_end", lose)
    with pytest.raises(SystemExit):
        run("lost")
    assert status_of(Path("lost"))["kind"] == "killed"


def test_a_diverging_run_is_recorded_as_diverged() -> None:
    run("wild", {"model": {"optimizer": {"name": "sgd", "lr": 1e30}}, "trainer": {"max_epochs": 3}})
    assert status_of(Path("wild"))["status"] == "diverged"


def test_test_metrics_come_from_the_best_checkpoint() -> None:
    assert "test/loss" in run("tested", test=True)["metrics"]


def test_test_metrics_are_those_of_averaged_weights() -> None:
    never = {"class_path": "EMAWeightAveraging", "init_args": {"update_starting_at_step": 10**6}}  # the average is the initial model
    best = {"class_path": "ModelCheckpoint", "init_args": {"monitor": "val/loss"}}
    averaged = run("averaged", {"trainer": {"callbacks": [never, best]}}, test=True)
    still = run("still", {"model": {"optimizer": {"name": "sgd", "lr": 0.0}}}, test=True)
    assert averaged["metrics"]["test/loss"] == still["metrics"]["test/loss"]


def test_testing_an_early_checkpoint_keeps_the_full_training_record() -> None:
    first = {"class_path": "ModelCheckpoint", "init_args": {"monitor": "val/loss", "mode": "max"}}  # the loss falls: the worst is the first
    plain, tested = run("plain"), run("tested", {"trainer": {"callbacks": [first]}}, test=True)
    assert [tested[name] for name in ("batches", "batch_hash", "tokens")] == [plain[name] for name in ("batches", "batch_hash", "tokens")]
    assert [point["step"] for point in tested["curve"]] == [point["step"] for point in plain["curve"]]
    assert tested["curve"][-1]["batches"] == tested["batches"]
    assert "batches" not in tested["metrics"]
    assert tested["metrics"]["test/loss"] > tested["curve"][-1]["val/loss"], "the first checkpoint was not the worst: this proves nothing"


@pytest.mark.parametrize("test", [False, True])
def test_metrics_by_length_add_up_to_the_overall_metrics(test: bool) -> None:
    result = run("lengths", {"model": {"metrics": ["sequence_error_rate", "token_error_rate"]}}, test=test)
    for side, length in (("source", 3), ("target", 5)):  # characters
        table = result["lengths"][side]
        assert [row["length"] for row in table] == [length]
        assert sum(row["count"] for row in table) == 32
        for name in ("sequence_error_rate", "token_error_rate"):
            assert table[0][name] == pytest.approx(result["metrics"][f"{'test' if test else 'val'}/{name}"])


def test_a_result_records_the_cost_of_the_run() -> None:
    result = run("one")
    assert result["tokens_per_second"] == pytest.approx(result["tokens"] / result["seconds"], rel=0.01)
    assert result["memory"] > 1e7
    assert result["clock"] in ("processor", "wall")
    wide = run("wide", {"model": {"stack": {"d_model": 16}}})
    assert not Path("one/progress.json").exists(), "that is of runs that are not finished"
    assert 2 < wide["flops_per_token"] / result["flops_per_token"] < 4  # most products grow with the square of the width
    assert "lengths" in result


def test_runs_differing_in_seed_or_learning_rate_reuse_the_flop_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    counted: list[str] = []
    monkeypatch.setattr("attnkit.worker.costs.count", lambda *given: counted.append("one more") or count(*given))  # type: ignore[func-returns-value]
    costs = [
        {name: result[name] for name in ("flops_per_token", "elementwise_per_token")}
        for result in (
            run("one"),
            run("other_seeds", seeds={"initialisation": 4, "data": 2, "dropout": 6}),
            run("other_rate", {"model": {"optimizer": {"name": "adamw", "lr": 0.1}}}),
            run("wide", {"model": {"stack": {"d_model": 16}}}),
        )
    ]
    assert costs[0] == costs[1] == costs[2] != costs[3]
    assert len(counted) == 2
    made = [read_record(Provenance, Path(name, "provenance.json")) for name in ("one", "other_seeds")]
    assert made[0] == made[1]


def test_processes_with_different_examples_draw_different_dropout() -> None:
    def drawn(*, rank: int, batches: int) -> list[float]:
        recorder = Recorder(SEEDS)
        recorder.batches = batches
        trainer: Any = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": 2, "rank": rank})
        recorder.on_train_batch_start(trainer, torch.nn.Module(), None, 0)
        return torch.rand(4).tolist()

    draws = [drawn(rank=rank, batches=batches) for rank in (0, 1) for batches in range(50)]
    assert drawn(rank=1, batches=3) == draws[53]
    assert len({tuple(d) for d in draws}) == 100


def test_validation_time_is_excluded_from_training_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(recording, "now", lambda: clock[0])
    recorder, batch = Recorder(SEEDS), {"src": torch.tensor([[5, 2]])}
    alone = SimpleNamespace(reduce_boolean_decision=bool)
    trainer: Any = SimpleNamespace(
        sanity_checking=False, callback_metrics={}, global_step=1, distributed_sampler_kwargs=None, strategy=alone
    )
    task: Any = SimpleNamespace(device=torch.device("cpu"), parameters=lambda: [])
    for training, validation in ((5.0, 60.0), (7.0, 80.0)):
        recorder.on_train_batch_start(trainer, task, batch, 0)
        clock[0] += training
        recorder.on_validation_start(trainer, task)
        clock[0] += validation
        recorder.on_validation_end(trainer, task)
    recorder.on_train_batch_start(trainer, task, batch, 0)
    clock[0] += 1.0
    recorder.on_train_end(trainer, task)
    assert [point["seconds"] for point in recorder.curve] == [5.0, 12.0]
    assert recorder.seconds == 13.0


def test_a_wrong_recipe_is_a_failed_run_with_its_message() -> None:
    run("wrong", {"model": {"stack": {"num_heads": 3}}})
    status = status_of(Path("wrong"))
    assert (status["status"], status["kind"]) == ("failed", "configuration")


def test_a_run_that_fails_as_it_continues_has_not_failed_in_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its provenance is that of its earlier part, with the code that was imported until it failed."""
    Path("late.py").write_text("def fail(*_):\n    raise ZeroDivisionError\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    for hook, in_training in (("on_train_epoch_end", True), ("setup", None)):
        with monkeypatch.context() as patch:
            patch.setattr(Recorder, hook, lambda *_: __import__("late").fail(), raising=False)
            run("one")
        status = status_of(Path("one"))
        assert (status["kind"], status.get("in_training")) == ("error", in_training)
        Path("one/status.json").unlink()
    assert "late" in read_json(Path("one/provenance.json"))["code"]


@pytest.mark.parametrize(
    ("error", "kind", "in_training"),
    [
        (torch.linalg.LinAlgError("singular"), "error", True),
        (torch.OutOfMemoryError("CUDA out of memory"), "out_of_memory", True),
        (OSError(errno.ENOMEM, "no memory"), "out_of_memory", True),
        (ConnectionResetError(), "error", None),
        (ModuleNotFoundError("No module named 'late'"), "error", None),
        (ChildProcessError("a process that loads batches died"), "killed", None),
    ],
)
def test_an_error_of_the_machine_is_no_failure_of_training(error: Exception, kind: str, in_training: bool | None) -> None:
    found = failure(error, in_training=True)
    assert (found["kind"], found.get("in_training")) == (kind, in_training)
    assert "in_training" not in failure(error, in_training=False)


def test_a_run_held_by_another_process_is_left_alone() -> None:
    Path("busy").mkdir()
    with owned(Path("busy")):
        assert main(Path("busy")) == BUSY


def test_a_missing_package_is_named(attnkit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": 2}), encoding="utf-8")
    monkeypatch.setitem(sys.modules, "scipy", None)
    loaded = {name: module for name, module in sys.modules.items() if name.startswith("attnkit.ablation.")}
    for name, module in loaded.items():
        monkeypatch.delitem(sys.modules, name)
        package, _, own = name.rpartition(".")
        monkeypatch.setattr(loaded.get(package, ablation), own, module)  # afterwards these attributes are the old modules again
    outcome = attnkit("ablate", "compare", "s.yaml", "baseline", "position=none")
    assert outcome.status == 2
    assert "attnkit ablate needs the package 'scipy" in outcome.err
    assert "pip install 'attnkit[ablate]'" in outcome.err


@pytest.mark.slow
def test_a_study_runs_from_plan_to_report(attnkit: Any) -> None:
    factors = {"model.stack.position": ["rotary", "none"]}
    Path("s.yaml").write_text(yaml.safe_dump(STUDY | {"seeds": 2, "factors": factors}), encoding="utf-8")
    planned = attnkit("ablate", "plan", "s.yaml")
    assert planned.status == 0, planned.err
    assert "s: 2 variants x 2 seeds = 4 runs of tiny.yaml" in planned.out
    assert "left out: position=rotary: position 'rotary' does not work with attention 'additive'" in planned.out
    assert "4 runs to do: about" in planned.out
    assert "Times by variant: 2 from a probe of a few steps." in planned.out
    ran = attnkit("ablate", "run", "s.yaml", "--jobs", 2)
    assert ran.status == 0, ran.err
    assert re.search(r"position=none (cannot be told from|is better than|is worse than) baseline: val/loss ", ran.out), ran.out
    page = Path("runs/ablations/s/report.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 5
    assert "http" not in page.replace("http://www.w3.org", "")  # which names SVG, and is not asked for anything
    assert "✓</b>all variants saw the same batches in the same order" in page
    key = next(Path("runs/ablations/runs").iterdir()).name
    reproduced = attnkit("ablate", "reproduce", "s.yaml", key)
    assert reproduced.status == 0, reproduced.out
    assert "batches: the same\n" in reproduced.out
    assert "'basline:0' is not a run. Did you mean 'baseline:0'?" in attnkit("ablate", "logs", "s.yaml", "basline:0").err
    assert "model.stack.position.name" in attnkit("ablate", "diff", "s.yaml", "baseline", "position=none").out
    assert "no variant 'basline'. Did you mean 'baseline'?" in attnkit("ablate", "compare", "s.yaml", "basline", "position=none").err
    assert attnkit("ablate", "status", "s.yaml").out.count("ok ") == 4


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill an engine and all that it began, whichever session they are in."""
    found, new = [], [process.pid]
    while new:
        children = [Path(f"/proc/{pid}/task/{pid}/children") for pid in new]
        found, new = found + new, [int(child) for file in children if file.exists() for child in file.read_text().split()]
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def outcome(folder: str) -> tuple[list[str], Any]:
    """Return the verdicts of a study, and its table without times."""
    results = Results(Study.from_yaml("s.yaml").plan(folder))
    frame = results.frame()
    kept = ["variant", "seed", "status", "run", "parameters", "batches", "tokens", "batch_hash", *(c for c in frame if "/" in c)]
    return results.sentences(), frame[kept].to_dict("records")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runs", "kills"), [(4, 2), pytest.param(30, 5, marks=pytest.mark.skipif("not os.environ.get('ATTNKIT_KILL')", reason=KILL_REASON))]
)
def test_a_study_killed_at_random_moments_gives_the_same_report(runs: int, kills: int, seed: int) -> None:
    """The engine and its runs are killed, with -9. The report is that of a calm study; nothing finished is begun again."""
    content = STUDY | {"seeds": runs // 2, "factors": {"model.stack.position": ["none"]}, "set": {"trainer.max_epochs": 4}}
    Path("s.yaml").write_text(yaml.safe_dump(content), encoding="utf-8")
    program = "import sys; from attnkit.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "ablate", "run", "s.yaml", "--jobs", "2", "--folder"]
    began = time.monotonic()
    subprocess.run([*command, "calm"], check=True, capture_output=True)
    random, took = Random(seed), time.monotonic() - began
    finished: dict[Path, int] = {}
    for _ in range(kills):
        process = subprocess.Popen([*command, "wild"], stdout=subprocess.DEVNULL)
        with suppress(subprocess.TimeoutExpired):
            process.wait(random.uniform(0.1, 0.3) * took)
        kill(process)
        for file in Path("wild/runs").glob("*/status.json"):
            assert file.stat().st_mtime_ns == finished.setdefault(file, file.stat().st_mtime_ns)
    print(f"{len(finished)} of {runs} runs had finished when the study was killed for the last time")
    subprocess.run([*command, "wild"], check=True, capture_output=True)
    assert outcome("wild") == outcome("calm")
    assert len(list(Path("wild/runs").glob("*/status.json"))) == runs
    for file, written in finished.items():
        assert file.stat().st_mtime_ns == written
        assert file.with_name("provenance.json").stat().st_mtime_ns < written
