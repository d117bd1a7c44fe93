"""A fork server: a process that has imported the modules that runs import, and forks for each requested run.

`attnkit.worker.warm` starts it. Requests arrive through the socket that is its stdin. When the socket closes, because the driver has ended
or needs a new server, the server waits for its forks and ends. A fork starts like a fresh interpreter after the same imports: without
plugin modules, threads or GPU state, and with its own environment, working directory, random numbers and session.
"""

import atexit
import gc
import io
import json
import os
import runpy
import select
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module
from typing import NamedTuple, NoReturn

from attnkit.worker.sources import packages, watch_imports

WITNESS = "attnkit.worker.witness"
PRELOADED = ("attnkit.worker.run", WITNESS, "torch._dynamo", "torchmetrics.text", "lightning.pytorch.loggers", "yaml")
"""Modules that every run imports sooner or later."""

LARGEST = 1 << 20  # maximum bytes of a request
STDIN = 0


class Request(NamedTuple):
    """The process that a fork is to become."""

    words: list[str]  # the module and its arguments, as after `python -m`
    directory: str  # its working directory
    environment: dict[str, str]  # its environment variables


def serve() -> tuple[Request, list[int]] | None:
    """Fork for each request. Returns the request and its file descriptors in each fork, and None in the server once requests end."""
    control = socket.socket(fileno=os.dup(STDIN))
    children: dict[int, tuple[int, socket.socket]] = {}  # by the file descriptor that becomes readable when a child ends
    listening = [control.fileno()]
    while listening or children:
        for ready in select.select([*listening, *children], [], [])[0]:
            if ready in children:
                _report_exit(*children.pop(ready), ready)
                continue
            message, files, _, _ = socket.recv_fds(control, LARGEST, 4)
            if not message:
                listening.clear()
                continue
            report = socket.socket(fileno=files.pop())
            if (pid := os.fork()) == 0:
                for other in (control, *(connection for _, connection in children.values())):
                    other.close()
                for file in children:
                    os.close(file)
                os.setsid()
                report.send(str(os.getpid()).encode())  # from now on, the driver can signal its process group
                report.close()
                return Request(**json.loads(message)), files
            children[os.pidfd_open(pid)] = (pid, report)
            for file in files:
                os.close(file)
    return None


def _report_exit(pid: int, report: socket.socket, file: int) -> None:
    """Report the exit status of a child to the driver."""
    os.close(file)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with suppress(OSError):
        report.send(str(code).encode())
    report.close()


def become(request: Request, files: list[int]) -> NoReturn:
    """Turn this process into the requested one, as if started with `python -m`. Does not return."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    sys.path[0] = request.directory
    import numpy as np

    np.random.seed()  # Python's own generator reseeds itself in a fork
    module, *sys.argv[1:] = request.words
    sys.modules.pop(module, None)  # it becomes __main__
    code = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        code = end.code or 0
    leave(code)


def leave(code: int) -> NoReturn:
    """End this process without tearing down the interpreter: in a fork, that would spend seconds on copying every page in vain."""
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as `multiprocessing` does in its forks
    atexit._run_exitfuncs()
    found = gc.get_objects()  # without the frozen ones; checking the class of each object took seconds on a busy machine
    kinds = {kind for kind in set(map(type, found)) if issubclass(kind, io.TextIOBase | io.BufferedIOBase)}
    for file in (sys.stdout, sys.stderr, *(one for one in found if type(one) in kinds)):
        with suppress(OSError, ValueError):  # closed, or read-only
            file.flush()
    os._exit(code)


def has_gpu() -> bool:
    """Return whether torch finds a GPU, without initialising CUDA, which a fork could not use."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch

    return torch.cuda.is_available()


def main() -> None:
    """Import the modules, report whether runs can be forks, and serve."""
    watch_imports()
    for module in PRELOADED:
        import_module(module)
    import_module(WITNESS).own_code()  # hashes the imported sources
    packages()  # reads which packages are installed, and the versions of the imported ones
    with socket.socket(fileno=os.dup(STDIN)) as control, suppress(OSError):
        control.send(json.dumps({"forks": not has_gpu()}).encode())
    gc.collect()
    gc.freeze()  # otherwise, the first collection in a fork would copy every page
    if (found := serve()) is not None:
        become(*found)
    leave(0)


if __name__ == "__main__":
    main()
