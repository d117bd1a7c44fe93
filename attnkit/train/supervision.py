"""Supervising a training run: its signals, its other processes, and its health."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from attnkit.callback import UnhealthyError
from attnkit.callback.stopping import Stopped, stop_signals
from attnkit.train.messages import one_message, quiet, restoring
from attnkit.train.output import notes, say
from attnkit.train.ranks import together
from attnkit.train.runs import is_first

UNHEALTHY = 3  # exit status of an unhealthy run, so that scripts do not restart it forever


def supervised(train: Callable[[], Any], claims: ExitStack) -> None:
    """Call `train`, handling signals, the other processes of the run, and warnings; `claims` is what it holds.

    Raises SystemExit if the run was stopped by a signal, or because it was not healthy.
    """
    try:
        with quiet(), stop_signals.taken(), together(claims), notes(), restoring(), one_message():
            train()
    except Stopped as stop:  # the command's status is that of the first process
        say("\n".join([f"note: {stop}", *getattr(stop, "__notes__", ())]))
        raise SystemExit(stop.code if is_first() else 0) from None
    except UnhealthyError as error:
        say(f"attnkit: error: {error}")
        raise SystemExit(UNHEALTHY if is_first() else 0) from None
