"""Watches the processes of a run on this machine: if one dies, a single message names it, and none outlives the first."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress

import torch.distributed

from attnkit.callback.stopping import Stopped, signals_here
from attnkit.lightning_internals import observing_processes
from attnkit.ownership import process_exists
from attnkit.registry import ConfigurationError

LAUNCHER = "ATTNKIT_LAUNCHER"  # environment variable in which the first process passes its process id to the processes it starts
LOST = 76  # exit status of a process that exits because another one died (EX_PROTOCOL in sysexits.h)

POLL = 0.2
NOTICED = 3.0  # seconds for a parent or child to notice the death of a process
GRACE = 30.0  # seconds for the other processes to exit after the first one finishes, or after their connection broke


@contextmanager
def together(claims: ExitStack | None = None, *, advice: str = "") -> Iterator[None]:
    """Watch the other processes of the run in the `with` block, and raise SystemExit if one dies.

    A broken connection to a dead process is reported in one message that names the process and ends with `advice`. An error in a recipe
    or a file, which occurs in every process, is reported by the first. If this process hangs because another one died, `claims` are
    closed before it exits.
    """
    launcher = int(os.environ.get(LAUNCHER, "0"))
    if launcher and (os.getppid() == launcher or (not process_exists(launcher) and os.environ.get("LOCAL_RANK", "0") != "0")):
        with _as_child(launcher, advice):
            yield
    else:
        with _as_first(claims or ExitStack(), advice):
            yield


class Watch(threading.Thread):
    """Replaces Lightning's observer, which silently kills this process when one that it started (ranks 1, 2, ... here) dies."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], claims: ExitStack, advice: str) -> None:
        super().__init__(daemon=True, name="attnkit-ranks")
        self.processes, self.claims, self.advice = processes, claims, advice
        self.done, self.found = threading.Event(), threading.Event()
        self.message = ""

    def run(self) -> None:
        """Wait until a process dies, then exit unless this process notices by itself."""
        while not self.done.wait(POLL):
            if any(process.poll() for process in self.processes):
                time.sleep(POLL)  # if several died almost together, find the one that died first
                codes = [process.poll() for process in self.processes]
                self.message = _with_advice(obituary(codes, [process.pid for process in self.processes]), self.advice)
                self.found.set()
                if not self.done.wait(NOTICED):  # hangs, waiting for the dead process
                    _print_error(self.message)
                    self.kill()
                    with suppress(Exception):
                        self.claims.__exit__(SystemExit, SystemExit(1), None)
                    os._exit(1)
                return

    def kill(self) -> None:
        """Kill the processes."""
        for process in self.processes:
            with suppress(ProcessLookupError):
                process.kill()
        for process in self.processes:
            process.wait()

    def wait_for_all(self) -> None:
        """Wait up to `GRACE` seconds for the processes to exit, then kill the rest."""
        deadline = time.monotonic() + GRACE
        for process in self.processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
        self.kill()


def obituary(codes: Sequence[int | None], pids: Sequence[int]) -> str:
    """Return the message about the process that died, given the exit codes of ranks 1, 2, ...: negative for a signal, None if running.

    Example:
        >>> obituary([76, -9], [11, 12])
        'rank 2 of 3 (process 12) was killed by SIGKILL, often because memory ran out'
        >>> obituary([2], [11])
        'rank 1 of 2 (process 11) ended with exit status 2 (any message of its own is above)'
        >>> obituary([143], [11])
        'rank 1 of 2 (process 11) was stopped by SIGTERM'
    """
    dead = [index for index, code in enumerate(codes) if code]
    index = next((i for i in dead if codes[i] != LOST), dead[0])
    code, local = codes[index] or 0, len(codes) + 1
    rank = int(os.environ.get("NODE_RANK", "0")) * local + index + 1
    if code < 0:
        ending = f"was killed by {signal.Signals(-code).name}{', often because memory ran out' if -code == signal.SIGKILL else ''}"
    elif code - 128 in signals_here():
        ending = f"was stopped by {signal.Signals(code - 128).name}"
    else:
        ending = f"ended with exit status {code} (any message of its own is above)"
    return f"rank {rank} of {os.environ.get('WORLD_SIZE', local)} (process {pids[index]}) {ending}"


def is_lost(error: BaseException) -> bool:
    """Return whether an error means that the connection to another process was lost.

    Example:
        >>> is_lost(RuntimeError("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:1")), is_lost(RuntimeError("no"))
        (True, False)
    """
    if isinstance(error, torch.distributed.DistError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in ("gloo", "NCCL", "Connection closed by peer"))


@contextmanager
def _as_first(claims: ExitStack, advice: str) -> Iterator[None]:
    watch: Watch | None = None

    def begin(processes: Sequence[subprocess.Popen[bytes]]) -> None:
        nonlocal watch
        watch = Watch(processes, claims, advice)
        watch.start()

    previous = os.environ.get(LAUNCHER)
    os.environ[LAUNCHER] = str(os.getpid())
    try:
        with observing_processes(begin):
            yield
    except BaseException as error:
        if watch is None:  # another launcher started the processes, or there is only one
            if not is_lost(error):
                _let_rank_0_report(error)
                raise
            reason = "lost the connection to another process, which has died (see the launcher's message)"
            _print_error(_with_advice(f"rank {_rank()} {reason}", advice))
            raise SystemExit(1) from error
        lost = is_lost(error) and watch.found.wait(GRACE)  # it may still be ending
        watch.done.set()
        if lost:
            _print_error(watch.message)
        if isinstance(error, Stopped):
            watch.wait_for_all()
        else:
            watch.kill()
        if lost:
            raise SystemExit(1) from error
        raise
    else:
        if watch is not None:
            watch.done.set()
            watch.wait_for_all()
    finally:
        if previous is None:
            del os.environ[LAUNCHER]
        else:
            os.environ[LAUNCHER] = previous


@contextmanager
def _as_child(parent: int, advice: str) -> Iterator[None]:
    done = threading.Event()

    def watch() -> None:
        while not done.wait(POLL):
            if os.getppid() != parent:
                if os.environ.get("LOCAL_RANK") == "1":  # only one process reports it
                    _print_error(_with_advice(f"rank 0 (process {parent}), which started the other processes, has died", advice))
                os._exit(LOST)

    threading.Thread(target=watch, daemon=True, name="attnkit-ranks").start()
    try:
        yield
    except Exception as error:
        if is_lost(error):
            time.sleep(NOTICED)  # if the parent died, the other thread reports it
            raise SystemExit(LOST) from error
        _let_rank_0_report(error)
        raise
    finally:
        done.set()


def _let_rank_0_report(error: BaseException) -> None:
    """Give the first process, which has the same error, time to report it and kill this one."""
    if _rank() > 0 and isinstance(error, ConfigurationError | OSError):
        time.sleep(NOTICED)


def _rank() -> int:
    return int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or os.environ.get("LOCAL_RANK") or 0)


def _print_error(message: str) -> None:
    print(f"attnkit: error: {message}", file=sys.stderr, flush=True)


def _with_advice(what: str, advice: str) -> str:
    return "\n".join(filter(None, [f"{what}. The other processes cannot continue without it.", advice]))
