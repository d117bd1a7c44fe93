"""Where runs are carried out: by processes here, by SLURM or by Ray. Each calls `Job.carry_out`: a run is the same everywhere. No torch.

A launcher's `submit` returns what has `done()` and `result()`, as a `concurrent.futures.Future` has; `close` ends what still goes on.
The folder of results and the current folder must be the same on all machines.
"""

import inspect
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from attnkit.ablation.store import FINAL, status_of, write_json
from attnkit.registry import ConfigurationError, nearest

WORKER = "attnkit.cli.cell"
POLL = 0.05
GRACE = 10
"""Seconds between asking a process to end, when it saves a checkpoint, and ending it."""

DRIVEN = "--driven"
"""Tells a worker that its stdin ends when the process that began it does, however that ends: then it has to end too."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run, as it is sent to where it is carried out.

    Attributes:
        folder: Of the run.
        directory: The current folder of its process: paths in recipes may be relative to it.
        gpu: The only GPU that it sees; None: all that are there.
        timeout: Seconds after which it is ended.
        worker: The module that is the process.
    """

    folder: Path
    directory: Path
    gpu: int | None = None
    timeout: float | None = None
    worker: str = WORKER

    def carry_out(self, stop: Event | None = None) -> int:
        """Begin the process, wait for it, and write down how it ended if it did not itself; return its exit status."""
        environment = dict(os.environ) | ({"CUDA_VISIBLE_DEVICES": str(self.gpu)} if self.gpu is not None else {})
        limit = [f"--timeout={self.timeout}"] if self.timeout is not None else []
        command = [sys.executable, "-m", self.worker, str(self.folder), DRIVEN, *limit]
        with (self.folder / "stdout.txt").open("ab") as out, (self.folder / "stderr.txt").open("ab") as err:
            process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.PIPE, stdout=out, stderr=err, env=environment, start_new_session=True
            )
        try:
            return self._wait(process, stop)
        finally:
            _end(process)
            assert process.stdin is not None
            process.stdin.close()

    def _wait(self, process: subprocess.Popen[bytes], stop: Event | None) -> int:
        began = time.monotonic()
        while stop is None or not stop.is_set():
            with suppress(subprocess.TimeoutExpired):
                return process.wait(POLL)
            if self.timeout is not None and time.monotonic() - began > self.timeout:
                _end(process)
                note(self.folder, "timeout", took_too_long(self.timeout))
                break
        return -signal.SIGTERM


def note(folder: Path, kind: str, message: str) -> None:
    """Write down that a run failed, unless there is an outcome."""
    if status_of(folder)["status"] not in FINAL:
        write_json(folder / "status.json", {"status": "failed", "kind": kind, "message": message})


def took_too_long(timeout: float) -> str:
    """Return the message of a run that was ended."""
    return f"took more than {timeout:g} s"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process and its children, if they are not over yet: at first so that they can save a checkpoint."""
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # loaders of data, other ranks
    process.wait()


class Handle(Protocol):
    """A run that was submitted."""

    def done(self) -> bool:
        """Return whether it is over."""

    def result(self) -> int:
        """Return the exit status. Raises what went wrong with the machine that it was on."""


class Launcher(Protocol):
    """Where runs are carried out."""

    def submit(self, job: Job) -> Handle:
        """Begin a run, now or when there is room."""

    def close(self) -> None:
        """End what still goes on, so that it can be continued."""


class Local:
    """Processes on this machine."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1024)  # a thread waits for a process; the engine decides how many at once
        self.stop = Event()

    def submit(self, job: Job) -> Handle:
        """Begin a run."""
        return self.pool.submit(job.carry_out, self.stop)

    def close(self) -> None:
        """End what still goes on."""
        self.stop.set()
        self.pool.shutdown()


