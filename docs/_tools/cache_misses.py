"""Primitives that a training creates anew, by the capacity of a cache: `python docs/_tools/cache_misses.py [BATCHES]` prints a table.

The products of matrices of real batches of `g2p/transformer` are listed by steps of a copy without memory, and looked up in a cache that
forgets what was not used for longest. No time is measured, so the table is the same on every machine.
"""

import sys
from collections import OrderedDict
from itertools import islice
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from attnkit.cli.composition import complete_recipe
from attnkit.cli.inheritance import values_from_data
from attnkit.cli.recipe import read_recipe
from attnkit.registry import datasets, tasks

CAPACITIES = (1024, 256, 64, 32, 16, 8, 4)
PRODUCTS = {"addmm", "mm", "bmm", "baddbmm"}


class Shapes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lists what distinguishes the primitives of products."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (name := func.overloadpacket.__name__) in PRODUCTS:
            self.seen.append((name, *((*x.shape, *x.stride()) for x in args if isinstance(x, Tensor))))
        return func(*args, **(kwargs or {}))


steps = int(sys.argv[1]) if len(sys.argv) > 1 else 100
specs = complete_recipe(read_recipe("g2p/transformer"))
data: Any = datasets.build(specs["data"])
data.prepare_data()
data.setup("fit")
batches = list(islice(data.train_dataloader(), steps))
shapes = Shapes()
task: Any = tasks.build(specs["model"] | values_from_data(specs["model"]["name"], specs["data"]["name"], data))
with FakeTensorMode(allow_non_fake_inputs=True) as fake:
    task.configure_model()
    for batch in batches:
        copy = {key: fake.from_tensor(x) for key, x in batch.items()}
        with shapes:
            task.objective(copy).loss.backward()
print(f"{steps} steps, {len(shapes.seen) / steps:.0f} products a step, {len(set(shapes.seen)):,} different ones\n")
print("| capacity | created in a step |\n|---|---|")
for capacity in CAPACITIES:
    cache: OrderedDict[Any, None] = OrderedDict()
    misses = 0
    for shape in shapes.seen:
        misses += shape not in cache
        cache[shape] = None
        cache.move_to_end(shape)
        if len(cache) > capacity:
            cache.popitem(last=False)
    print(f"| {capacity:,} | {misses / steps:.0f} |")
