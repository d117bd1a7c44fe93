"""A training under supervision: of signals, of the other processes of its run, and of its health."""

from collections.abc import Callable
from typing import Any

from lightning.pytorch.utilities import rank_zero_only

from attnkit.callback import UnhealthyError
from attnkit.callback.stopping import Stopped, stop_signals
from attnkit.checkpoint.restoring import restoring
from attnkit.train.messages import one_message, quiet
from attnkit.train.output import notes, say
from attnkit.train.ranks import together
from attnkit.train.runs import is_first

UNHEALTHY = 3
"""Exit status of a training that would only get worse, so that no script starts it again and again."""


def supervised(train: Callable[[], Any]) -> None:
    """Call `train` with signals, the other processes of the run and warnings taken care of.

    Raises:
        ConfigurationError: A recipe, a checkpoint or an argument is wrong.
        SystemExit: The run was stopped by a signal, or because it was not healthy.
    """
    try:
        with quiet(), stop_signals.taken(), together(), notes(), restoring(), one_message():
            train()
    except Stopped as stop:  # the first process's status is the command's
        rank_zero_only(say)("\n".join([f"note: {stop}", *getattr(stop, "__notes__", ())]))
        raise SystemExit(stop.code if is_first() else 0) from None
    except UnhealthyError as error:
        rank_zero_only(say)(f"attnkit: error: {error}")
        raise SystemExit(UNHEALTHY if is_first() else 0) from None
