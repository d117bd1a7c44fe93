"""The processor time of a small run, as a fresh interpreter and as a fork of a warm server.

The run is the smallest one of `attacks.recipes`: EPOCHS (4) of a tiny encoder-decoder. The two kinds alternate; medians are printed, also
of training alone. Processor time is that of the run and all its children. The server's own, which a study spends once, is printed
separately, and so is the first run of each kind, which finds an empty cache and counts operations. The results of all runs must be equal.

Usage: python docs/_tools/warm_runs.py [RUNS [EPOCHS]]
"""

import os
import resource
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from attacks.recipes import write_study

TIMES = ("seconds", "tokens_per_second", "memory", "curve")
CACHE = Path("cache")
MEASURED = """
import resource, runpy, sys
from pathlib import Path
try:
    runpy.run_module("attnkit.worker.run", run_name="__main__", alter_sys=True)
finally:
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    Path(sys.argv[1], "spent").write_text(str(sum(one.ru_utime + one.ru_stime for one in spent)))
"""


def carried_out(folder: Path, job: Any, server: Any) -> tuple[float, float, dict[str, Any]]:
    """Return a run's processor time and training time in seconds, and its other results."""
    from attnkit.worker.folder import read_json, write_json
    from attnkit.worker.job import Job

    write_json(folder / "job.json", job)
    if Job(folder=folder, directory=Path.cwd(), worker="measured").carry_out(None, server):
        raise SystemExit((folder / "stderr.txt").read_text(encoding="utf-8"))
    found = read_json(folder / "result.json")
    return float((folder / "spent").read_text()), found["seconds"], {key: value for key, value in found.items() if key not in TIMES}


def main(count: int) -> None:
    """Print the medians of `count` runs of each kind."""
    from attnkit.ablation import Study
    from attnkit.worker.warm import Server

    job = Study.from_yaml("study.yaml").plan("runs").runs[0].job
    server, results = Server(), []
    spent: dict[str, list[float]] = {"fresh": [], "warm": []}
    trained: dict[str, list[float]] = {"fresh": [], "warm": []}
    for i in range(count + 1):
        for kind, starts in (("fresh", None), ("warm", server)):
            if i == 0:
                shutil.rmtree(CACHE, ignore_errors=True)
            processor, training, result = carried_out(Path(f"{kind}_{i}").absolute(), job, starts)
            spent[kind].append(processor)
            trained[kind].append(training)
            results.append(result)
    if any(result != results[0] for result in results):
        raise SystemExit("the results differ")
    for kind, (first, *seconds) in spent.items():
        span, training = f"of {count}: {min(seconds):.2f} to {max(seconds):.2f}", median(trained[kind][1:])
        print(f"{kind}: {median(seconds):.2f} s of processor time ({span}), {training:.2f} of training; first {first:.2f} s")
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = server._process
    server.close()
    assert process is not None
    process.wait()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"the server, once: {after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime - sum(spent['warm']):.2f} s")
    print(f"the results of all {len(results)} runs are equal")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        os.environ["ATTNKIT_CACHE"] = str(CACHE.absolute())
        write_study(Path(), epochs=int(sys.argv[2]) if len(sys.argv) > 2 else 4)
        Path("measured.py").write_text(MEASURED, encoding="utf-8")
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
