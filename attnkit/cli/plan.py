"""`attnkit plan`: what a training step of a recipe needs of each process, whether it fits, how long it takes, and what bounds it."""

import argparse
import json
import math
import os
import re
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

from attnkit.cli.composition import complete_recipe
from attnkit.cli.help import describe_slot
from attnkit.cli.inheritance import values_from_data
from attnkit.cli.recipe import Request, Word, merge, read_recipe, take_apart
from attnkit.profile.estimate import KINDS, Estimate, Job, alternatives, estimate, fits, parameter_count
from attnkit.profile.machine import EFFICIENCY, PRODUCTS, SPARE, Machine, StepTime, read_size
from attnkit.profile.memory import PRECISIONS
from attnkit.profile.partition import STRATEGIES, Mesh, share_of_batch
from attnkit.registry import ConfigurationError, datasets

LOOK_AT = 50
"""Batches of which the largest is planned for, and whose average gives the time."""
MIB = 2**20
WIDTH = 46
PLANNED = ("precision", "devices", "num_nodes", "strategy", "accumulate_grad_batches")
"""What a plan reads of a recipe's trainer."""


def plan(arguments: list[str]) -> int:
    """Carry out `attnkit plan`; the status is 1 if the step does not fit into the memory that was asked about."""
    request = take_apart(arguments)
    if request.help_of is not None:
        print(describe_slot(request))
        return 0
    if request.ckpt_path or request.out or request.resume or request.print_config:
        raise ConfigurationError("attnkit plan reads a recipe only: it takes no --ckpt_path, --out, --resume or --print_config")
    trainer = _trainer_flags(request)
    chosen = _parser().parse_args(request.others)
    names = [*chosen.recipe, *request.recipes]
    recipe: dict[str, Any] = {}
    for layer in [*map(read_recipe, names), request.flags, {"trainer": trainer}]:
        recipe = merge(recipe, layer, dropped=[])
    trainer = recipe.get("trainer") or {}
    mesh, strategy = _processes(chosen, trainer)
    precision = str(chosen.precision or trainer.get("precision", "32-true"))
    precision = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}.get(precision, precision)
    if precision not in PRECISIONS:
        raise ConfigurationError(f"there is no estimate for the precision {precision!r}. Known: {', '.join(PRECISIONS)}.")
    micro_batches = chosen.accumulate or int(trainer.get("accumulate_grad_batches", 1))
    machine = _machine(chosen, KINDS[precision], mesh)
    if chosen.measure:
        _require_room(mesh.processes)
    job, batches = _job(recipe, Job(model={}, batches=(), precision=precision, mesh=mesh, strategy=strategy, micro_batches=micro_batches))
    planned = estimate(job)
    how = f"{mesh.data} x {mesh.tensor} processes, {strategy}" if mesh.processes > 1 else "1 process"
    print(f"{' + '.join(names) or job.model['name']}: {parameter_count(job.model):,} parameters, {how}, {precision}")
    rows, tokens = len(next(iter(job.largest.values()))), _tokens(job.largest)
    _table(f"memory of a process with its largest batch ({rows:,} rows, {tokens:,} positions), MiB", planned.parts)
    if machine.memory is not None:
        print(_verdict(planned.peak, machine.memory))
    _table("sent by a process in a step, MiB", {**planned.sent.parts, "together": sum(planned.sent.parts.values())})
    time = planned.time(machine, chosen.efficiency)
    _print_time(planned, time, machine, chosen.efficiency)
    print("data")
    _row("positions of a step, at most", f"{mesh.data * micro_batches * tokens:,}")
    _row("steps of an epoch", f"{math.ceil(batches / micro_batches):,}" if isinstance(batches, int) else batches)
    if isinstance(batches, int) and time.shortest is not None and time.longest is not None:
        _row("an epoch, without validation", _range(*(_clock(batches / micro_batches * t) for t in (time.shortest, time.longest))))
    lacking = machine.memory is not None and not fits(planned.peak, machine.memory)
    if lacking or chosen.alternatives:
        _print_alternatives(job, machine, chosen.efficiency)
    if chosen.measure:
        _compare(job, planned.peak)
    return int(lacking)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="attnkit plan", description=(__doc__ or "")[15:], allow_abbrev=False)
    parser.add_argument("recipe", nargs="*", help="recipes, as for --config; --model.ARGUMENT, --data.ARGUMENT and --trainer.ARGUMENT change them")
    parser.add_argument("--config", metavar="RECIPE", help="a YAML file, or the short name of a recipe; may be repeated")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--gpus", type=_count, metavar="N", help="processes, each with a GPU of its own (default: the recipe's devices, or 1)")
    size.add_argument("--mesh", metavar="DxT", help="processes that share the data x processes that split each layer")
    parser.add_argument("--strategy", choices=STRATEGIES, help="default: the recipe's; else ddp, or fsdp2 if layers are split")
    parser.add_argument("--precision", metavar="P", help=f"{', '.join(PRECISIONS)} (default: the recipe's)")
    parser.add_argument("--accumulate", type=_count, metavar="N", help="batches of a step (default: the recipe's accumulate_grad_batches)")
    parser.add_argument("--memory", metavar="SIZE", help="of a GPU, as in 80GB or 80GiB: does it fit?")
    parser.add_argument("--peak", metavar="X", help=f"TFLOP/s of a GPU in products of matrices, or one for each of {', '.join(PRODUCTS)}: fp32=67,bf16=989")
    parser.add_argument("--efficiency", type=_part, default=EFFICIENCY, metavar="E", help=f"part of the peak that is reached (default: {EFFICIENCY})")
    parser.add_argument("--bandwidth", type=_rate, metavar="X", help="GB/s that a process sends to others; 400 Gb/s are 50")
    parser.add_argument("--memory_bandwidth", type=_rate, metavar="X", help="GB/s that a GPU reads and writes")
    parser.add_argument("--machine", metavar="FILE", help="memory and rates from attnkit bench --json FILE; the flags above replace them")
    parser.add_argument("--alternatives", action="store_true", help="plan changes that save memory, too (always, if it does not fit)")
    parser.add_argument("--measure", action="store_true", help="also make five steps here, in so many processes, and say what they took")
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1, but is {text!r}")
    return int(text)


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not 0 < rate < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, but is {text!r}")
    return rate


def _part(text: str) -> float:
    if (part := _rate(text)) > 1:
        raise argparse.ArgumentTypeError(f"is a part of the peak, above 0 and at most 1, but is {text!r}")
    return part


def _trainer_flags(request: Request) -> dict[str, Any]:
    """Take `--trainer.KEY VALUE` out of the arguments. Those that a plan does not read change nothing, as in a recipe."""
    found: dict[str, Any] = {}
    rest, request.others = request.others, []
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("--trainer."):
            request.others.append(f"{flag}{equals}{value}")
            continue
        if not equals:
            if not rest:
                raise ConfigurationError(f"{flag} needs a value")
            value = rest.pop(0)
        if (key := flag.removeprefix("--trainer.")) in PLANNED:
            found[key] = Word(value).value
    return found


def _processes(chosen: argparse.Namespace, trainer: Mapping[str, Any]) -> tuple[Mesh, str]:
    """Return the processes and the strategy of the flags, or else those of the recipe's trainer."""
    named = str(trainer.get("strategy", "auto"))
    split_over = re.fullmatch(r"fsdp2(?:_tp(\d+))?", named)
    if chosen.mesh is not None or chosen.gpus is not None:
        mesh = Mesh.read(chosen.mesh) if chosen.mesh is not None else Mesh(data=chosen.gpus, tensor=1)
    else:
        devices, nodes = trainer.get("devices", 1), trainer.get("num_nodes", 1)
        counts = [len(d) if isinstance(d, list) else int(d) if str(d).isdecimal() and int(d) else 1 for d in (devices, nodes)]
        tensor = int(split_over[1] or 1) if split_over else 1
        if counts[0] * counts[1] % tensor:
            raise ConfigurationError(f"trainer.strategy {named} splits layers over {tensor} processes, which do not divide {counts[0] * counts[1]}")
        mesh = Mesh(data=counts[0] * counts[1] // tensor, tensor=tensor)
    strategy = chosen.strategy or ("fsdp2" if mesh.tensor > 1 or split_over else "ddp")
    if strategy == "ddp" and mesh.tensor > 1:
        raise ConfigurationError("ddp splits no layers: use --strategy fsdp2, or a mesh such as 8x1")
    return mesh, str(strategy)


def _machine(chosen: argparse.Namespace, kind: str, mesh: Mesh) -> Machine:
    machine = Machine.read(chosen.machine) if chosen.machine is not None else Machine()
    if machine.shares_memory and machine.memory is not None:
        machine = replace(machine, memory=machine.memory / mesh.processes)
    if chosen.memory is not None:
        machine = replace(machine, memory=read_size(chosen.memory))
    if chosen.peak is not None:
        machine = machine.with_peak(chosen.peak, kind)
    given = {"bandwidth": chosen.bandwidth, "memory_bandwidth": chosen.memory_bandwidth}
    return replace(machine, **{name: rate for name, rate in given.items() if rate is not None})


def _job(recipe: Mapping[str, Any], job: Job) -> tuple[Job, int | str]:
    """Return a job with the task's spec and the first batches; and how many batches each process gets of an epoch, or why none."""
    specs = complete_recipe(recipe)
    data = datasets.build(specs["data"])
    data.prepare_data()
    data.setup("fit")
    batches = [share_of_batch(batch, job.mesh.data) for batch in islice(data.train_dataloader(), LOOK_AT)]
    if not batches:
        raise ConfigurationError("the data have no training batch, so there is no step to plan")
    model = specs["model"] | values_from_data(specs["model"]["name"], specs["data"]["name"], data)
    return replace(job, model=model, batches=batches), _epoch(data, job.mesh.data)


def _epoch(data: Any, processes: int) -> int | str:
    """Return how many batches each process gets of an epoch, or why that cannot be: a training would not begin."""
    # what data asks of a trainer; a real one would look for the machines
    data.trainer = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": processes, "rank": 0}, overfit_batches=0)
    try:
        return len(data.train_dataloader())
    except ConfigurationError as problem:
        return f"none: {problem}"
    except TypeError:  # a stream has no length
        return "unknown"


def _tokens(batch: Mapping[str, Any]) -> int:
    """Return the positions of a batch, padding included; of images, the rows."""
    found = sum(batch[key].numel() for key in ("src", "tgt", "tokens") if key in batch)
    return found or len(next(iter(batch.values())))


def _verdict(peak: float, memory: float) -> str:
    counted = (1 - SPARE) * memory
    needs = f"{peak / 1e9:,.2f} GB of {memory / 1e9:,.2f} GB"
    kept = f"{SPARE:.0%} are kept for what is not estimated: the device's context, NCCL, fragmentation"
    if fits(peak, memory):
        return f"fits: yes, {needs}; {(counted - peak) / 1e9:,.2f} GB are free ({kept})"
    return f"fits: NO, {needs}; {(peak - counted) / 1e9:,.2f} GB are lacking ({kept})"


def _print_time(planned: Estimate, time: StepTime, machine: Machine, efficiency: float) -> None:
    print("time of a step")
    _row("TFLOP of the model (MFU counts them)", f"{planned.model_flops / 1e12:,.3f}")
    _row("TFLOP with padding and recomputation", f"{planned.operations / 1e12:,.3f}")
    if time.products is None or time.computation is None or time.shortest is None or time.longest is None:
        print(f"  for seconds, add --peak TFLOP/S ({planned.kind}), or --machine FILE of attnkit bench")
        return
    peak = machine.tflops[planned.kind]
    _row("products of matrices, ms", f"{1000 * time.products:,.1f}", f"at {efficiency:.0%} of {peak:,.4g} TFLOP/s ({planned.kind})")
    if time.memory is not None:
        _row("memory, ms", f"{1000 * time.memory:,.1f}", f"{planned.touched / 1e9:,.1f} GB at {machine.memory_bandwidth:,.4g} GB/s")
    total = sum(planned.sent.parts.values())
    if total and machine.bandwidth is None:
        print("  the network is left out: add --bandwidth GB/S")
    elif total:
        _row("network, ms", f"{1000 * ((time.beside or 0) + (time.between or 0)):,.1f}", f"{total / 1e9:,.2f} GB at {machine.bandwidth:,.4g} GB/s")
    span = _range(f"{1000 * time.shortest:,.1f}", f"{1000 * time.longest:,.1f}")
    _row("a step, ms", span, "with communication hidden behind computation, or not at all" if "to" in span else "")
    _row("bound by", str(time.bound))


def _print_alternatives(job: Job, machine: Machine, efficiency: float) -> None:
    print("what would change it, each planned again: MiB at the peak, ms of a step")
    best = ""
    for words, planned in alternatives(job, memory=machine.memory):
        time = planned.time(machine, efficiency)
        took = "" if time.shortest is None else f"{1000 * time.shortest:>12,.1f} ms"
        does = machine.memory is not None and fits(planned.peak, machine.memory)
        print(f"  {planned.peak / MIB:>12,.1f}{'' if machine.memory is None else ' fits    ' if does else ' too much'}{took}   {words}")
        best = best or (words if does else "")
    if machine.memory is not None and not best:
        print("nothing here makes it fit: use a smaller model, a shorter context, or more GPUs with --strategy fsdp2")


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
            f"choose a smaller --mesh, or leave --measure out"
        )


def _compare(job: Job, peak: float) -> None:
    processes = job.mesh.processes
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.pt"
        described = {"model": job.model, "batch": job.largest, "precision": job.precision, "strategy": job.strategy}
        torch.save({**described, "mesh": (job.mesh.data, job.mesh.tensor)}, path)
        done = subprocess.run([sys.executable, "-m", "attnkit.profile.measurement", str(path)], capture_output=True, text=True, check=False)
    if not done.stdout.strip():  # the status can tell of threads that were stopped when all was done
        raise ConfigurationError(f"the steps could not be made: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    print(f"measured in five steps of {processes} process{'es' if processes > 1 else ''} on {measured['device']}, MiB")
    _row("allocated by torch at the peak", f"{measured['peak'] / MIB:,.1f}")
    _row("estimate", f"{peak / MIB:,.1f}", f"({peak / measured['peak'] - 1:+.1%})")
