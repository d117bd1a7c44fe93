"""Attacks on `attnkit ablate run` that kill its driver, its workers, both, or one of two drivers."""

import csv
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Literal

from attacks import forks
from attacks.ledger import Ledger, randomness
from attacks.recipes import write_study
from attacks.runs import fresh, tail, traceback_in
from attacks.training import FIT, MOST_KILLS, Kill, limit, wait

RUN = (FIT[0], "ablate", "run", "study.yaml", "--jobs", "2")
ALONE = 60
"""Seconds after which the workers of a killed driver count as hung: they kill themselves after 10, and a machine may be busy."""
EPOCHS = {"driver": 40, "workers": 10, "both": 10, "two": 10}
"""The epochs of each run: a worker without its driver must not end in time merely because its run is complete."""
TIMED = ("second", "memory", "clock")
Target = Literal["driver", "workers", "both", "two"]


def kill_study(ledger: Ledger, folder: Path, *, seed: int, tries: int, target: Target) -> None:
    """Kill a study at random moments, uniform over the duration of an undisturbed one, and restart it until it ends."""
    write_study(calm := fresh(folder / "calm"), epochs=EPOCHS[target])
    began = time.monotonic()
    status = wait(forks.begin(RUN, directory=calm, tag=str(calm), out=calm / "calm"), 900)
    seconds = time.monotonic() - began
    if status != 0:
        raise SystemExit(f"the study fails without an attack (status {status}): {tail(calm / 'calm.err')}")
    print(f"an undisturbed study takes {seconds:.1f} s", flush=True)
    several = {"workers": _workers_killed, "two": _one_of_two_killed}
    attacked = several.get(target, partial(_driver_killed, alone=target == "driver"))
    number = 1 + max((one.moment["run"] for one in ledger.tries), default=-1)
    while len(ledger.tries) < tries:
        write_study(place := fresh(folder / f"run_{number}"), epochs=EPOCHS[target])
        random, most = randomness(seed, ledger.attack, number), min(MOST_KILLS, tries - len(ledger.tries))
        kills, problems = attacked(place, random, seconds, most)
        problems += left_running(place)
        problems += [] if problems else compare_studies(calm, place)
        if problems and not kills:
            raise SystemExit(f"{place}: the study is lost without an attack: {'; '.join(problems)}")
        ledger.add(({"run": number, **kill}, not problems, "; ".join(problems)) for kill in kills)
        ledger.say(tries, problems)
        if not problems:
            shutil.rmtree(place)
        number += 1


def _driver_killed(place: Path, random: Random, seconds: float, most: int, *, alone: bool) -> tuple[list[Kill], list[str]]:
    """Kill the driver up to `most` times, alone or with its workers; return the kills and what went wrong."""
    kills: list[Kill] = []
    finished: dict[str, int] = {}
    while True:
        tag, out = f"{place}.{len(kills)}", place / f"leg_{len(kills)}"
        process = forks.begin(RUN, directory=place, tag=tag, out=out)
        moment = random.uniform(0, seconds)
        if len(kills) == most or wait(process, moment) is not None:
            return kills, _end(process, tag, out, seconds) + _rewritten(place, finished)
        kills.append({"leg": len(kills), "seconds": round(moment, 3)})
        if alone:
            before = len(_workers(place))
            process.kill()
            kills[-1] |= {"workers": before, "lived_on": round(_ended(place), 2)}
            if left := _workers(place):
                _kill_all(tag, place)
                return kills, [f"{len(left)} of {before} workers are still alive {ALONE} s after their driver was killed"]
        _kill_all(tag, place)
        process.wait()
        if again := _rewritten(place, finished):
            return kills, again


def _workers_killed(place: Path, random: Random, seconds: float, most: int) -> tuple[list[Kill], list[str]]:
    """Kill one worker, or all of them, up to `most` times in the life of one driver; return the kills and what went wrong."""
    kills: list[Kill] = []
    finished: dict[str, int] = {}
    tag, out = str(place), place / "leg_0"
    process = forks.begin(RUN, directory=place, tag=tag, out=out)
    while len(kills) < most:
        moment, kills_all = random.uniform(0, seconds / 2), random.random() < 0.5
        if wait(process, moment) is not None:
            break
        workers = _workers(place)
        chosen = workers if kills_all else workers[:1]
        for pid in chosen:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if chosen:
            kills.append({"after": round(moment, 3), "workers": len(chosen)})
        if again := _rewritten(place, finished):
            return kills, again
    return kills, _end(process, tag, out, seconds) + _rewritten(place, finished)


