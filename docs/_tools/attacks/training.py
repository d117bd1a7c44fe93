"""Attacks on `attnkit fit` that kill its processes."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from attacks import forks
from attacks.ledger import Ledger, randomness
from attacks.recipes import write_recipe
from attacks.runs import compare_runs, fresh, newest_run, tail, traceback_in

FIT = (str(Path(sys.executable).with_name("attnkit")), "fit", "--config", "tiny.yaml")
MOST_KILLS = 6
"""Maximum per run; each is followed by a resume."""
PARTNER = 60
"""Seconds within which the partner of a killed process must end by itself."""

Kill = dict[str, Any]
Write = Callable[[Path], None]
Strike = Callable[[forks.Popen, Path, str, Random], Kill | None]
"""Waits for a random moment in the life of a process and kills; returns the moment, or None if the process ended before."""


def limit(seconds: float) -> float:
    """Return the seconds after which a process counts as hung, given the measured seconds of an undisturbed one."""
    return 60 + 20 * seconds


def wait(process: forks.Popen, seconds: float) -> int | None:
    """Return the exit status of a process; None if it is still alive after the given number of seconds."""
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        return None


def calm(folder: Path, write: Write) -> tuple[Path, float]:
    """Train undisturbed; return the run and its duration in seconds."""
    write(fresh(folder))
    began = time.monotonic()
    status = wait(forks.begin(FIT, directory=folder, tag=str(folder), out=folder / "calm"), 600)
    return undisturbed(folder, status), time.monotonic() - began


def undisturbed(folder: Path, status: int | None) -> Path:
    """Return the undisturbed run in a folder, which must have succeeded."""
    run = newest_run(folder)
    if status != 0 or run is None:
        raise SystemExit(f"the training fails without an attack (status {status}): {tail(folder / 'calm.err')}")
    return run


def kill_training(ledger: Ledger, folder: Path, *, seed: int, tries: int, strategy: str | None) -> None:
    """Kill runs at random moments: half of them uniform over the duration of an undisturbed one, half over its rows of metrics.csv."""
    write = partial(write_recipe, strategy=strategy)
    expected, seconds = calm(folder / "calm", write)
    total = rows_in(folder / "calm")
    print(f"an undisturbed training takes {seconds:.1f} s and logs {total} rows", flush=True)

    def strike(process: forks.Popen, place: Path, tag: str, random: Random) -> Kill | None:
        if rows_in(place) > 0.8 * total:
            return None  # it may finish; otherwise most kills would hit the last rows
        targets: list[str | int] = ["all", 0, 1] if strategy else ["all"]
        target, by_time, part = random.choice(targets), random.random() < 0.5, random.random()
        if by_time:
            wait(process, part * seconds)
        else:
            row = part * total
            if (before := rows_in(place)) > row:  # in the remainder of a resumed run
                row = before + part * (total - before)
            until = time.monotonic() + limit(seconds)
            while rows_in(place) < row and time.monotonic() < until and process.poll() is None:
                time.sleep(0.002)
            if rows_in(place) < row and process.poll() is None:
                forks.kill(tag)
                return {"by": "rows", "rows": rows_in(place), "problems": [f"no row {row:.0f} after {limit(seconds):.0f} s"]}
            wait(process, random.uniform(0, seconds / total))
        if process.poll() is not None:
            return None
        return {"by": "time" if by_time else "rows", "rows": rows_in(place), "killed": kill_ranks(tag, target)}

    _runs(ledger, folder, seed, tries, lambda number: (write, expected, seconds, strike))


def kill_saving(ledger: Ledger, folder: Path, *, seed: int, tries: int) -> None:
    """Kill runs while their folder holds a partial checkpoint; only kills that leave one behind count."""
    settings = []
    for strategy in (None, "fsdp2"):
        write = partial(write_recipe, strategy=strategy, saving=True)
        expected, seconds = calm(folder / f"calm_{strategy}", write)
        place = folder / f"watched_{strategy}"
        write(fresh(place))
        process = forks.begin(FIT, directory=place, tag=str(place), out=place / "watched")
        lives = [ended - began for began, ended in _drafts(process, place)]
        if not lives:
            raise SystemExit("no draft of a checkpoint was ever seen")
        life = statistics.median(lives)
        print(f"{strategy or 'one process'}: {seconds:.1f} s, {len(lives)} drafts of {1000 * life:.0f} ms", flush=True)
        settings.append((write, expected, seconds, partial(_strike_saving, life)))
    _runs(ledger, folder, seed, tries, lambda number: settings[number % 2])


def _strike_saving(life: float, process: forks.Popen, place: Path, tag: str, random: Random) -> Kill | None:
    number, after = random.randrange(8), random.uniform(0, life)
    for count, _ in enumerate(_drafts(process, place, at_once=True)):
        if count == number:
            time.sleep(after)
            forks.kill(tag)
            process.wait()
            run = newest_run(place)
            left = [path.name for path in drafts(place) if run is not None and path.is_relative_to(run)]
            return {"save": number, "seconds": round(after, 4), "drafts": left, "counts": bool(left)}
    return None


def drafts(place: Path) -> list[Path]:
    """Return the partial checkpoints: being written now, or when a process was killed."""
    return list(place.glob("runs/*/version_*/checkpoints/.*.tmp"))


def _drafts(process: forks.Popen, place: Path, *, at_once: bool = False) -> Iterator[tuple[float, float]]:
    """While a process is alive, yield when each partial checkpoint appeared and disappeared, or (`at_once`) as soon as it appears."""
    before, began = set(drafts(place)), 0.0
    current: set[Path] = set()
    until = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < until:
        now = set(drafts(place)) - before
        if now and not current:
            began = time.monotonic()
            if at_once:
                yield began, began
        elif current and not now and not at_once:
            yield began, time.monotonic()
        current = now
        before &= set(drafts(place))  # a leftover may reappear after its removal
        time.sleep(0.0005)


def rows_in(place: Path) -> int:
    """Return the number of rows that the newest run in a folder has logged, including the header."""
    run = newest_run(place)
    try:
        return 0 if run is None else (run / "metrics.csv").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def kill_ranks(tag: str, target: str | int) -> str:
    """Kill all processes of a try, or one rank if it has started; return what was killed."""
    ranks = [process["pid"] for process in forks.alive(tag) if process["rank"] == target]
    if not ranks:
        forks.kill(tag)
        return "all"
    with suppress(ProcessLookupError):
        os.kill(ranks[0], signal.SIGKILL)
    return f"rank {target}"


def _runs(ledger: Ledger, folder: Path, seed: int, tries: int, setting: Callable[[int], tuple[Write, Path, float, Strike]]) -> None:
    number = 1 + max((one.moment["run"] for one in ledger.tries), default=-1)
    while len(ledger.tries) < tries:
        write, expected, seconds, strike = setting(number)
        place = fresh(folder / f"run_{number}")
        write(place)
        random = randomness(seed, ledger.attack, number)
        most = min(MOST_KILLS, tries - len(ledger.tries))
        kills, problems = _killed(place, random, strike, seconds, most)
        problems = problems or compare_runs(expected, newest_run(place))
        if problems and not kills:
            raise SystemExit(f"{place}: the training is lost without an attack: {'; '.join(problems)}")
        found = [kill.pop("problems", []) + problems for kill in kills]
        ledger.add(({"run": number, **kill}, not one, "; ".join(one)) for kill, one in zip(kills, found, strict=True))
        ledger.say(tries, [problem for one in found for problem in one])
        if not any(found):
            shutil.rmtree(place)
        number += 1


def _killed(place: Path, random: Random, strike: Strike, seconds: float, most: int) -> tuple[list[Kill], list[str]]:
    """Start a run and resume it until it ends by itself, killing it up to `most` times.

    Returns:
        The kills, each with the immediate `problems`; and the problems at the end.
    """
    kills: list[Kill] = []
    for leg in range(2 * MOST_KILLS):
        tag, out = f"{place}.{leg}", place / f"leg_{leg}"
        process = forks.begin([*FIT, *(["--resume"] if leg else [])], directory=place, tag=tag, out=out)
        kill = strike(process, place, tag, random) if len(kills) < most and leg < 2 * MOST_KILLS - 1 else None
        if kill is None:
            status = wait(process, limit(seconds))
            forks.kill(tag)
            if status is None:
                return kills, [f"leg {leg} hangs: {limit(seconds):.0f} s"]
            failed = [f"leg {leg} ended with status {status}: {tail(out.with_suffix('.err'))}"] if status else []
            return kills, failed or traceback_in(out.with_suffix(".err"))
        problems = kill.pop("problems", []) + _partners(tag)
        if kill.get("killed", "all") != "all":
            problems += traceback_in(out.with_suffix(".err"))
        if kill.pop("counts", True):
            kills.append({"leg": leg, **kill, "problems": problems})
    return kills, []


def _partners(tag: str) -> list[str]:
    """Wait until no process of a try is left."""
    until = time.monotonic() + PARTNER
    while left := forks.alive(tag):
        if time.monotonic() > until:
            forks.kill(tag)
            return [f"{len(left)} processes are still alive {PARTNER} s after their partner was killed"]
        time.sleep(0.05)
    return []


KILLS: dict[str, Callable[..., None]] = {
    "kill_single": partial(kill_training, strategy=None),
    "kill_ddp": partial(kill_training, strategy="ddp"),
    "kill_fsdp2": partial(kill_training, strategy="fsdp2"),
    "kill_saving": kill_saving,
}
