"""How long the runs of a plan will take: as finished ones took, else as a few steps take, which a second process trains. No torch."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attnkit import __version__
from attnkit.ablation.inspection import source_version
from attnkit.ablation.plan import Plan
from attnkit.ablation.progress import Say
from attnkit.ablation.store import key_of, read_json, status_of, write_json
from attnkit.registry import ConfigurationError

PROBER = "attnkit.cli.probe"
MOST = 8
"""So many variants are probed; of more, those are taken that are spread evenly over the list."""
SECONDS = 60.0
"""After so many seconds no further variant is probed."""
PATIENCE = 180.0
"""After so many seconds the process is ended."""


@dataclass(frozen=True, kw_only=True)
class Probe:
    """What a few steps of a variant took, and what follows for a whole run. In seconds.

    Attributes:
        startup: Until the first step: imports, data, model.
        step: An optimizer step.
        steps: How many a run has.
        training: All steps.
        validation: One validation, by a batch of an untrained model; one that generates may need longer than when it is trained.
        validations: How many a run has, with the one of the test data.
        flops_per_token: Of training, forward and backward, for each token that is no padding; None without tokens.
    """

    startup: float
    step: float
    steps: float
    training: float
    validation: float
    validations: float
    flops_per_token: int | None = None

    @property
    def seconds(self) -> float:
        """A whole run."""
        return self.startup + self.training + self.validation * self.validations


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """How long runs take.

    Attributes:
        seconds: Of a run, by variant. Empty if nothing is known.
        finished: Variants of which runs have finished.
        probes: What was found for those that were probed.
        taken: For each of the others, the variant whose time stands for its own: the one that is nearest in parameters.
        failed: Why a probe came to nothing, by variant.
    """

    seconds: Mapping[str, float] = field(default_factory=dict)
    finished: Sequence[str] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)

    @property
    def mean(self) -> float | None:
        """Seconds of a run, averaged over variants; None if nothing is known."""
        return sum(self.seconds.values()) / len(self.seconds) if self.seconds else None


def estimate(plan: Plan, *, probe: bool, say: Say = print) -> Estimate:
    """Return how long the runs of a plan take. What is probed is kept, so that it is known the next time.

    Args:
        plan: The plan.
        probe: Whether variants of which nothing is known are probed; without, only what earlier probes found is used.
        say: Is told what is probed.
    """
    finished = _finished(plan)
    runs = [run for run in plan.runs if run.seed == plan.study.seeds[0]]
    first = {run.variants[0]: run.job for run in runs}
    machine = [platform.node(), os.cpu_count(), *(os.environ.get(name) for name in ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES"))]
    shared = [__version__, source_version(), machine]
    files = {
        name: plan.folder / "probes" / f"{key_of([shared, _without_seeds(job)])}.json"
        for name, job in first.items()
        if name not in finished
    }
    unknown = [name for name, file in files.items() if _stored(file) is None]
    failed = {}
    if probe and unknown and len(files) - len(unknown) < MOST:
        chosen = spread(unknown, MOST)
        which = f"{len(chosen)} of {len(unknown)} variants" if len(chosen) < len(unknown) else f"{len(chosen)} variants"
        say(f"timing a few steps of {which} (at most {PATIENCE:.0f} s; --no-probe leaves it out)")
        failed = _probe({name: first[name] for name in chosen}, files)
    probes = {name: found for name, file in files.items() if (found := _stored(file)) is not None}
    known = finished | {name: found.seconds for name, found in probes.items()}
    known |= {name: known[run.variants[0]] for run in runs for name in run.variants if run.variants[0] in known}  # the same composition
    sizes = {name: inspection.parameters or 0 for name, inspection in plan.inspections.items()}
    names = [v.name for v in plan.variants]
    taken = {name: min(known, key=lambda k: abs(sizes[k] - sizes[name])) for name in names if name not in known} if known else {}
    return Estimate(
        seconds={name: known[taken.get(name, name)] for name in names} if known else {},
        finished=list(finished),
        probes=probes,
        taken=taken,
        failed=failed,
    )


def _stored(file: Path) -> Probe | None:
    """Return the probe in a file; None if there is none, or it is damaged."""
    try:
        probe = Probe(**read_json(file))
    except (TypeError, ConfigurationError):
        return None
    return probe if all(isinstance(value, int | float | None) for value in vars(probe).values()) else None


def spread(names: Sequence[str], count: int) -> list[str]:
    """Return so many of the names, the first and the last among them.

    Example:
        >>> spread("abcdefg", 3), spread("ab", 3)
        (['a', 'd', 'g'], ['a', 'b'])
    """
    if len(names) <= count:
        return list(names)
    return [names[round(i * (len(names) - 1) / (count - 1))] for i in range(count)]


def _finished(plan: Plan) -> dict[str, float]:
    """Return the seconds of a run of each variant that has finished ones."""
    times: dict[str, list[float]] = {}
    for run in plan.runs:
        status = status_of(plan.run_folder(run.key))
        if status["status"] == "ok" and status.get("wall_seconds") is not None:
            for name in run.variants:
                times.setdefault(name, []).append(status["wall_seconds"])
    return {name: sum(found) / len(found) for name, found in times.items()}


def _without_seeds(job: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a job's time depends on."""
    data = {key: value for key, value in job["recipe"]["data"].items() if key != "seed"}
    return {**job, "recipe": {**job["recipe"], "data": data}, "seeds": None}


def _probe(jobs: Mapping[str, Mapping[str, Any]], files: Mapping[str, Path]) -> dict[str, str]:
    """Keep the answers of the second process, and return why the others have none."""
    process = subprocess.Popen(
        [sys.executable, "-m", PROBER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    ended = ""
    try:
        out, _ = process.communicate(json.dumps({"began": time.time(), "seconds": SECONDS, "jobs": list(jobs.values())}), PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        out, _ = process.communicate()
        ended = f"took more than {PATIENCE:.0f} s"
    except BaseException:
        process.kill()
        raise
    answers = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    failed = {}
    for name, answer in zip(jobs, answers, strict=False):
        if "error" in answer:
            failed[name] = answer["error"]
        else:
            write_json(files[name], answer)
    if len(answers) < len(jobs) and (ended or process.returncode):
        failed[list(jobs)[len(answers)]] = ended or f"its process ended with status {process.returncode}"
    return failed
