"""Runs share a GPU as far as its memory allows; a GPU of unknown memory is not shared."""

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from attnkit.ablation import gpus as module
from attnkit.ablation.engine import run_plan
from attnkit.ablation.gpus import CONTEXT, SPARE, Gpus, measured
from tests.ablation.conftest import study

GIB = 1 << 30
Use = Callable[[str], None]


def simulated(**used: int) -> Callable[[], dict[int, tuple[int, int]]]:
    return lambda: {number: (used.get(f"gpu{number}", 0), 16 * GIB) for number in (0, 1)}


def test_runs_are_spread_first_and_then_share_until_memory_is_full() -> None:
    gpus, peak = Gpus([0, 1], simulated()), 4 * GIB / SPARE  # 5 GiB with CUDA's own
    assert [gpus.place(f"run{i}", peak) for i in range(7)] == [0, 1, 0, 1, 0, 1, None]
    assert gpus.release("run1")
    assert gpus.place("run6", peak) == 1


def test_the_memory_bound_includes_the_margin_and_the_cuda_context() -> None:
    for excess, place in ((0, 0), (1, None)):
        gpus = Gpus([0], simulated())
        gpus.place("a", (8 * GIB - CONTEXT) / SPARE)
        assert gpus.place("b", (8 * GIB - CONTEXT) / SPARE + excess) == place


def test_a_run_of_unknown_memory_gets_its_own_gpu() -> None:
    gpus = Gpus([0, 1], simulated())
    assert [gpus.place("a", None), gpus.place("b", GIB), gpus.place("c", GIB), gpus.place("d", None)] == [0, 1, 1, None]
    assert not gpus.release("a")
    assert gpus.place("d", None) == 0
    assert gpus.place("e", 14 * GIB) is None


def test_memory_used_by_other_processes_counts() -> None:
    gpus = Gpus([0, 1], simulated(gpu0=14 * GIB))
    assert [gpus.place(name, GIB) for name in "abc"] == [0, 1, 1]


def test_runs_that_just_started_count_with_their_expected_memory() -> None:
    gpus = Gpus([0], simulated(gpu0=GIB))
    assert gpus.place("a", 8 * GIB) == 0
    assert gpus.place("b", 8 * GIB) is None


def test_without_nvidia_smi_nothing_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert measured() == {}
    gpus = Gpus([2, 2, 4])
    assert [gpus.place(name, 1.0) for name in "abc"] == [2, 4, None]


@pytest.mark.parametrize(
    ("answer", "memory"),
    [
        ("0, 1024, 81559\n1, 5, 81559\n", {0: (1 << 30, 81559 << 20), 1: (5 << 20, 81559 << 20)}),
        ("0, [N/A], [N/A]\n", {}),  # as on some integrated GPUs
        ("Failed to initialize NVML\n", {}),
    ],
)
def test_memory_is_read_from_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, memory: object) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\nprintf '{answer}'\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert measured() == memory


AT_ONCE = """
import fcntl
def count(by):
    with open("at_once", "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX); file.seek(0); n = int(file.read() or 0) + by; file.truncate(0); file.write(str(n))
        return n
n = count(1)
(folder / "seen").write_text(json.dumps([os.environ["CUDA_VISIBLE_DEVICES"], n, job["shared_gpu"]]))
time.sleep(0.5)
"""
DONE = """
count(-1)
value = {"metrics": {"val/loss": 1.0}, "curve": [], "batch_hash": "0", "memory": 2.0 ** 30}
write("result.json", value); write("status.json", {"status": "ok", "wall_seconds": 1.0}); sys.exit(0)
"""


def test_a_study_shares_a_gpu_once_the_memory_of_its_runs_is_known(worker: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Gpus.__init__, "__defaults__", (simulated(),))
    worker(AT_ONCE + DONE)
    plan = study(seeds=3, factors={"model.stack.position": ["none"]}).plan(Path("runs"))
    run_plan(plan, jobs=4, gpus=[1])
    seen = {run.key: json.loads((plan.run_folder(run.key) / "seen").read_text()) for run in plan.runs}
    assert {gpu for gpu, _, _ in seen.values()} == {"1"}
    assert max(n for _, n, _ in seen.values()) > 1
    assert all(shared for _, _, shared in seen.values())


def test_a_run_out_of_memory_on_a_shared_gpu_is_repeated_alone(worker: Use, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.Gpus.__init__, "__defaults__", (simulated(),))
    fails = """
if n > 1:
    count(-1); write("status.json", {"status": "failed", "kind": "out_of_memory", "message": "m"}); sys.exit(1)
"""
    worker(AT_ONCE + fails + DONE)
    said: list[str] = []
    plan = study(seeds=3, factors={"model.stack.position": ["none"]}).plan(Path("runs"))
    run_plan(plan, jobs=4, gpus=[1], say=said.append)
    assert any("out of memory on a shared GPU; running again on a GPU of its own" in line for line in said)
    assert sum(" ok " in line for line in said) == len(plan.runs)
