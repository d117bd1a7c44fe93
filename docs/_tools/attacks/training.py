"""Attacks on `attnkit fit`: processes that are killed, runs that are started together, and a disk that fills up."""

import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import yaml

from attacks import forks
from attacks.ledger import Ledger, randomness
from attacks.recipes import write_recipe
from attacks.runs import compare_runs, fresh, newest_run, tail, traceback_in

FIT = (str(Path(sys.executable).with_name("attnkit")), "fit", "--config", "tiny.yaml")
MOST_KILLS = 6
"""Of a run; each is followed by a resume."""
PARTNER = 60
"""Seconds after which the partner of a process that was killed must have ended by itself."""

Kill = dict[str, Any]
Write = Callable[[Path], None]
Strike = Callable[[forks.Popen, Path, str, Random], Kill | None]
"""Waits for a random moment in the life of a process and kills; returns the moment, or None if the process ended before."""


def limit(seconds: float) -> float:
    """Return how long an undisturbed process may take before it counts as hung, if it took so many seconds when it was measured."""
    return 60 + 20 * seconds


def wait(process: forks.Popen, seconds: float) -> int | None:
    """Return the exit status of a process; None if it lives on after so many seconds."""
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        return None


def calm(folder: Path, write: Write) -> tuple[Path, float]:
    """Train without a disturbance; return the run and how many seconds it took."""
    write(fresh(folder))
    began = time.monotonic()
    status = wait(forks.begin(FIT, directory=folder, tag=str(folder), out=folder / "calm"), 600)
    return undisturbed(folder, status), time.monotonic() - began


def undisturbed(folder: Path, status: int | None) -> Path:
    """Return the run in a folder, which was not disturbed and so must have ended well."""
    run = newest_run(folder)
    if status != 0 or run is None:
        raise SystemExit(f"the training fails without an attack (status {status}): {tail(folder / 'calm.err')}")
    return run


def kill_training(ledger: Ledger, folder: Path, *, seed: int, tries: int, strategy: str | None) -> None:
    """Kill trainings at random moments: half of them uniform over the time of an undisturbed one, half over its rows of metrics.csv."""
    write = partial(write_recipe, strategy=strategy)
    expected, seconds = calm(folder / "calm", write)
    total = rows_in(folder / "calm")
    print(f"an undisturbed training takes {seconds:.1f} s and logs {total} rows", flush=True)

    def strike(process: forks.Popen, place: Path, tag: str, random: Random) -> Kill | None:
        if rows_in(place) > 0.8 * total:
            return None  # it may end; or most kills would hit the last rows
        target, by_time, part = random.choice(["all", 0, 1] if strategy else ["all"]), random.random() < 0.5, random.random()
        if by_time:
            wait(process, part * seconds)
        else:
            row = part * total
            if (before := rows_in(place)) > row:  # in what is left of a run that goes on
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
    """Kill trainings while the draft of a checkpoint lies in their folder; only kills that leave one count."""
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
    for count, _ in enumerate(_drafts(process, place, seen=True)):
        if count == number:
            time.sleep(after)
            forks.kill(tag)
            process.wait()
            run = newest_run(place)
            left = [path.name for path in drafts(place) if run is not None and path.is_relative_to(run)]
            return {"save": number, "seconds": round(after, 4), "drafts": left, "counts": bool(left)}
    return None


def drafts(place: Path) -> list[Path]:
    """Return the checkpoints that are being written, or were when a process was killed."""
    return list(place.glob("runs/*/version_*/checkpoints/.*.tmp"))


def _drafts(process: forks.Popen, place: Path, *, seen: bool = False) -> Iterator[tuple[float, float]]:
    """Yield when each draft appeared and when it was gone, or at once (`seen`) when it appears, while a process lives."""
    before, began = set(drafts(place)), 0.0
    current: set[Path] = set()
    until = time.monotonic() + 600
    while process.poll() is None and time.monotonic() < until:
        now = set(drafts(place)) - before
        if now and not current:
            began = time.monotonic()
            if seen:
                yield began, began
        elif current and not now and not seen:
            yield began, time.monotonic()
        current = now
        before &= set(drafts(place))  # a leftover that was removed may come again
        time.sleep(0.0005)


