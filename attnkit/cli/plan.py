"""`attnkit plan`: estimate a training step of a recipe: its memory on each process, whether it fits, its time, and its bottleneck."""

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from attnkit.cli.arguments import read_arguments
from attnkit.cli.help import describe_slot
from attnkit.cli.plan_options import machine_of, plan_parser, processes_of, trainer_flags
from attnkit.profile.estimate import KINDS, Estimate, Job, alternatives, estimate, fits
from attnkit.profile.flops import row_lengths
from attnkit.profile.machine import SPARE, Machine, StepTime
from attnkit.profile.memory import PRECISIONS
from attnkit.profile.partition import share_of_batch
from attnkit.recipe import merged, read_layers
from attnkit.registry import IMPORTS, ConfigurationError, tasks
from attnkit.train.inheritance import task_and_data
from attnkit.wording import counted

LOOK_AT = 50  # number of batches to read: memory is planned for the largest, time for their average
MIB = 2**20
WIDTH = 46


def plan(arguments: list[str]) -> int:
    """Run `attnkit plan`; the exit status is 1 if the step does not fit in the given memory."""
    request = read_arguments(arguments)
    if request.help_of is not None:
        print(describe_slot(request))
        return 0
    if request.ckpt_path or request.out or request.resume or request.print_config:
        raise ConfigurationError("attnkit plan only reads a recipe: it takes no --ckpt_path, --out, --resume or --print_config")
    trainer = trainer_flags(request)
    chosen = plan_parser().parse_args(request.others)
    names = [*chosen.recipe, *request.recipes]
    recipe = merged([*read_layers(names, imports=request.flags.get(IMPORTS, ())), request.flags, {"trainer": trainer}])
    trainer = recipe.get("trainer") or {}
    mesh, strategy = processes_of(chosen, trainer)
    precision = str(chosen.precision or trainer.get("precision", "32-true"))
    precision = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}.get(precision, precision)
    if precision not in PRECISIONS:
        raise ConfigurationError(f"no estimate for the precision {precision!r}. Known: {', '.join(PRECISIONS)}.")
    micro_batches = chosen.accumulate or int(trainer.get("accumulate_grad_batches", 1))
    machine = machine_of(chosen, KINDS[precision], mesh)
    if chosen.measure:
        _require_room(mesh.processes)
    job, batches, tokens = _job(
        recipe, Job(model={}, batches=(), precision=precision, mesh=mesh, strategy=strategy, micro_batches=micro_batches)
    )
    planned = estimate(job)
    layout = f"{mesh.data} x {mesh.tensor} processes, {strategy}" if mesh.processes > 1 else "1 process"
    print(f"{' + '.join(names) or job.model['name']}: {tasks.build(job.model).parameter_count:,} parameters, {layout}, {precision}")
    _table(
        f"memory of a process with its largest batch ({counted(planned.rows, 'row')}, {counted(planned.tokens, 'token')}), MiB",
        planned.parts,
    )
    if machine.memory is not None:
        print(_verdict(planned.peak, machine.memory))
    if mesh.processes > 1:
        _table("sent by a process in a step, MiB", {**planned.sent.parts, "total": sum(planned.sent.parts.values())})
    time = planned.time(machine, chosen.efficiency)
    _print_time(planned, time, machine, chosen.efficiency)
    print("data")
    _row("tokens per step, at most", f"{micro_batches * tokens:,}")
    _row("steps per epoch", f"{math.ceil(batches / micro_batches):,}" if isinstance(batches, int) else batches)
    if isinstance(batches, int) and time.shortest is not None and time.longest is not None:
        _row("time of an epoch, without validation", _range(*(_clock(batches / micro_batches * t) for t in (time.shortest, time.longest))))
    is_too_large = machine.memory is not None and not fits(planned.peak, machine.memory)
    if is_too_large or chosen.alternatives:
        _print_alternatives(job, machine, chosen.efficiency)
    if chosen.measure:
        _compare(job, planned.peak)
    return int(is_too_large)


def _job(recipe: Mapping[str, Any], job: Job) -> tuple[Job, int | str, int]:
    """Return the job, the number of batches per epoch (or the reason for none), and the maximum number of tokens in a batch.

    The job has the task's spec and one process's rows of the first batches; the number of tokens is for all processes.
    """
    spec, data = task_and_data(recipe, needed_by="attnkit plan")
    data.prepare_data()
    data.setup("fit")
    whole = list(islice(data.train_dataloader(), LOOK_AT))
    if not whole:
        raise ConfigurationError("the data have no training batches, so there is no step to plan")
    model = spec.plain()
    task = tasks.build(model)
    tokens = max(int(sum(lengths.sum() for lengths in row_lengths(task, batch))) for batch in whole)
    batches = [share_of_batch(batch, job.mesh.data) for batch in whole]
    is_shared = "example" in whole[0]
    return replace(job, model=model, batches=batches), _epoch(data, job.mesh.data), tokens * (1 if is_shared else job.mesh.data)


