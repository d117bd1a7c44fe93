"""The flags of `attnkit plan`; with a recipe's trainer section, they describe the processes and the machine."""

import argparse
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from attnkit.cli.suggesting import SuggestingParser
from attnkit.profile.machine import EFFICIENCY, Machine, read_size
from attnkit.profile.memory import PRECISIONS
from attnkit.profile.partition import STRATEGIES, Mesh
from attnkit.recipe import read_yaml
from attnkit.registry import ConfigurationError
from attnkit.train.request import Request

SUMMARY = "Estimate a training step of a recipe: its memory on each process, whether it fits, its time, and its bottleneck."
PLANNED = ("precision", "devices", "num_nodes", "strategy", "accumulate_grad_batches")  # trainer settings that a plan uses


def plan_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags that are not specs."""
    parser = SuggestingParser(prog="attnkit plan", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("recipe", nargs="*", help="recipes, as for --config; --model.X, --data.X and --trainer.X change them")
    parser.add_argument("--config", metavar="RECIPE", help="a YAML file, or the short name of a recipe; may be repeated")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--gpus", type=_count, metavar="N", help="number of processes, one GPU each (default: the recipe's devices, or 1)")
    size.add_argument("--mesh", metavar="DxT", help="data-parallel size x tensor-parallel size")
    parser.add_argument("--strategy", choices=STRATEGIES, help="default: the recipe's; otherwise ddp, or fsdp2 with tensor parallelism")
    parser.add_argument("--precision", metavar="P", help=f"{', '.join(PRECISIONS)} (default: the recipe's)")
    parser.add_argument("--accumulate", type=_count, metavar="N", help="batches per step (default: the recipe's accumulate_grad_batches)")
    parser.add_argument("--memory", metavar="SIZE", help="memory of a GPU, as in 80GB or 80GiB, to check whether the step fits")
    parser.add_argument("--peak", metavar="X", help="TFLOP/s of a GPU in matrix products, or by number format: fp32=67,bf16=989")
    parser.add_argument(
        "--efficiency", type=_part, default=EFFICIENCY, metavar="E", help=f"fraction of the peak that is reached (default: {EFFICIENCY})"
    )
    parser.add_argument("--bandwidth", type=_rate, metavar="X", help="network bandwidth of a process in GB/s; 400 Gb/s is 50")
    parser.add_argument("--memory_bandwidth", type=_rate, metavar="X", help="memory bandwidth of a GPU in GB/s")
    parser.add_argument("--machine", metavar="FILE", help="memory and rates from attnkit bench --json FILE; the flags above override them")
    parser.add_argument("--alternatives", action="store_true", help="also plan changes that save memory (the default if it does not fit)")
    parser.add_argument(
        "--measure", action="store_true", help="also run five steps here, with that many processes, and report their memory"
    )
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, but is {text!r}")
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
        raise argparse.ArgumentTypeError(f"must be a fraction of the peak, above 0 and at most 1, but is {text!r}")
    return part


def trainer_flags(request: Request) -> dict[str, Any]:
    """Remove `--trainer.KEY VALUE` from the arguments, and return the settings that a plan reads; others are ignored, as in a recipe."""
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
            found[key] = read_yaml(value, where="the command line")
    return found


def processes_of(chosen: argparse.Namespace, trainer: Mapping[str, Any]) -> tuple[Mesh, str]:
    """Return the processes and strategy from the flags, or else the recipe's trainer section; raise if they are inconsistent."""
    named = str(trainer.get("strategy", "auto"))
    split_over = re.fullmatch(r"fsdp2(?:_tp(\d+))?", named)
    if chosen.mesh is not None or chosen.gpus is not None:
        mesh = Mesh.read(chosen.mesh) if chosen.mesh is not None else Mesh(data=chosen.gpus, tensor=1)
    else:
        devices, nodes = trainer.get("devices", 1), trainer.get("num_nodes", 1)
        counts = [len(d) if isinstance(d, list) else int(d) if str(d).isdecimal() and int(d) else 1 for d in (devices, nodes)]
        tensor = int(split_over[1] or 1) if split_over else 1
        if counts[0] * counts[1] % tensor:
            raise ConfigurationError(
                f"trainer.strategy {named} splits layers over {tensor} processes, which do not divide {counts[0] * counts[1]}"
            )
        mesh = Mesh(data=counts[0] * counts[1] // tensor, tensor=tensor)
    strategy = chosen.strategy or ("fsdp2" if mesh.tensor > 1 or split_over else "ddp")
    if strategy == "ddp" and mesh.tensor > 1:
        raise ConfigurationError("ddp does not split layers: use --strategy fsdp2, or a mesh such as 8x1")
    return mesh, str(strategy)


def machine_of(chosen: argparse.Namespace, kind: str, mesh: Mesh) -> Machine:
    """Return the machine of `--machine`, overridden by the other flags; `kind` is the number format of matrix products."""
    machine = Machine.read(chosen.machine) if chosen.machine is not None else Machine()
    if machine.shares_memory and machine.memory is not None:
        machine = replace(machine, memory=machine.memory / mesh.processes)
    if chosen.memory is not None:
        machine = replace(machine, memory=read_size(chosen.memory))
    if chosen.peak is not None:
        machine = machine.with_peak(chosen.peak, kind)
    given = {"bandwidth": chosen.bandwidth, "memory_bandwidth": chosen.memory_bandwidth}
    return replace(machine, **{name: rate for name, rate in given.items() if rate is not None})