def rows_in(place: Path) -> int:
    """Return the rows that the newest run in a folder has logged, the header included."""
    run = newest_run(place)
    try:
        return 0 if run is None else (run / "metrics.csv").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def kill_ranks(tag: str, target: str | int) -> str:
    """Kill all processes of a try, or one rank if it is there yet; return what was killed."""
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
    """Begin a training and go on with it until it ends by itself, killed up to `most` times.

    Returns:
        The kills, each with the `problems` that it made at once; and what was wrong in the end.
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
            return [f"{len(left)} processes live on {PARTNER} s after their partner was killed"]
        time.sleep(0.05)
    return []


def together(ledger: Ledger, folder: Path, *, seed: int, tries: int) -> None:
    """Start all tries at once, each with a learning rate of its own; each must end as one that was started alone."""
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
    """Go on with a killed run twice at once: one must end it, the other must be refused and told which process has it."""
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


def disk_full(ledger: Ledger, folder: Path, *, seed: int, tries: int) -> None:
    """Train on a file system with too little room, then make room and go on. Needs the right to mount a tmpfs."""
    expected, seconds = calm(folder / "calm", write_recipe)
    written = sum(path.stat().st_size for path in expected.rglob("*") if path.is_file())
    print(f"an undisturbed training takes {seconds:.1f} s and leaves {written:,} bytes", flush=True)
    number = 1 + max((one.moment["run"] for one in ledger.tries), default=-1)
    while len(ledger.tries) < tries:
        random = randomness(seed, ledger.attack, number)
        room = random.randrange(written) if number % 2 else 4096 * random.randrange(32)  # whole pages: amid small files
        unmount(folder / f"run_{number}/disk")  # of a harness that was killed
        out = fresh(folder / f"run_{number}")
        with _file_system(out / "disk", size=8 * written + (1 << 20)) as place:
            write_recipe(place)
            _fill(place / "ballast", leave=room)
            tag = str(out)
            status = wait(forks.begin(FIT, directory=place, tag=tag, out=out / "full"), limit(seconds))
            forks.kill(tag)
            if status == 0:  # there was room enough
                number += 1
                continue
            problems = _full(out / "full.err", status) + _whole(place)
            (place / "ballast").unlink()
            status = wait(forks.begin([*FIT, "--resume"], directory=place, tag=f"{tag}.1", out=out / "resumed"), limit(seconds))
            forks.kill(f"{tag}.1")
            if status:
                problems.append(f"the resumed run ended with status {status}: {tail(out / 'resumed.err')}")
            problems += traceback_in(out / "resumed.err") + (compare_runs(expected, newest_run(place)) if status == 0 else [])
        ledger.add([({"run": number, "room": room}, not problems, "; ".join(problems))])
        ledger.say(tries, problems)
        if not problems:
            shutil.rmtree(out)
        number += 1


@contextmanager
def _file_system(place: Path, *, size: int) -> Iterator[Path]:
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", place], capture_output=True, text=True, check=False)
    if mounted.returncode:
        raise SystemExit(f"a small file system cannot be mounted ({mounted.stderr.strip()}): run it as root, or by `unshare -Urm`")
    try:
        yield place
    finally:
        unmount(place)


def unmount(place: Path) -> None:
    """Remove a file system, if there is one."""
    if place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)


def _fill(ballast: Path, *, leave: int) -> None:
    free = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - leave, 1))


def _full(err: Path, status: int | None) -> list[str]:
    """Return what is wrong with the end of a run for which there was no room."""
    if status is None:
        return ["it hangs when the disk is full"]
    last = tail(err)
    told = last.startswith("attnkit: error: ") and any(words in last for words in ("No space left", "is full", "make room"))
    return traceback_in(err) or ([] if told else [f"status {status}, but the message does not say that the disk is full: {last}"])


def _whole(place: Path) -> list[str]:
    """Return which checkpoints are not whole, of those that have their names."""
    from attnkit.task.checkpoint import require_undamaged

    problems = []
    for path in place.glob("runs/*/version_*/checkpoints/*.ckpt"):
        try:
            require_undamaged(path)
        except Exception as error:
            problems.append(f"{path.name} is not whole: {error}")
    return problems


TRAINING: dict[str, Callable[..., None]] = {
    "kill_single": partial(kill_training, strategy=None),
    "kill_ddp": partial(kill_training, strategy="ddp"),
    "kill_fsdp2": partial(kill_training, strategy="fsdp2"),
    "kill_saving": kill_saving,
    "together": together,
    "resume_twice": resume_twice,
    "disk_full": disk_full,
}
