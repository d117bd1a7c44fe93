"""An attack on `attnkit fit`: the disk fills up."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from attacks import forks
from attacks.ledger import Ledger, randomness
from attacks.recipes import write_recipe
from attacks.runs import compare_runs, fresh, newest_run, tail, traceback_in
from attacks.training import FIT, calm, limit, wait


def disk_full(ledger: Ledger, folder: Path, *, seed: int, tries: int) -> None:
    """Train on a file system with too little space, then free space and resume. Needs permission to mount a tmpfs."""
    expected, seconds = calm(folder / "calm", write_recipe)
    written = sum(path.stat().st_size for path in expected.rglob("*") if path.is_file())
    print(f"an undisturbed training takes {seconds:.1f} s and leaves {written:,} bytes", flush=True)
    number = 1 + max((one.moment["run"] for one in ledger.tries), default=-1)
    while len(ledger.tries) < tries:
        random = randomness(seed, ledger.attack, number)
        room = random.randrange(written) if number % 2 else 4096 * random.randrange(32)  # whole pages: in the middle of small files
        unmount(folder / f"run_{number}/disk")  # left by a killed harness
        out = fresh(folder / f"run_{number}")
        with _file_system(out / "disk", size=8 * written + (1 << 20)) as place:
            write_recipe(place)
            _fill(place / "ballast", leave=room)
            tag = str(out)
            status = wait(forks.begin(FIT, directory=place, tag=tag, out=out / "full"), limit(seconds))
            forks.kill(tag)
            if status == 0:  # there was enough room
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
    """Unmount a file system, if there is one."""
    if place.is_mount():
        subprocess.run(["umount", "--lazy", place], check=True)


def _fill(ballast: Path, *, leave: int) -> None:
    free = os.statvfs(ballast.parent)
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, max(free.f_bavail * free.f_frsize - leave, 1))


def _full(err: Path, status: int | None) -> list[str]:
    """Return what is wrong with the end of a run that ran out of disk space."""
    if status is None:
        return ["it hangs when the disk is full"]
    last = tail(err)
    says_so = last.startswith("attnkit: error: ") and any(words in last for words in ("No space left", "is full", "make room"))
    return traceback_in(err) or ([] if says_so else [f"status {status}, but the message does not say that the disk is full: {last}"])


def _whole(place: Path) -> list[str]:
    """Return the incomplete checkpoints among those under their final names."""
    from attnkit.checkpoint import require_undamaged

    problems = []
    for path in place.glob("runs/*/version_*/checkpoints/*.ckpt"):
        try:
            require_undamaged(path)
        except Exception as error:
            problems.append(f"{path.name} is not whole: {error}")
    return problems


DISK: dict[str, Callable[..., None]] = {"disk_full": disk_full}
