"""Supervises a training run: signals, other processes, and health."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from attnkit.callback import UnhealthyError
from attnkit.callback.stopping import Stopped, stop_signals
from attnkit.train.messages import one_message, quiet, restoring
from attnkit.train.output import notes, say
from attnkit.train.ranks import together
from attnkit.train.runs import is_first

RESUMING = {"fit": "`fit --resume` continues from the newest checkpoint, or starts again if there is none"}
UNHEALTHY = 3  # exit status of an unhealthy run, so that scripts do not keep restarting it


def supervised(command: str | None, train: Callable[[], Any], claims: ExitStack) -> None:
    """Call `train`, which runs a command, and handle signals, other processes, and warnings; `claims` hold the run's folder.

    Raises SystemExit if a signal stops the run or it is unhealthy.
    """
    try:
        with quiet(), stop_signals.taken(), together(claims, advice=RESUMING.get(command or "", "")), notes(), restoring(), one_message():
            train()
    except Stopped as stop:  # the first process determines the command's exit status
        say("\n".join([f"note: {stop}", *getattr(stop, "__notes__", ())]))
        raise SystemExit(stop.code if is_first() else 0) from None
    except UnhealthyError as error:
        say(f"attnkit: error: {error}")
        raise SystemExit(UNHEALTHY if is_first() else 0) from None
