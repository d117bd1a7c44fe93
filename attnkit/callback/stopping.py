"""SIGINT, SIGTERM and SLURM's SIGUSR1: they end a process at once or, during training, between two steps with a checkpoint."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def signals_here() -> tuple[signal.Signals, ...]:
    """Return the signals that stop a run: in a job of SLURM also SIGUSR1, which scripts for Lightning ask for before the time limit."""
    return (*SIGNALS, signal.SIGUSR1) if "SLURM_JOB_ID" in os.environ else SIGNALS


class Stopped(SystemExit):
    """A signal stopped this process. If it is not caught, the exit status is 130 after SIGINT, 143 after SIGTERM and 138 after SIGUSR1.

    Example:
        >>> Stopped(signal.SIGINT).code, str(Stopped(signal.SIGTERM))
        (130, 'stopped by SIGTERM')
    """

    def __init__(self, received: signal.Signals) -> None:
        super().__init__(128 + received)
        self.signal = received

    def __str__(self) -> str:
        return f"stopped by {self.signal.name}"


@contextmanager
def stop_outlasting_errors() -> Iterator[None]:
    """Inside the `with` block, raise `Stopped` instead of an error in the code that cleans up after it.

    Lightning's teardown fails if a signal interrupts the start of a data loader ("Please call `iter(combined_loader)` first").
    """
    try:
        yield
    except Exception as error:
        before = error.__context__
        while before is not None and not isinstance(before, Stopped):
            before = before.__context__
        if before is None:
            raise
        raise before from None


class StopSignals:
    """Handles the signals of `signals_here` in this process.

    By default the first one raises `Stopped` wherever the process is. While they are deferred it is only recorded, and the code that
    defers them raises `Stopped` when nothing would be lost. After the first one SIGINT has its default effect: the second one ends at once.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None  # the first one
        self._deferred = False
        self._process = os.getpid()
        self._message = b""

    @contextmanager
    def taken(self) -> Iterator[None]:
        """Handle the signals until the end of the `with` block; in threads other than the main one this does nothing."""
        numbers = signals_here()
        before = [signal.getsignal(number) for number in numbers]
        self.take()
        try:
            yield
        finally:
            if threading.current_thread() is threading.main_thread():
                for number, handler in zip(numbers, before, strict=True):
                    signal.signal(number, handler)

    def take(self) -> None:
        """Handle the signals that are not ignored, as a shell's `&` ignores SIGINT; from now on they raise `Stopped`.

        SIGUSR1 keeps the handler that a program has given it.
        """
        self.received, self._deferred, self._process = None, False, os.getpid()
        if threading.current_thread() is threading.main_thread():
            for number in signals_here():
                handler = signal.getsignal(number)
                if handler is not signal.SIG_IGN and (number in SIGNALS or handler in (signal.SIG_DFL, self._handle)):
                    signal.signal(number, self._handle)

    def defer(self, message: str = "") -> None:
        """From now on only record a signal; `message` is written to stderr when the first one arrives."""
        self._deferred, self._message = True, message.encode()

    def act(self) -> None:
        """Forget a recorded signal; from now on, signals raise `Stopped`."""
        self.received, self._deferred = None, False

    def _handle(self, number: int, frame: FrameType | None) -> Any:
        if os.getpid() != self._process:  # a fork, such as one that loads data: its parent handles signals from a terminal
            if number == signal.SIGTERM:
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
            return
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if self.received is not None:
            return  # SIGTERM may come many times
        self.received = signal.Signals(number)
        if not self._deferred:
            raise Stopped(self.received)
        os.write(2, self._message)  # print is not safe here: the signal may have interrupted another print


stop_signals = StopSignals()  # the handler of this process
