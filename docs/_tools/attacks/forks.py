"""Starts processes in milliseconds: forks of one that has imported everything.

A fork server replaces `exec`: `Popen` sends it the command and the open files, and it forks a process that runs the same Python code. The
server also forks whatever such a process starts itself, other ranks or the workers of a study. `os.getppid` returns the process that made
the request, not the server. Each process leads a session of its own and carries a tag, by which all processes of a try are found and killed
together.
"""
# mypy: disable-error-code="attr-defined, misc, no-any-return"
# (private methods of subprocess.Popen, which its stubs leave out, are overridden)

import atexit
import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import struct
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from select import select
from typing import Any

TAG = "RELIABILITY_TRY"
ADDRESS = "RELIABILITY_SERVER"
REAL = subprocess.Popen
LARGEST = 1 << 20  # bytes per message
PRELOADED = (
    *("attnkit.train.run", "attnkit.cli.ablate", "attnkit.worker.run", "attnkit.worker.inspection", "attnkit.ablation.results"),
    *("attnkit.ablation.report", "attnkit.ablation.figures", "matplotlib.pyplot", "matplotlib.backends.backend_svg", "jinja2"),
    *("torch.utils.tensorboard", "torch.distributed.fsdp", "torch.distributed.checkpoint", "torch.distributed.tensor.parallel"),
)


class Popen(subprocess.Popen[Any]):
    """`subprocess.Popen`, but a fork of the server runs a Python command."""

    connection: socket.socket | None = None

    def _execute_child(self, args: Any, *others: Any) -> None:
        _, preexec, _, pass_fds, cwd, env, _, _, shell, p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite = others[:15]
        words: list[Any] = [os.fspath(word) for word in args] if not isinstance(args, str | bytes) else [args]
        if shell or preexec or words[0] != sys.executable or (words[1].startswith("-") and words[1] not in ("-m", "-c")):
            super()._execute_child(args, *others)
            return
        files = [0 if p2cread == -1 else p2cread, 1 if c2pwrite == -1 else c2pwrite, 2 if errwrite == -1 else errwrite, *pass_fds]
        request = {
            "words": words[1:],
            "directory": os.getcwd() if cwd is None else os.fspath(cwd),
            "environment": dict(os.environ if env is None else env),
            "numbers": [0, 1, 2, *pass_fds],
        }
        self.connection = connect()
        socket.send_fds(self.connection, [json.dumps(request).encode()], files)
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)
        answer = self.connection.recv(LARGEST)
        if not answer:
            raise OSError("the fork server is gone, or this try is over")
        self.pid, self._child_created = int(answer), True

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self.connection is None:
            return super()._try_wait(wait_flags)
        if not select([self.connection], [], [], 0 if wait_flags & os.WNOHANG else None)[0]:
            return 0, 0
        answer = self.connection.recv(LARGEST)
        self.connection.close()
        return self.pid, int(answer) if answer else signal.SIGKILL

    def _internal_poll(self, *arguments: Any, **named: Any) -> int | None:
        if self.connection is None:
            return super()._internal_poll(*arguments, **named)
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                if self.returncode is None and (found := self._try_wait(os.WNOHANG))[0]:
                    self._handle_exitstatus(found[1])
            finally:
                self._waitpid_lock.release()
        return self.returncode


def connect() -> socket.socket:
    """Return a connection to the server."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.connect("\0" + os.environ[ADDRESS])
    return connection


def ask(**request: Any) -> Any:
    """Return the server's answer."""
    with connect() as connection:
        connection.send(json.dumps(request).encode())
        return json.loads(connection.recv(LARGEST))


def kill(tag: str) -> int:
    """Kill all processes of a try at once; the try starts no others. Return how many there were."""
    return int(ask(kill=tag))


def alive(tag: str) -> list[dict[str, Any]]:
    """Return the processes of a try: `pid`, `words` of the command and `rank`."""
    found: list[dict[str, Any]] = ask(alive=tag)
    return found


def begin(words: Sequence[str], *, directory: Path, tag: str, out: Path) -> Popen:
    """Start a Python command; its output is appended to `out`.out and `out`.err."""
    with out.with_suffix(".out").open("ab") as stdout, out.with_suffix(".err").open("ab") as stderr:
        environment = os.environ | {TAG: tag}
        return Popen([sys.executable, *words], cwd=directory, env=environment, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)


