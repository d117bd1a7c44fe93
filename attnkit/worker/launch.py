"""Where jobs are carried out: by processes of this machine, by SLURM or by Ray. Each calls `Job.carry_out`. No torch.

The folder of results and the current folder must be the same on all machines.
"""

import inspect
import signal
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any, Protocol

from attnkit.registry import ConfigurationError, nearest
from attnkit.worker.job import POLL, Job
from attnkit.worker.lifeline import GRACE


class Handle(Protocol):
    """A job that was submitted; futures are such."""

    def done(self) -> bool:
        """Return whether it has ended."""

    def result(self) -> int:
        """Return the exit status. Raises the error of the machine that it was on."""


class Launcher(Protocol):
    """Where jobs are carried out."""

    def submit(self, job: Job) -> Handle:
        """Start a job, now or when there is room."""

    def close(self) -> None:
        """End the jobs that still run, in a way that lets them be continued."""


class Local:
    """Processes on this machine."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=1024)  # a thread waits for a process; the engine limits how many run at a time
        self.stop = Event()

    def submit(self, job: Job) -> Handle:
        """Start a job."""
        return self.pool.submit(job.carry_out, self.stop)

    def close(self) -> None:
        """End the jobs that still run."""
        self.stop.set()
        self.pool.shutdown()


class Slurm:
    """Jobs of a SLURM cluster, by submitit.

    Args:
        cluster: `slurm`, or `local` to try it without one.
        partition: Where the jobs queue.
        time: Minutes that a run may take. One that takes longer is killed, and continues from its checkpoint if the study retries that.
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
            # submitit cancels its local jobs by SIGINT, which they would ignore too: a shell's `&` starts commands like that
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
        """Put a job into the queue."""
        self.jobs.append(self.executor.submit(job.carry_out))
        handle: Handle = self.jobs[-1]
        return handle

    def close(self) -> None:
        """Cancel the jobs that have not ended."""
        left = [job for job in self.jobs if not job.done()]
        for job in left:
            job.cancel(check=False)
        deadline = time.monotonic() + GRACE
        while not all(job.done(force_check=True) for job in left) and time.monotonic() < deadline:
            time.sleep(POLL)


class Ray:
    """Tasks of a Ray cluster.

    Args:
        address: Of the cluster; None: a cluster that is started on this machine for this study.
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
        """Start a job when there is room."""
        self.references.append(self.remote.remote(job))
        handle: Handle = self.references[-1].future()
        return handle

    def close(self) -> None:
        """Cancel the jobs that have not ended, and leave the cluster."""
        for reference in self.references:
            self.ray.cancel(reference)
        if self.references:
            self.ray.wait(self.references, num_returns=len(self.references), timeout=GRACE)
        self.ray.shutdown()


def _carry_out(job: Job) -> int:
    return job.carry_out()


LAUNCHERS: Mapping[str, tuple[type, str]] = {"local": (Local, ""), "slurm": (Slurm, "submitit"), "ray": (Ray, "ray")}
"""By the name of the engine, with the package that it needs."""


def read_engine(given: Any) -> dict[str, Any]:
    """Return the engine of a study file or of `--engine`: a name, or a mapping of a name and arguments.

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
    """Return where jobs are carried out.

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
