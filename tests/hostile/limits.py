"""Runs a loader of hostile files in a forked child with limits, so that neither crash, hang nor bomb reaches the tests."""

import faulthandler
import json
import math
import os
import resource
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CANARY = "ATTNKIT_CANARY"
"""The environment variable with the file that the code in a hostile file creates: `touch "$ATTNKIT_CANARY"`."""

WALL_CLOCK = 120  # seconds until a child that waits, and so uses no CPU time, is killed


@dataclass(frozen=True)
class Outcome:
    """The outcome of a call.

    Attributes:
        error: Type of the exception that ended it, such as `CheckpointError`; None if it returned.
        bases: The names of that type and of all its base classes.
        message: Text of the exception.
        value: Its return value, if that is an integer (an exit status) or a string.
        output: All that it printed, on stdout and stderr.
        seconds: CPU time.
        megabytes: Growth of the resident memory at its peak.
        signal: The signal that killed it: SIGXCPU is too much CPU time, SIGALRM too long a wait, SIGSEGV a crash.
        ran_code: Whether code of the file ran, and created the canary file.
        written: The files that it left in its working directory, which was empty.
    """

    error: str | None
    bases: tuple[str, ...]
    message: str
    value: int | str | None
    output: str
    seconds: float
    megabytes: float
    signal: str | None
    ran_code: bool
    written: tuple[str, ...]


def survive(call: Callable[[], object], *, seconds: float = 2.0, megabytes: int = 500) -> Outcome:
    """Run `call` in a forked child in an empty working directory, and return its outcome.

    Import beforehand whatever the call needs, and call the loader once on a good file: imports cost time and memory too. Paths that the
    call uses must be absolute. CPU time is measured, not wall-clock time, so that a busy machine fails no test. The child is killed one
    second after its time is up, and allocations fail beyond `megabytes` (with half as much again for address space that is not used).

    Args:
        call: The function to run.
        seconds: The CPU time that it may take.
        megabytes: The memory that it may take in addition.
    """
    with tempfile.TemporaryDirectory() as folder:
        canary, report, output, empty = (Path(folder) / name for name in ("canary", "report", "output", "empty"))
        empty.mkdir()
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of fork beside threads
            child = os.fork()
        if child == 0:
            try:
                _limit(canary, output, empty, seconds=seconds, megabytes=megabytes)
                report.write_text(json.dumps(_report(call)))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        _, status, usage = os.wait4(child, 0)
        found: dict[str, Any] = {"error": None, "bases": (), "message": "", "value": None, "megabytes": math.nan}
        if report.exists():
            found |= json.loads(report.read_text())
        return Outcome(
            **found | {"bases": tuple(found["bases"])},
            output=output.read_text(errors="replace") if output.exists() else "",
            seconds=usage.ru_utime + usage.ru_stime,
            signal=signal.Signals(os.WTERMSIG(status)).name if os.WIFSIGNALED(status) else None if report.exists() else "no report",
            ran_code=canary.exists(),
            written=tuple(sorted(str(path.relative_to(empty)) for path in empty.rglob("*"))),
        )


def _limit(canary: Path, output: Path, empty: Path, *, seconds: float, megabytes: int) -> None:
    os.chdir(empty)
    os.environ[CANARY] = str(canary)
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")  # not those of pytest
    faulthandler.disable()  # it writes to the stderr of pytest
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # the threads of the parent are not there
    for number in (signal.SIGALRM, signal.SIGXCPU):
        signal.signal(number, signal.SIG_DFL)
    signal.alarm(WALL_CLOCK)
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    limit = math.ceil(used + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    space = pages * resource.getpagesize() + int(1.5 * megabytes * 2**20)
    resource.setrlimit(resource.RLIMIT_AS, (space, space))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _report(call: Callable[[], object]) -> dict[str, Any]:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    report: dict[str, Any] = {}
    try:
        value = call()
        report["value"] = value if isinstance(value, int | str) else None
    except BaseException as error:
        names = [kind.__name__ for kind in type(error).__mro__]
        report |= {"error": names[0], "bases": names, "message": str(error)}
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return report | {"megabytes": (peak - before) / 1024}
