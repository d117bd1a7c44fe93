"""Memory and speed by the capacity of oneDNN's caches: `python docs/_tools/memory_by_capacity.py` prints Markdown tables.

Each run is a separate process. Runs with different capacities alternate, so other load on the machine affects all alike, and times are
processor time. Where torch computes bf16 products without oneDNN (CPUs without AVX-512), the Transformer trains in fp32
with its linear layers sent through oneDNN, which creates and caches a primitive for each shape in the same way.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

CAPACITIES = (1024, 256, 64, 32, 16, 8, 4)
WARM_UP = 20
VARIABLES = ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY")
ADAMW = {"optimizer": {"name": "adamw", "lr": 1e-3}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "Transformer": ("g2p/transformer", ADAMW),
    "LSTM": ("g2p/seq2seq_lstm", ADAMW),
}


def resident() -> float:
    """Return the resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize() / 1e6


def train(kind: str, how: str, steps: int) -> dict[str, float]:
    """Train a recipe on batches of its own data, and return its memory and its processor time."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    from attnkit.recipe import merge, read_recipe
    from attnkit.registry import datasets, tasks
    from attnkit.train.composition import complete_recipe
    from attnkit.train.inheritance import values_from_data

    class OneDNN(TorchDispatchMode):  # type: ignore[no-untyped-call]
        """Sends products of fp32 matrices through oneDNN."""

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.ops.aten.addmm.default:
                bias, x, y = args
                return torch.ops.mkldnn._linear_pointwise(x.contiguous(), y.t().contiguous(), bias, "none", [], "")
            if func is torch.ops.aten.mm.default:
                x, y = args
                return torch.ops.mkldnn._linear_pointwise(x.contiguous(), y.t().contiguous(), None, "none", [], "")
            return func(*args, **(kwargs or {}))

    torch.manual_seed(0)
    recipe, changes = KINDS[kind]
    specs = complete_recipe(merge(read_recipe(recipe), {"model": changes}, dropped=[]))
    data: Any = datasets.build(specs["data"])
    data.prepare_data()
    data.setup("fit")
    task: Any = tasks.build(specs["model"].replace(**values_from_data(specs["model"].name, specs["data"].name, data)))
    task.configure_model()
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-3, fused=True)
    shapes, marks, began = set(), [], 0.0
    for i, batch in enumerate(islice(data.train_dataloader(), steps)):
        if i == WARM_UP:
            began = time.process_time()
        if i in (WARM_UP, steps // 2):
            marks.append(resident())
        shapes.add((*batch["src"].shape, *batch["tgt"].shape))
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "bf16"):
            if how == "oneDNN":
                with OneDNN():  # type: ignore[no-untyped-call]
                    loss = task.objective(batch).loss
                    loss.backward()
            else:
                loss = task.objective(batch).loss
        if how != "oneDNN":
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.process_time() - began
    half = steps - steps // 2
    return {
        "shapes": len(shapes),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6,
        "growth": (resident() - marks[1]) / half * 100,
        "time": seconds / (steps - WARM_UP),
    }


def main() -> None:
    """Run everything and print a table for each kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", default=["Transformer:auto", "LSTM:fp32"], help="Transformer|LSTM:auto|fp32|bf16|oneDNN")
    parser.add_argument("--capacities", type=int, nargs="+", default=CAPACITIES, help="the first is the reference for the others")
    parser.add_argument("--training", nargs=2)
    chosen = parser.parse_args()
    if chosen.training:
        kind, how = chosen.training
        print(json.dumps(train(kind, how, chosen.steps)))
        return
    for kind, how in (name.split(":") for name in chosen.kinds):
        if how == "auto":
            import torch

            how = "bf16" if torch.ops.mkldnn._is_mkldnn_bf16_supported() else "oneDNN"
        found: dict[int, list[dict[str, float]]] = {capacity: [] for capacity in chosen.capacities}
        for _ in range(chosen.rounds):
            for capacity in chosen.capacities:
                command = [sys.executable, __file__, "--training", kind, how, "--steps", str(chosen.steps)]
                environment = {**os.environ, **dict.fromkeys(VARIABLES, str(capacity))}
                done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
                found[capacity].append(json.loads(done.stdout.splitlines()[-1]))
                print(kind, capacity, done.stdout.splitlines()[-1], file=sys.stderr, flush=True)
        shapes = int(found[chosen.capacities[0]][0]["shapes"])
        print(f"\n{kind}, {how}: {chosen.steps} steps, {shapes} batch shapes, medians of {chosen.rounds}\n")
        print("| capacity | peak, MB | growth over the last half, MB per 100 steps | processor time per step, ms | change from the first |")
        print("|---|---|---|---|---|")
        for capacity, runs in found.items():
            peak, growth, took = (statistics.median(run[key] for run in runs) for key in ("peak", "growth", "time"))
            ratio = statistics.median(run["time"] / first["time"] for run, first in zip(runs, found[chosen.capacities[0]], strict=True))
            print(f"| {capacity:,} | {peak:,.0f} | {growth:+,.1f} | {1000 * took:,.1f} | {ratio - 1:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