class Slurm:
    """Jobs of a SLURM cluster, by submitit.

    Args:
        cluster: `slurm`, or `local` to try it without one.
        partition: Where the jobs queue.
        time: Minutes that a run may take. One that takes longer is killed, and goes on from its checkpoint if the study retries that.
        cpus: For each run.
        gpus: For each run.
        memory: In GB, for each run.
    """

    def __init__(
        self, *, cluster: str = "slurm", partition: str | None = None, time: int = 24 * 60, cpus: int = 1, gpus: int = 0, memory: int = 8
    ) -> None:
        import submitit

        self.jobs: list[Any] = []
        if cluster == "local" and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            # submitit cancels its local jobs by SIGINT, which they would ignore too: a shell's `&` begins commands so
            signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.executor = submitit.AutoExecutor(folder=Path("runs/submitit").absolute(), cluster=cluster)
        except (RuntimeError, ValueError) as error:
            raise ConfigurationError(f"engine slurm: {error}. It needs sbatch; {{name: slurm, cluster: local}} tries it without") from error
        named = {"slurm_partition": partition} if partition is not None else {}
        self.executor.update_parameters(
            name="attnkit", timeout_min=time, cpus_per_task=cpus, gpus_per_node=gpus, mem_gb=memory, tasks_per_node=1, **named
        )

    def submit(self, job: Job) -> Handle:
        """Put a run into the queue."""
        self.jobs.append(self.executor.submit(job.carry_out))
        handle: Handle = self.jobs[-1]
        return handle

    def close(self) -> None:
        """Cancel what still goes on."""
        left = [job for job in self.jobs if not job.done()]
        for job in left:
            job.cancel(check=False)
        deadline = time.monotonic() + GRACE
        while not all(job.done(force_check=True) for job in left) and time.monotonic() < deadline:
            time.sleep(POLL)


class Ray:
    """Tasks of a Ray cluster.

    Args:
        address: Of the cluster; None: one that is begun on this machine, for this study.
        cpus: For each run.
        gpus: For each run.
    """

    def __init__(self, *, address: str | None = None, cpus: float = 1, gpus: float = 0) -> None:
        import ray

        self.ray = ray
        self.references: list[Any] = []
        ray.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False, ignore_reinit_error=True)
        self.remote = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_carry_out)

    def submit(self, job: Job) -> Handle:
        """Begin a run when there is room."""
        self.references.append(self.remote.remote(job))
        handle: Handle = self.references[-1].future()
        return handle

    def close(self) -> None:
        """Cancel what still goes on, and leave the cluster."""
        for reference in self.references:
            self.ray.cancel(reference)
        self.ray.wait(self.references, num_returns=len(self.references), timeout=GRACE) if self.references else None
        self.ray.shutdown()


def _carry_out(job: Job) -> int:
    return job.carry_out()


LAUNCHERS: Mapping[str, tuple[type, str]] = {"local": (Local, ""), "slurm": (Slurm, "submitit"), "ray": (Ray, "ray")}
"""By the name of the engine, with the package that it needs."""


def read_engine(given: Any) -> dict[str, Any]:
    """Return the engine that a study file or `--engine` names: a name, or a mapping of a name and arguments.

    Raises:
        ConfigurationError: There is no such engine, or it has no such argument.

    Example:
        >>> read_engine("local"), read_engine({"name": "slurm", "partition": "gpu"})
        ({'name': 'local'}, {'name': 'slurm', 'partition': 'gpu'})
        >>> read_engine({"name": "slurm", "partion": "gpu"})
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: engine slurm has no argument 'partion'. Did you mean 'partition'? ...
    """
    spec = {"name": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    name = str(spec.get("name"))
    if name not in LAUNCHERS:
        raise ConfigurationError(f"engine: unknown {spec.get('name', given)!r}.{nearest(name, LAUNCHERS)} One of: {', '.join(LAUNCHERS)}.")
    known = list(inspect.signature(LAUNCHERS[name][0]).parameters)
    if unknown := [key for key in spec if key not in ("name", *known)]:
        raise ConfigurationError(
            f"engine {name} has no argument {unknown[0]!r}.{nearest(unknown[0], known)} It takes: {', '.join(known) or 'none'}."
        )
    return spec


def launcher(spec: Mapping[str, Any]) -> Launcher:
    """Return where runs are carried out.

    Args:
        spec: As `read_engine` returns it.

    Raises:
        ConfigurationError: The package that it needs is missing.
    """
    kind, package = LAUNCHERS[spec["name"]]
    try:
        found: Launcher = kind(**{key: value for key, value in spec.items() if key != "name"})
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != package:
            raise
        raise ConfigurationError(f"engine {spec['name']} needs the package {package!r}: pip install 'attnkit[{spec['name']}]'") from error
    return found
