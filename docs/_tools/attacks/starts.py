"""Attacks on `attnkit fit`: several start at once."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from attacks import forks
from attacks.ledger import Ledger, randomness
from attacks.recipes import write_recipe
from attacks.runs import compare_runs, fresh, newest_run, tail, traceback_in
from attacks.training import FIT, calm, limit, undisturbed, wait


def together(ledger: Ledger, folder: Path, *, seed: int, tries: int) -> None:
    """Start all tries at once, each with its own learning rate; each must end like one that was started alone."""
    if len(ledger.tries) >= tries:
        return
    tries -= len(ledger.tries)
    random = randomness(seed, ledger.attack, len(ledger.tries))
    rates = [round(random.uniform(1e-3, 1e-2), 9) for _ in range(tries)]

    def begin(place: Path, name: str, rate: float) -> forks.Popen:
        return forks.begin([*FIT, f"--model.optimizer.lr={rate}"], directory=place, tag=str(folder), out=place / name)

    alone, place = [fresh(folder / f"calm_{i}") for i in range(tries)], fresh(folder / "together")
    for one in (*alone, place):
        write_recipe(one)
    processes = [begin(one, "calm", rate) for one, rate in zip(alone, rates, strict=True)]
    expected = [undisturbed(one, wait(process, 600)) for one, process in zip(alone, processes, strict=True)]
    processes = [begin(place, f"fit_{i}", rate) for i, rate in enumerate(rates)]
    statuses = [wait(process, 600) for process in processes]
    forks.kill(str(folder))
    runs = list(place.glob("runs/*/version_*"))
    outcomes = []
    for i, rate in enumerate(rates):
        problems = [] if statuses[i] == 0 else [f"status {statuses[i]}: {tail(place / f'fit_{i}.err')}"]
        problems += traceback_in(place / f"fit_{i}.err")
        own = [run for run in runs if _rate(run) == rate]
        if len(own) != 1:
            problems.append(f"{len(own)} folders have a config.yaml with its learning rate")
        else:
            problems += compare_runs(expected[i], own[0])
        outcomes.append(({"learning_rate": rate, "together": len(rates)}, not problems, "; ".join(problems)))
    ledger.add(outcomes)


def _rate(run: Path) -> Any:
    try:
        return yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))["model"]["optimizer"]["lr"]
    except (OSError, yaml.YAMLError, KeyError, TypeError):
        return None


def resume_twice(ledger: Ledger, folder: Path, *, seed: int, tries: int) -> None:
    """Resume a killed run twice at once: one must finish it, the other must be refused and told which process has it."""
    expected, seconds = calm(folder / "calm", write_recipe)
    while len(ledger.tries) < tries:
        number = len(ledger.tries)
        write_recipe(place := fresh(folder / f"run_{number}"))
        random = randomness(seed, ledger.attack, number)
        process = forks.begin(FIT, directory=place, tag=f"{place}.0", out=place / "killed")
        until = time.monotonic() + limit(seconds)
        while not list(place.glob("runs/*/version_*/checkpoints/last.ckpt")) and time.monotonic() < until and process.poll() is None:
            time.sleep(0.01)
        forks.kill(f"{place}.0")
        process.wait()
        apart = random.uniform(0, seconds / 4)
        both = []
        for name in ("first", "second"):
            both.append(forks.begin([*FIT, "--resume"], directory=place, tag=f"{place}.1", out=place / name))
            time.sleep(apart if name == "first" else 0)
        statuses = [wait(one, limit(seconds)) for one in both]
        forks.kill(f"{place}.1")
        problems = [found for name in ("first", "second") for found in traceback_in(place / f"{name}.err")]
        if sorted(status == 0 for status in statuses) != [False, True]:
            problems.append(f"the statuses are {statuses}")
        else:
            winner = statuses.index(0)
            refused = place / ("second.err" if winner == 0 else "first.err")
            if str(both[winner].pid) not in refused.read_text(encoding="utf-8"):
                problems.append(f"the second is not told who has the run: {tail(refused)}")
        problems += compare_runs(expected, newest_run(place))
        ledger.add([({"seconds": round(apart, 3)}, not problems, "; ".join(problems))])
        ledger.say(tries, problems)
        if not problems:
            shutil.rmtree(place)


STARTS: dict[str, Callable[..., None]] = {"together": together, "resume_twice": resume_twice}
