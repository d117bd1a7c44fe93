"""`attnkit plan`: what a training step of a recipe needs on each process: memory, communication and its share of the data."""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.cli.composition import complete_recipe
from attnkit.cli.inheritance import values_from_data
from attnkit.cli.recipe import Request, merge, read_recipe, take_apart
from attnkit.layers import MultiHead, TransformerLayer
from attnkit.registry import ConfigurationError, datasets, tasks
from attnkit.profile.flops import BACKWARD, forward_flops, row_lengths
from attnkit.profile.memory import PRECISIONS, StepMemory, step_memory

STRATEGIES = ("ddp", "fsdp2")
LOOK_AT = 50
"""Batches of which the largest is planned for."""
MIB = 2**20


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """How many processes share the data, and over how many each layer is split.

    Example:
        >>> Mesh.read("8x2")
        Mesh(data=8, tensor=2)
    """

    data: int
    tensor: int

    @classmethod
    def read(cls, text: str) -> "Mesh":
        """Read `8`, or `8x2`.

        Raises:
            ConfigurationError: It is neither.
        """
        if (found := re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)) is None:
            raise ConfigurationError(
                f"--mesh is the processes that share the data x those that split each layer, as in 8x1, but is {text!r}"
            )
        return cls(data=int(found[1]), tensor=int(found[2] or 1))


def plan(arguments: list[str]) -> int:
    """Carry out `attnkit plan`."""
    request = take_apart(arguments)
    parser = argparse.ArgumentParser(prog="attnkit plan", description=(__doc__ or "")[15:], allow_abbrev=False)
    parser.add_argument("recipe", help="a YAML file, or the short name of a recipe; --model.ARGUMENT and --data.ARGUMENT change it")
    parser.add_argument("--mesh", default="1x1", metavar="DxT", help="processes that share the data x processes that split each layer")
    parser.add_argument("--strategy", choices=STRATEGIES, help="default: ddp, or fsdp2 if layers are split")
    parser.add_argument("--precision", metavar="P", help=f"{', '.join(PRECISIONS)} (default: the recipe's)")
    parser.add_argument("--measure", action="store_true", help="also make five steps here, in so many processes, and say what they took")
    chosen = parser.parse_args(request.others)
    mesh = Mesh.read(chosen.mesh)
    strategy = chosen.strategy or ("ddp" if mesh.tensor == 1 else "fsdp2")
    if strategy == "ddp" and mesh.tensor > 1:
        raise ConfigurationError("ddp splits no layers: use --strategy fsdp2, or a mesh such as 8x1")
    if chosen.measure:
        _require_room(mesh.data * mesh.tensor)
    job, epoch = _job(chosen.recipe, request, chosen.precision, mesh.data)
    whole = tasks.build(job["model"])
    memory = step_memory(tasks.build(split(job["model"], mesh.tensor)), job["batch"], precision=job["precision"])
    parts, sent = memory_parts(memory, mesh, strategy), communication(memory, mesh, strategy)
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        parameters = sum(p.numel() for p in whole.build_model().parameters())
    s, t = row_lengths(whole, job["batch"])
    flops = (1 + BACKWARD) * sum(c * int((s**a * t**b).sum()) for (a, b), c in forward_flops(whole).items())
    tokens = int((s + t).sum())
    print(f"{chosen.recipe}: {parameters:,} parameters, {mesh.data} x {mesh.tensor} processes, {strategy}, {job['precision']}")
    _table(f"memory of a process with a batch of {len(s):,} rows and {tokens:,} tokens, MiB", parts)
    _table("sent by a process in a step, MiB", sent)
    print("data")
    print(f"  {'tokens of a step, at the most':<42}{mesh.data * tokens:>14,}")
    print(f"  {'steps of an epoch':<42}{epoch:>14}")
    print(f"  {'TFLOP of a step and process (MFU counts it)':<42}{flops / mesh.tensor / 1e12:>14,.3f}")
    if chosen.measure:
        _compare(job, mesh, strategy, parts["at the peak"])
    return 0