def start() -> None:
    """Import everything, then start the server, which ends with this process, along with everything that it has forked."""
    for module in PRELOADED:
        importlib.import_module(module)
    os.environ[ADDRESS] = f"reliability-{os.getpid()}"
    gc.collect()
    gc.freeze()  # or the first collection of a fork copies every page
    sys.stdout.flush()
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind("\0" + os.environ[ADDRESS])
    listening.listen(128)
    theirs, ours = os.pipe()
    if os.fork():
        listening.close()
        os.close(theirs)  # our end is closed when this process exits
        return
    os.close(ours)
    os.setsid()
    try:
        _Server(listening, theirs).serve()
    finally:
        os._exit(0)


class _Server:
    def __init__(self, listening: socket.socket, life: int) -> None:
        self.listening, self.life = listening, life
        self.children: dict[int, tuple[socket.socket, dict[str, Any]]] = {}
        self.killed: set[str] = set()

    def serve(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        ended, wake = socket.socketpair()
        for end in (ended, wake):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        self.inherited = [self.listening.fileno(), self.life, ended.fileno(), wake.fileno()]
        with selectors.DefaultSelector() as selector:
            for file in (self.listening, self.life, ended):
                selector.register(file, selectors.EVENT_READ)
            self.inherited.append(selector.fileno())
            while True:
                for key, _ in selector.select():
                    if key.fileobj is self.listening:
                        self.answer(self.listening.accept()[0])
                    elif key.fileobj is ended:
                        ended.recv(4096)
                        self.reap()
                    else:
                        for pid in self.children:
                            os.kill(pid, signal.SIGKILL)
                        return

    def answer(self, connection: socket.socket) -> None:
        message, files, _, _ = socket.recv_fds(connection, LARGEST, 64)
        request = json.loads(message) if message else {}
        if "words" in request:
            asking = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            try:
                parent = os.pidfd_open(asking)
            except ProcessLookupError:
                parent = -1
            if parent == -1 or request["environment"].get(TAG) in self.killed:
                connection.close()
            else:
                self.fork(connection, request, files, partial(_parent, asking, parent))
            files += [parent] * (parent != -1)
        else:
            tag = request.get("kill", request.get("alive", ""))
            found = [(pid, asked) for pid, (_, asked) in self.children.items() if asked["environment"].get(TAG) == tag]
            if "kill" in request:
                self.killed.add(tag)
                for pid, _ in found:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the id has not been reused
            said = [{"pid": pid, "words": a["words"], "rank": int(a["environment"].get("LOCAL_RANK", 0))} for pid, a in found]
            with suppress(OSError):
                connection.send(json.dumps(len(found) if "kill" in request else said).encode())
            connection.close()
        for file in files:
            os.close(file)

    def fork(self, connection: socket.socket, request: dict[str, Any], files: list[int], parent: Callable[[], int]) -> None:
        child = os.fork()
        if child == 0:
            signal.set_wakeup_fd(-1)
            for file in [*self.inherited, connection.fileno(), *(other.fileno() for other, _ in self.children.values())]:
                os.close(file)
            os.getppid = parent
            _become(request, files)
        self.children[child] = connection, request
        with suppress(OSError):  # the requesting process was killed
            connection.send(str(child).encode())

    def reap(self) -> None:
        with suppress(ChildProcessError):
            while (found := os.waitpid(-1, os.WNOHANG))[0]:
                connection, _ = self.children.pop(found[0])
                with suppress(OSError):
                    connection.send(str(found[1]).encode())
                connection.close()


def _parent(pid: int, file: int) -> int:
    """Return the PID of the process that requested this one or, once it is gone, of the process that adopts orphans."""
    return 1 if select([file], [], [], 0)[0] else pid


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Turn this process, a fork of the server, into the requested one."""
    os.setsid()
    for number in (signal.SIGCHLD, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL if number == signal.SIGCHLD else signal.default_int_handler)
    high = [_above(file) for file in files]
    for file, number in zip(high, request["numbers"], strict=True):
        os.dup2(file, number, inheritable=number <= 2)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    subprocess.Popen = Popen
    status = 1
    try:
        os.chdir(request["directory"])
        from lightning.pytorch.utilities import rank_zero_only

        vars(rank_zero_only)["rank"] = int(os.environ.get("LOCAL_RANK", 0))  # was read when it was imported
        warnings.filterwarnings("ignore", message=".*found in sys.modules")
        _run(request["words"])
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # as at the end of every process
        atexit._run_exitfuncs()
        with suppress(OSError):
            sys.stdout.flush()
        os._exit(status & 0xFF)


def _above(file: int) -> int:
    import fcntl

    found = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 512)
    os.close(file)
    return found


def _run(words: list[str]) -> None:
    first, *others = words
    if first == "-c":
        sys.argv = ["-c", *others[1:]]
        exec(compile(others[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.argv = others
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(first).parent)
        runpy.run_path(first, run_name="__main__")
