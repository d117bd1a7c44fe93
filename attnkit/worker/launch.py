"""Engines: run jobs as processes on this machine, on SLURM or on Ray. Each calls `Job.carry_out`. No torch.

The results folder and the current folder must have the same paths and content on all machines.
"""

import inspect
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import Any

from attnkit.registry import ConfigurationError, nearest
from attnkit.worker.job import POLL, Job
from attnkit.worker.lifeline import GRACE
from attnkit.worker.warm import shared

Submit = Callable[[Job], Any]
"""Starts a job, now or once resources are free; returns a future, or an object with the methods `done()` and `result()`."""


@contextmanager
def local() -> Iterator[Submit]:
    """Run jobs as processes on this machine; those still running at the end of the `with` block are stopped and can be resumed.

    On Linux without a GPU, they are forks of one process that has imported torch and Lightning.
    """
    stop = Event()
    with ThreadPoolExecutor(max_workers=1024) as pool:  # one thread waits for each process; the engine limits how many run at a time
        try:
            yield lambda job: pool.submit(job.carry_out, stop, shared())
        finally:
            stop.set()
            pool.shutdown()


@contextmanager
def slurm(
    *, cluster: str = "slurm", partition: str | None = None, time: int = 24 * 60, cpus: int = 1, gpus: int = 0, memory: int = 8
) -> Iterator[Submit]:
    """Run jobs on a SLURM cluster through submitit; those still running at the end of the `with` block are cancelled.

    Args:
        cluster: `slurm`, or `local` to try the engine without a cluster.
        partition: The SLURM partition.
        time: Time limit per run in minutes. A run that exceeds it is killed; if the study retries it, it resumes from its checkpoint.
        cpus: CPUs per run.
        gpus: GPUs per run.
        memory: Memory per run, in GB.
    """
    import submitit

    if cluster == "local" and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # submitit cancels local jobs with SIGINT, which they would ignore if this process does, as commands started with a shell's `&` do
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        executor = submitit.AutoExecutor(folder=Path("runs/submitit").absolute(), cluster=cluster)
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(f"engine slurm: {error}. It needs sbatch; {{name: slurm, cluster: local}} works without") from error
    named = {"slurm_partition": partition} if partition is not None else {}
    executor.update_parameters(
        name="attnkit", timeout_min=time, cpus_per_task=cpus, gpus_per_node=gpus, mem_gb=memory, tasks_per_node=1, **named
    )
    jobs: list[Any] = []

    def submit(job: Job) -> Any:
        jobs.append(executor.submit(job.carry_out))
        return jobs[-1]

    try:
        yield submit
    finally:
        left = [job for job in jobs if not job.done()]
        for job in left:
            job.cancel(check=False)
        deadline = monotonic() + GRACE
        while not all(job.done(force_check=True) for job in left) and monotonic() < deadline:
            sleep(POLL)


@contextmanager
def ray(*, address: str | None = None, cpus: float = 1, gpus: float = 0) -> Iterator[Submit]:
    """Run jobs as tasks on a Ray cluster; those still running at the end of the `with` block are cancelled.

    Args:
        address: Address of the cluster; None starts a cluster on this machine for this study.
        cpus: CPUs per run.
        gpus: GPUs per run.
    """
    import ray as cluster

    cluster.init(address=address, include_dashboard=False if address is None else None, log_to_driver=False, ignore_reinit_error=True)
    remote = cluster.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_carry_out)
    references: list[Any] = []

    def submit(job: Job) -> Any:
        references.append(remote.remote(job))
        return references[-1].future()

    try:
        yield submit
    finally:
        for reference in references:
            cluster.cancel(reference)
        if references:
            cluster.wait(references, num_returns=len(references), timeout=GRACE)
        cluster.shutdown()


def _carry_out(job: Job) -> int:
    return job.carry_out()


ENGINES: Mapping[str, tuple[Callable[..., Any], str]] = {"local": (local, ""), "slurm": (slurm, "submitit"), "ray": (ray, "ray")}
"""The engines by name, each with the package it needs."""


def read_engine(given: Any) -> dict[str, Any]:
    """Read the engine of a study file or of `--engine`: a name, or a mapping of a name and arguments.

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
    if name not in ENGINES:
        raise ConfigurationError(f"engine: unknown {spec.get('name', given)!r}.{nearest(name, ENGINES)} One of: {', '.join(ENGINES)}.")
    known = list(inspect.signature(ENGINES[name][0]).parameters)
    if unknown := [key for key in spec if key not in ("name", *known)]:
        raise ConfigurationError(
            f"engine {name} has no argument {unknown[0]!r}.{nearest(unknown[0], known)} It takes: {', '.join(known) or 'none'}."
        )
    return spec


def launching(spec: Mapping[str, Any]) -> AbstractContextManager[Submit]:
    """Return an engine's context manager, which yields a `Submit`, for a spec from `read_engine`; raise if its package is missing."""
    begin, package = ENGINES[spec["name"]]
    if package and find_spec(package) is None:
        raise ConfigurationError(f"engine {spec['name']} needs the package {package!r}: pip install 'attnkit[{spec['name']}]'")
    running: AbstractContextManager[Submit] = begin(**{key: value for key, value in spec.items() if key != "name"})
    return running
