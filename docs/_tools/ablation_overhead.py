"""The overhead of a study over its training runs: `python docs/_tools/ablation_overhead.py [PAIRS]`, with the extra `ablate` installed.

Runs of a study alternate with `attnkit fit` on the same recipe, since a machine is never quite idle; medians are printed. Then the engine
schedules processes that do nothing, alternating with the same processes without it, and a study of 1,000 variants is planned.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import yaml

STEPS = 40
RUNS = 20
STUDY: dict[str, Any] = {
    "name": "overhead",
    "recipe": "g2p/transformer",
    "seeds": 2,
    "factors": {"model.stack.attention": ["cosine"]},
    "set": {"trainer.max_steps": STEPS, "trainer.max_epochs": -1, "trainer.val_check_interval": STEPS, "trainer.limit_val_batches": 4},
}
WIDE = {**STUDY, "name": "wide", "design": "full_factorial", "factors": {"model.stack.num_heads": [1, 2, 4], "model.label_smoothing": []}}


def spent(command: list[str]) -> tuple[float, float]:
    """Return the wall-clock time and the processor time of a command, in seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.perf_counter() - began, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def pairs(count: int) -> None:
    """Print the times of a study's run and of `attnkit fit`."""
    from attnkit.ablation import Study
    from attnkit.worker.folder import write_json

    run = Study.from_yaml("overhead.yaml").plan("pairs").runs[0]
    fits, runs = [], []
    for i in range(count):
        write_json(Path(f"runs_of_a_study/{i}/job.json"), run.job)
        runs.append(spent([sys.executable, "-m", "attnkit.worker.run", str(Path(f"runs_of_a_study/{i}").absolute())]))
        fits.append(spent([*ATTNKIT, "fit", "--config", f"runs_of_a_study/{i}/recipe.yaml", "--trainer.enable_progress_bar", "false"]))
    for j, clock in enumerate(("wall", "processor")):
        fit, run_ = median(t[j] for t in fits), median(t[j] for t in runs)
        share = median(b[j] / a[j] for a, b in zip(fits, runs, strict=True)) - 1
        print(f"{clock}: fit {fit:.2f} s, run of a study {run_:.2f} s, median of {count} pairs {share:+.1%}")


def scheduling() -> None:
    """Print the overhead of the engine per run."""
    from attnkit.ablation import Study, engine

    Path("nothing.py").write_text("", encoding="utf-8")
    vars(engine)["RUN"] = "nothing"
    plan = Study.from_yaml("overhead.yaml").with_seeds(*range(RUNS // 2)).plan("runs")
    alone = timed(lambda: [subprocess.run([sys.executable, "-m", "nothing"], check=True) for _ in plan.runs])
    scheduled = timed(lambda: engine.run_plan(plan, say=lambda line: None))
    print(f"scheduling: {(scheduled - alone) / len(plan.runs):.3f} s for each of {len(plan.runs)} runs", flush=True)


def timed(work: Callable[[], object]) -> float:
    """Return how long a call takes, in seconds."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def planning() -> None:
    """Print how long planning 1,000 variants takes, the first time and again."""
    for which in ("first", "again"):
        variants, runs, *seconds = spoken([sys.executable, __file__, "plan"]).split()
        wall, processor, second = map(float, seconds)
        print(
            f"planning, {which}: {variants} variants, {runs} runs: {wall:.2f} s, processor time {processor:.2f} s, "
            f"and {second:.2f} s in the second process",
            flush=True,
        )


def plan() -> None:
    """Plan the wide study in this process; print its numbers of variants and runs, and the times."""
    from attnkit.ablation import Study
    from attnkit.worker.warm import shared

    began = time.perf_counter(), time.process_time()
    found = Study.from_yaml("wide.yaml").plan("runs")
    assert "torch" not in sys.modules
    seconds = time.perf_counter() - began[0], time.process_time() - began[1]
    if server := shared():
        server.close()
        if process := getattr(server, "_process", None):  # it was started, and its time counts here once it has ended
            process.wait()
    second = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(len(found.variants), len(found.runs), *seconds, second.ru_utime + second.ru_stime)


def spoken(command: list[str]) -> str:
    """Return the output of a command."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


ATTNKIT = [sys.executable, "-c", "import sys; from attnkit.cli.main import main; sys.exit(main())"]

if __name__ == "__main__":
    if sys.argv[1:] == ["plan"]:
        plan()
        sys.exit()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        WIDE["factors"]["model.label_smoothing"] = [round(i / 1000, 3) for i in range(1, 250)]
        for study in (STUDY, WIDE):
            Path(f"{study['name']}.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, os.environ.get("PYTHONPATH", "")])
        sys.path.insert(0, folder)
        scheduling()
        planning()
        pairs(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
