"""The share of one process in a distributed training step: its memory and its communication."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.attention import Attention
from attnkit.layers import TransformerLayer
from attnkit.profile.memory import StepMemory
from attnkit.registry import ConfigurationError, stacks, tasks

STRATEGIES = ("ddp", "fsdp2")
PEAK = "at the peak"


@dataclass(frozen=True, kw_only=True)
class Mesh:
    """A grid of processes.

    Example:
        >>> Mesh.read("8x2")
        Mesh(data=8, tensor=2)
    """

    data: int  # number of groups of processes that share the data
    tensor: int  # number of processes over which each layer is split

    @classmethod
    def read(cls, text: str) -> "Mesh":
        """Read `8`, or `8x2`; raise if `text` is neither."""
        if (found := re.fullmatch(r"([1-9]\d*)(?:x([1-9]\d*))?", text)) is None:
            raise ConfigurationError(
                f"--mesh must be the number of processes that share the data x the number that split each layer, as in 8x1, but is {text!r}"
            )
        return cls(data=int(found[1]), tensor=int(found[2] or 1))

    @property
    def processes(self) -> int:
        """Total number of processes."""
        return self.data * self.tensor


def share_of_batch(batch: Mapping[str, Any], processes: int) -> dict[str, Any]:
    """Return the share of a batch that the first of `processes` data-parallel processes computes.

    A batch from attnkit's data modules, which has `example`, belongs to all processes: the first one takes rows 0, n, 2n, ..., padded like
    the whole batch. Other data modules give each process its own batch.

    Example:
        >>> batch = {"tokens": torch.tensor([[5, 6], [7, 0], [8, 9]]), "example": torch.tensor([3, 1, 2])}
        >>> share_of_batch(batch, 2)["tokens"].tolist()
        [[5, 6], [8, 9]]
    """
    return some_rows(batch, slice(None, None, processes if "example" in batch else 1))


def some_rows(batch: Mapping[str, Any], rows: slice) -> dict[str, Any]:
    """Return some rows of a batch, with all columns.

    Example:
        >>> {k: v.tolist() for k, v in some_rows({"tokens": torch.tensor([[5, 6], [7, 0], [8, 9]])}, slice(2)).items()}
        {'tokens': [[5, 6], [7, 0]]}
    """
    return {key: value[rows] if isinstance(value, Tensor | list) else value for key, value in batch.items()}


def split(model: Mapping[str, Any], size: int) -> Mapping[str, Any]:
    """Return a task's spec with layers reduced to some heads and hidden units, the share of one of `size` processes; or raise."""
    if size == 1:
        return model
    task: Any = tasks.build(model)
    with torch.device("meta"), torch.random.fork_rng(devices=[]):
        built = task.build_model()
    layer = next((m for m in built.modules() if isinstance(m, TransformerLayer)), None)
    if layer is None:
        raise ConfigurationError("tensor parallelism splits Transformer layers, but this stack has none; use a mesh such as 8x1")
    attention = next((part for part in layer.mixer.modules() if isinstance(part, Attention)), None)
    if attention is None or not layer.mixer.splits:
        raise ConfigurationError(f"tensor parallelism splits heads, but the mixer is {type(layer.mixer).__name__}; use a mesh such as 8x1")
    output = getattr(layer.feed_forward, "output", None)
    if not isinstance(output, nn.Linear):
        kind = type(layer.feed_forward).__name__
        raise ConfigurationError(f"the cost of splitting the hidden units of {kind} cannot be estimated; use a mesh such as 8x1")
    widths = {"num_heads": attention.num_heads, "num_kv_heads": attention.num_kv_heads, "ffn_dim": output.in_features}
    for key, width in widths.items():
        if width % size:
            raise ConfigurationError(f"{key} {width} cannot be split over {size} processes")
    stack: dict[str, Any] = {**stacks.resolve(model["stack"]), "head_dim": attention.head_dim}
    if stack.get("layers") or stack.get("decoder_layers"):
        raise ConfigurationError("the cost of splitting layers that differ from each other cannot be estimated; use a mesh such as 8x1")
    stack |= {key: widths[key] // size for key in ("num_heads", "num_kv_heads")}
    stack["feed_forward"] = {**stack["feed_forward"], "ffn_dim": widths["ffn_dim"] // size}
    return {**model, "stack": stack}


def memory_parts(memory: StepMemory, mesh: Mesh, strategy: str, *, accumulates: bool = False) -> dict[str, float]:
    """Return the bytes of a process at the peak of a step, by purpose; the total is under `PEAK`.

    `memory` is that of a step on one process, with whole layers or with its share of split layers. If it `accumulates` micro-batches,
    gradients of the earlier ones exist throughout.
    """
    if strategy == "ddp" or mesh.data == 1:
        fixed = {"parameters": memory.parameters, "buffers": memory.buffers, "optimizer": memory.optimizer}
        if mesh.data > 1:
            fixed["gradient buckets (ddp)"] = memory.gradients
        moving = memory.peak - memory.parameters - memory.buffers - memory.optimizer
        if accumulates:
            moving = max(moving, memory.gradients + memory.backward)
        return {
            **fixed,
            "gradients": memory.gradients,
            "activations and temporaries": moving - memory.gradients,
            PEAK: sum(fixed.values()) + moving,
        }
    root, largest, gradients = memory.parameters - sum(memory.layers), max(memory.layers, default=0), memory.gradients / mesh.data
    # Gathered layers, and everything that coexists with them except shards. In the forward pass, old gradients still exist. In the
    # backward pass there are none at first, when activations peak; at the end there are all, but activations of one layer only.
    moments = (
        (root + 2 * largest, gradients + memory.forward),
        (2 * root + 3 * largest, memory.backward + (gradients if accumulates else 0)),
        (2 * root + (3 + 2 / mesh.data) * largest, gradients + memory.backward / max(len(memory.layers), 1)),
    )
    gathered, others = max(moments, key=sum)
    parts: dict[str, float] = {
        "parameters": memory.parameters / mesh.data,
        "buffers": memory.buffers,
        "optimizer": memory.optimizer / mesh.data,
        "gradients": gradients,
        "gathered layers (fsdp2)": gathered,
        "activations and temporaries": others - gradients,
    }
    return {**parts, PEAK: sum(parts.values())}


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Bytes that a process sends in a step, with ring algorithms."""

    overlapped: Mapping[str, float]  # bytes by purpose that are sent during computation: gradients that are ready, the next layers
    exposed: Mapping[str, float]  # bytes by purpose that are sent while nothing is computed: the all-reduces of tensor parallelism

    @property
    def parts(self) -> dict[str, float]:
        """All bytes, by purpose."""
        return {**self.overlapped, **self.exposed}


def communication(memory: StepMemory, mesh: Mesh, strategy: str, *, micro_batches: int = 1) -> Traffic:
    """Return the traffic of a process in a step. `ddp` reduces gradients once; `fsdp2` gathers layers and reduces in each micro-batch.

    Example:
        >>> memory = StepMemory(parameters=8, layers=[4, 4], buffers=0, gradients=8, optimizer=16, forward=5, backward=5, backward_all=9,
        ...     update=4, sums=3, made=20)
        >>> communication(memory, Mesh(data=2, tensor=1), "ddp").parts
        {'gradients: all-reduce': 8.0}
        >>> communication(memory, Mesh(data=2, tensor=1), "fsdp2").parts
        {'parameters: all-gather': 8.0, 'gradients: reduce-scatter': 4.0}
    """
    share = (mesh.data - 1) / mesh.data
    root, layers = memory.parameters - sum(memory.layers), sum(memory.layers)
    if strategy == "ddp":
        overlapped = {"gradients: all-reduce": 2 * share * memory.gradients}
    else:
        overlapped = {
            "parameters: all-gather": share * (2 * layers + root) * micro_batches,
            "gradients: reduce-scatter": share * memory.gradients * micro_batches,
        }
    exposed = {}
    if mesh.tensor > 1:
        exposed["activations: all-reduce (tensor parallel)"] = 2 * (mesh.tensor - 1) / mesh.tensor * memory.sums * micro_batches
    return Traffic(overlapped=overlapped, exposed=exposed)
