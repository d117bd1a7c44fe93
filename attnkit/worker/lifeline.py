"""Ends a worker process if its driver has died or its time is up. No torch.

The worker's stdin is a pipe whose other end the driver holds open without writing to it. However the driver ends, the system closes the
pipe, so the end of stdin means the end of the driver.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from attnkit.worker.folder import note

DRIVEN, TIMEOUT = "--driven", "--timeout="
STDIN = 0
GRACE = 10  # seconds between SIGTERM, on which a process saves a checkpoint, and SIGKILL


def hold_on(folder: Path, arguments: Sequence[str]) -> None:
    """Start watching the driver and the clock.

    When the driver has died or the time is up, this process gets SIGTERM, and `GRACE` seconds later its process group is killed. A job
    that took too long is recorded as failed; one whose driver has died is not, and the next driver resumes it. `arguments` may contain
    `--driven` and `--timeout=SECONDS`; with neither, there is nothing to watch.
    """
    timeout = next((float(a.removeprefix(TIMEOUT)) for a in arguments if a.startswith(TIMEOUT)), None)
    if DRIVEN in arguments or timeout is not None:
        threading.Thread(target=_watch, args=(folder, DRIVEN in arguments, timeout), daemon=True, name="attnkit-lifeline").start()


def is_child() -> bool:
    """Return whether Lightning started this process as another rank of a run; only the first rank holds the lock and writes."""
    return int(os.environ.get("LOCAL_RANK", "0")) > 0


def took_too_long(timeout: float) -> str:
    """Return the message for a job that was stopped after its timeout."""
    return f"took more than {timeout:g} s"


def _watch(folder: Path, driven: bool, timeout: float | None) -> None:
    lost, *_ = select.select([STDIN] if driven else [], [], [], timeout)
    if not is_child():  # the first rank stops the others
        if lost:
            print("attnkit: the process that started this one has died; saving the state and exiting", file=sys.stderr, flush=True)
        elif timeout is not None:
            note(folder, "timeout", took_too_long(timeout))
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    if os.getpgid(0) == os.getsid(0):  # it has its own process group
        os.killpg(0, signal.SIGKILL)  # including data loaders and other ranks
    os.kill(os.getpid(), signal.SIGKILL)