def _one_of_two_killed(place: Path, random: Random, seconds: float, most: int) -> tuple[list[Kill], list[str]]:
    """Kill one of two drivers of a folder up to `most` times, and start it again; return the kills and what went wrong."""
    kills: list[Kill] = []
    finished: dict[str, int] = {}

    def begin(which: int) -> tuple[forks.Popen, str, Path]:
        tag, out = f"{place}.{which}.{len(kills)}", place / f"leg_{which}_{len(kills)}"
        return forks.begin(RUN, directory=place, tag=tag, out=out), tag, out

    drivers = [begin(0), begin(1)]
    while len(kills) < most:
        moment, which = random.uniform(0, seconds / 2), random.randrange(2)
        if wait(drivers[which][0], moment) is not None:
            break
        drivers[which][0].kill()
        drivers[which][0].wait()
        kills.append({"after": round(moment, 3), "driver": which})
        drivers[which] = begin(which)
        _rewritten(place, finished)
    for process, _, _ in drivers:  # check for leftovers only after both end: their workers share the folder
        wait(process, limit(seconds))
    return kills, [problem for driver in drivers for problem in _end(*driver, seconds)] + _rewritten(place, finished)


def _end(process: forks.Popen, tag: str, out: Path, seconds: float) -> list[str]:
    """Wait for the end of a driver that is no longer disturbed; return what went wrong."""
    status = wait(process, limit(seconds))
    _ended(out.parent, tag)
    left = _kill_all(tag, out.parent)
    if status is None:
        return [f"the study hangs: {limit(seconds):.0f} s"]
    problems = [f"the study ended with status {status}: {tail(out.with_suffix('.err'))}"] if status else []
    problems += [f"{left} processes are still alive after the study has ended"] if left else []
    return problems + traceback_in(out.with_suffix(".err"))


def _workers(place: Path) -> list[int]:
    """Return the workers of a try, whoever forked them: the leaders of sessions that write to the folder of a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            out, pid = (process / "fd/1").readlink(), int(process.name)
            if out.name == "stdout.txt" and out.is_relative_to(place) and os.getsid(pid) == pid:
                found.append(pid)
    return found


def _kill_all(tag: str, place: Path) -> int:
    """Kill all processes of a try; return how many there were."""
    count = forks.kill(tag)
    for pid in (left := _workers(place)):
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    return count + len(left)


def _ended(place: Path, tag: str = "") -> float:
    """Wait for at most `ALONE` seconds until no worker of a try is left, or with a tag no process; return how long it took."""
    began = time.monotonic()
    while (_workers(place) or (tag and forks.alive(tag))) and time.monotonic() - began < ALONE:
        time.sleep(0.02)
    return time.monotonic() - began


def _rewritten(place: Path, finished: dict[str, int]) -> list[str]:
    """Return the runs that had finished before and were written again."""
    problems = []
    for file in place.glob("runs/ablations/runs/*/status.json"):
        with suppress(json.JSONDecodeError, OSError):
            if json.loads(file.read_text(encoding="utf-8"))["status"] == "ok":
                written = file.stat().st_mtime_ns
                if finished.setdefault(file.parent.name, written) != written:
                    problems.append(f"the run {file.parent.name} was finished, and was repeated")
    return problems


def left_running(place: Path, *, seconds: float = ALONE) -> list[str]:
    """Report processes in the folder of a try that are still alive after the given number of seconds."""
    until = time.monotonic() + seconds
    while left := sum(_is_in(process, place) for process in Path("/proc").glob("[0-9]*")):
        if time.monotonic() > until:
            return [f"{left} processes are left running"]
        time.sleep(0.05)
    return []


def _is_in(process: Path, place: Path) -> bool:
    with suppress(OSError):  # it has ended
        return (process / "cwd").readlink().is_relative_to(place)
    return False


def compare_studies(expected: Path, found: Path) -> list[str]:
    """Return how the results and tables of two studies differ, apart from times."""
    problems = []
    for name in ("runs.csv", "report.csv"):
        one, other = (_table(study / "runs/ablations/study" / name) for study in (expected, found))
        if one != other:
            problems.append(f"{name} differs: {next(((a, b) for a, b in zip(one, other, strict=False) if a != b), 'another length')}")
    results = [_results(study) for study in (expected, found)]
    if results[0] != results[1]:
        names = [key for key in results[0] | results[1] if results[0].get(key) != results[1].get(key)]
        problems.append(f"the results of {len(names)} of {len(results[0])} runs differ")
    return problems


def _table(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return [{k: v for k, v in row.items() if not any(part in k for part in TIMED)} for row in csv.DictReader(file)]


def _results(study: Path) -> dict[str, Any]:
    found = {}
    for file in study.glob("runs/ablations/runs/*/result.json"):
        result = json.loads(file.read_text(encoding="utf-8"))
        curve = [{k: v for k, v in point.items() if k != "seconds"} for point in result["curve"]]
        kept = ("metrics", "batches", "batch_hash", "tokens", "parameters", "lengths")
        found[file.parent.name] = {"curve": curve, **{name: result[name] for name in kept}}
    return found


STUDIES: dict[str, Callable[..., None]] = {
    "kill_driver": partial(kill_study, target="driver"),
    "kill_workers": partial(kill_study, target="workers"),
    "kill_both": partial(kill_study, target="both"),
    "two_drivers": partial(kill_study, target="two"),
}