def _job(name: str, request: Request, precision: str | None, processes: int) -> tuple[dict[str, Any], str]:
    """Return the task's spec, the largest of the first batches and the precision; and how many batches each process gets of an epoch."""
    recipe = merge(read_recipe(name), request.flags, dropped=[])
    specs = complete_recipe(recipe)
    data = datasets.build(specs["data"])
    data.prepare_data()
    data.setup("fit")
    loader = data.train_dataloader()
    batch = max(islice(loader, LOOK_AT), key=lambda b: sum(x.numel() for x in b.values() if isinstance(x, Tensor)))
    model = specs["model"] | values_from_data(specs["model"]["name"], specs["data"]["name"], data)
    precision = str(precision or (recipe.get("trainer") or {}).get("precision", "32-true"))
    precision = {"32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}.get(precision, precision)
    return {"model": model, "batch": batch, "precision": precision}, _epoch(data, processes)


def _epoch(data: Any, processes: int) -> str:
    """Return how many batches each process gets of an epoch, or why it cannot be: a training would not begin."""
    # what data asks of a trainer; a real one would look for the machines
    data.trainer = SimpleNamespace(distributed_sampler_kwargs={"num_replicas": processes, "rank": 0}, overfit_batches=0)
    try:
        return f"{len(data.train_dataloader()):,}"
    except ConfigurationError as problem:
        return f"none: {problem}"
    except TypeError:  # a stream has no length
        return "unknown"


def split(model: Mapping[str, Any], size: int) -> Mapping[str, Any]:
    """Return the spec of a task in which each layer has what one of `size` processes has of it: a part of the heads and hidden units.

    Raises:
        ConfigurationError: The layers cannot be split.
    """
    if size == 1:
        return model
    task: Any = tasks.build(model)
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        built = task.build_model()
    layer = next((m for m in built.modules() if isinstance(m, TransformerLayer)), None)
    if layer is None:
        raise ConfigurationError("tensor parallelism splits Transformer layers, and this stack has none: use a mesh such as 8x1")
    heads: MultiHead = layer.self_attention
    output = layer.feed_forward.output
    assert isinstance(output, nn.Linear)
    widths = {"num_heads": heads.attention.num_heads, "num_kv_heads": heads.attention.num_kv_heads, "ffn_dim": output.in_features}
    for key, width in widths.items():
        if width % size:
            raise ConfigurationError(f"{key} {width} cannot be split over {size} processes")
    stack = {**model["stack"], "head_dim": heads.head_dim}
    stack |= {key: widths[key] // size for key in ("num_heads", "num_kv_heads")}
    spec = stack["feed_forward"]
    stack["feed_forward"] = {**({"name": spec} if isinstance(spec, str) else spec), "ffn_dim": widths["ffn_dim"] // size}
    return {**model, "stack": stack}


def memory_parts(memory: StepMemory, mesh: Mesh, strategy: str) -> dict[str, float]:
    """Return the bytes of a process at the peak of a step, by what they are."""
    if strategy == "ddp" or mesh.data == 1:
        fixed = {"parameters": memory.parameters, "buffers": memory.buffers, "optimizer": memory.optimizer}
        if mesh.data > 1:
            fixed["buckets of gradients (ddp)"] = memory.gradients
        moving = memory.peak - memory.parameters - memory.buffers - memory.optimizer
        return {
            **fixed,
            "gradients": memory.gradients,
            "activations and passing": moving - memory.gradients,
            "at the peak": sum(fixed.values()) + moving,
        }
    root, largest, gradients = memory.parameters - sum(memory.layers), max(memory.layers, default=0), memory.gradients / mesh.data
    # Gathered layers, and all that is there with them but for what is shared out. In the forward pass the old gradients are there still.
    # In the backward pass there are none at first, when there are most activations; at last there are all, but activations of one layer.
    moments = (
        (root + 2 * largest, gradients + memory.forward),
        (2 * root + 3 * largest, memory.backward),
        (2 * root + (3 + 2 / mesh.data) * largest, gradients + memory.backward / max(len(memory.layers), 1)),
    )
    gathered, others = max(moments, key=sum)
    parts: dict[str, float] = {
        "parameters": memory.parameters / mesh.data,
        "buffers": memory.buffers,
        "optimizer": memory.optimizer / mesh.data,
        "gradients": gradients,
        "gathered layers (fsdp2)": gathered,
        "activations and passing": others - gradients,
    }
    return {**parts, "at the peak": sum(parts.values())}


def communication(memory: StepMemory, mesh: Mesh, strategy: str) -> dict[str, float]:
    """Return the bytes that a process sends in a step, by what they are for, with ring algorithms."""
    share = (mesh.data - 1) / mesh.data
    root, layers = memory.parameters - sum(memory.layers), sum(memory.layers)
    sent: dict[str, float] = {}
    if strategy == "ddp":
        sent["gradients: all-reduce"] = 2 * share * memory.gradients
    else:
        sent["parameters: all-gather"] = share * (2 * layers + root)
        sent["gradients: reduce-scatter"] = share * memory.gradients
    if mesh.tensor > 1:
        sent["activations: all-reduce (tensor parallel)"] = 2 * (mesh.tensor - 1) / mesh.tensor * memory.sums
    return {**sent, "together": sum(sent.values())}


def _table(title: str, parts: Mapping[str, float]) -> None:
    print(title)
    for name, size in parts.items():
        print(f"  {name:<42}{size / MIB:>14,.1f}")


def _require_room(processes: int) -> None:
    cores, gpus = os.cpu_count() or 1, torch.cuda.device_count()
    if processes > max(cores, gpus):
        raise ConfigurationError(
            f"--measure starts all {processes} processes of the mesh on this machine, which has {cores} cores and {gpus} GPUs: "
            f"choose a smaller --mesh, or leave --measure out"
        )


def _compare(job: Mapping[str, Any], mesh: Mesh, strategy: str, estimate: float) -> None:
    processes = mesh.data * mesh.tensor
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "job.pt"
        torch.save({**job, "mesh": (mesh.data, mesh.tensor), "strategy": strategy}, path)
        done = subprocess.run([sys.executable, "-m", "attnkit.profile.measurement", str(path)], capture_output=True, text=True, check=False)
    if not done.stdout.strip():  # the status can tell of threads that were stopped when all was done
        raise ConfigurationError(f"the steps could not be made: {(done.stderr.strip().splitlines() or ['no message'])[-1]}")
    measured = json.loads(done.stdout.splitlines()[-1])
    gap = estimate / measured["peak"] - 1
    print(f"measured in five steps of {processes} process{'es' if processes > 1 else ''} on {measured['device']}, MiB")
    print(f"  {'allocated by torch at the peak':<42}{measured['peak'] / MIB:>14,.1f}")
    print(f"  {'estimate':<42}{estimate / MIB:>14,.1f}  ({gap:+.1%})")