def _epoch(data: Any, processes: int) -> int | str:
    """Return the number of batches per epoch and process, or why training could not start."""
    # the attributes that data modules read; a real Trainer would require the devices
    data.trainer = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": processes, "rank": 0}, overfit_batches=0)
    try:
        return len(data.train_dataloader())
    except ConfigurationError as problem:
        return f"none: {problem}"
    except TypeError:  # a stream has no known length
        return "unknown"


def _verdict(peak: float, memory: float) -> str:
    counted = (1 - SPARE) * memory
    needs = f"{peak / 1e9:,.2f} GB of {memory / 1e9:,.2f} GB"
    kept = f"{SPARE:.0%} is reserved for what the estimate leaves out: the device's context, NCCL, fragmentation"
    if fits(peak, memory):
        return f"fits: yes, {needs}; {(counted - peak) / 1e9:,.2f} GB are free ({kept})"
    return f"fits: NO, {needs}; {(peak - counted) / 1e9:,.2f} GB short ({kept})"


def _print_time(planned: Estimate, time: StepTime, machine: Machine, efficiency: float) -> None:
    print("time of a step")
    _row("TFLOP of the model (as in MFU)", f"{planned.model_flops / 1e12:,.3f}")
    _row("TFLOP with padding and recomputation", f"{planned.operations / 1e12:,.3f}")
    if time.products is None or time.computation is None or time.shortest is None or time.longest is None:
        print(f"  to estimate times, add --peak TFLOP/S ({planned.kind}), or --machine FILE from attnkit bench")
        return
    peak = machine.tflops[planned.kind]
    _row("matrix products, ms", f"{1000 * time.products:,.1f}", f"at {efficiency:.0%} of {peak:,.4g} TFLOP/s ({planned.kind})")
    if time.memory is not None:
        _row("memory, ms", f"{1000 * time.memory:,.1f}", f"{planned.touched / 1e9:,.1f} GB at {machine.memory_bandwidth:,.4g} GB/s")
    total = sum(planned.sent.parts.values())
    if total and machine.bandwidth is None:
        print("  the network is not included: add --bandwidth GB/S")
    elif total:
        _row(
            "network, ms",
            f"{1000 * ((time.overlapped or 0) + (time.exposed or 0)):,.1f}",
            f"{total / 1e9:,.2f} GB at {machine.bandwidth:,.4g} GB/s",
        )
    span = _range(f"{1000 * time.shortest:,.1f}", f"{1000 * time.longest:,.1f}")
    _row("step time, ms", span, "with communication fully or not at all overlapped with computation" if "to" in span else "")
    _row("bound by", str(time.bound))


def _print_alternatives(job: Job, machine: Machine, efficiency: float) -> None:
    print("changes that save memory, with their plans")
    print(f"  {'peak MiB':>16}{'' if machine.memory is None else '  fits'}{'   step time, ms' if machine.tflops else ''}   change")
    any_fits = False
    for words, planned in alternatives(job, memory=machine.memory):
        time = planned.time(machine, efficiency).shortest
        duration = "" if not machine.tflops else f"{'?' if time is None else f'{1000 * time:,.1f}':>15}"
        is_enough = machine.memory is not None and fits(planned.peak, machine.memory)
        print(f"  {planned.peak / MIB:>16,.1f}{'' if machine.memory is None else '   yes' if is_enough else '    no'}{duration}   {words}")
        any_fits = any_fits or is_enough
    if machine.memory is not None and not any_fits:
        print("none of them fit: use a smaller model, a shorter context, or more GPUs with --strategy fsdp2")


def _row(name: str, value: str, note: str = "") -> None:
    print(f"  {name:<{WIDTH}}{value:>14}{f'   {note}' if note else ''}")


def _table(title: str, parts: Mapping[str, float]) -> None:
    print(title)
    for name, size in parts.items():
        _row(name, f"{size / MIB:,.1f}")


def _range(low: str, high: str) -> str:
    return low if low == high else f"{low} to {high}"


def _clock(seconds: float) -> str:
    for size, unit in ((86_400, "days"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:,.1f} s"


def _require_room(processes: int) -> None:
    cores, gpus = os.cpu_count() or 1, torch.cuda.device_count()
    if processes > max(cores, gpus):
        raise ConfigurationError(
            f"--measure starts all {processes} processes of the mesh on this machine, which has {cores} cores and {gpus} GPUs: "
            f"choose a smaller --mesh, or remove --measure"
        )


def _compare(job: Job, peak: float) -> None:
    processes = job.mesh.processes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.pt"
        described = {"model": job.model, "batch": job.largest, "precision": job.precision, "strategy": job.strategy}
        torch.save({**described, "mesh": (job.mesh.data, job.mesh.tensor)}, path)
        done = subprocess.run([sys.executable, "-m", "attnkit.profile.measurement", str(path)], capture_output=True, text=True, check=False)
    if not done.stdout.strip():  # the exit status may be that of threads stopped at exit
        raise ConfigurationError(f"the steps could not be run: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    print(f"measured in five steps of {processes} process{'es' if processes > 1 else ''} on {measured['device']}, MiB")
    _row("peak memory allocated by torch", f"{measured['peak'] / MIB:,.1f}")
    _row("estimate", f"{peak / MIB:,.1f}", f"({peak / measured['peak'] - 1:+z.1%})")
