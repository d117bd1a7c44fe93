"""What makes a run of a study end in time when nobody is there to end it: its driver was killed, or does not look at the clock any more.

The driver holds the other end of the pipe that is this process's stdin. The system closes it when the driver ends, however it ends, so the
end of stdin is the end of the driver. The driver never writes.
"""

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from attnkit.ablation.launch import DRIVEN, GRACE, note, took_too_long

TIMEOUT = "--timeout="
STDIN = 0


def hold_on(folder: Path, arguments: Sequence[str]) -> None:
    """Begin to watch the driver and the clock.

    When the driver is gone or the time is over, this process gets SIGTERM, and `GRACE` seconds later its group is killed. A run that takes
    too long is written down as failed; one whose driver is gone is not, and goes on with the next driver.

    Args:
        folder: Of the run.
        arguments: `--driven` and `--timeout=SECONDS`, or one of them; without both, there is nothing to watch.
    """
    timeout = next((float(a.removeprefix(TIMEOUT)) for a in arguments if a.startswith(TIMEOUT)), None)
    if DRIVEN in arguments or timeout is not None:
        is_first = int(os.environ.get("LOCAL_RANK", "0")) == 0
        threading.Thread(target=_watch, args=(folder, DRIVEN in arguments, timeout, is_first), daemon=True, name="attnkit-lifeline").start()


def _watch(folder: Path, driven: bool, timeout: float | None, is_first: bool) -> None:
    lost, *_ = select.select([STDIN] if driven else [], [], [], timeout)
    if is_first:  # it tells the others
        if lost:
            print("attnkit: the process that began this run is gone, so the run saves its state and ends", file=sys.stderr, flush=True)
        elif timeout is not None:
            note(folder, "timeout", took_too_long(timeout))
        os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE)
    if os.getpgid(0) == os.getsid(0):  # the group of this run alone
        os.killpg(0, signal.SIGKILL)  # loaders of data and other ranks too
    os.kill(os.getpid(), signal.SIGKILL)
