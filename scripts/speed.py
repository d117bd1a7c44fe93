"""Time parts of a training on one thread, contestants in alternation: the numbers of docs/results/speed.md.

`additive` (1,024 tokens, at least two rows), `bias`, `window`, `documents` (packed, of 512 tokens, and the last quarter padding): attention
alone, forward and backward; lengths are tokens. `projections`: queries, keys and values of 1,024 tokens, forward and backward under
autocast to bfloat16, by three products and by one with the joined weights; lengths are channels. `cross_entropy`: forward and backward,
against the formula in torch's own functions; lengths are classes. `half`: a linear map of 256 to 1,024 channels, forward and backward, in
float32, in bfloat16 as attnkit's commands compute it, and in bfloat16 by torch alone; lengths are rows. `few_rows`: products with all
weights of a decoder of 23.2 million parameters, by torch, by oneDNN from its own order, and by `attnkit.panels`; lengths are rows. `muon`:
training steps of the recipe g2p/transformer with the optimizers AdamW and Muon; lengths are `batch_tokens`. `mixers`: training steps of one
mixer of 512 channels and 8 heads on the same number of tokens in rows of each length (32,768 on a GPU, otherwise 2,048), in bfloat16 under
autocast on a GPU; with fla's kernels, too, where fla is installed and has them.

Usage: python scripts/speed.py KIND [--lengths T ...] [--rounds N] [--device cuda] [--precision bf16] [--batch N] [--flush-denormal]; for
       `mixers` also [--names MIXER ...] [--compile] [--tune]
"""

import argparse
import gc
import itertools
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor

import attnkit
from attnkit import draws
from attnkit.attention import LazyBias
from attnkit.half import products_in_float32
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.recurrence.tokens import WithKernel
from attnkit.panels import Panels, product
from attnkit.profile.bench import peak_memory
from attnkit.profile.ceilings import timed
from attnkit.recipe import read_recipe
from attnkit.task import cross_entropy
from attnkit.task.parameters import parameter_groups
from attnkit.train.inheritance import values_from_data

B, H, A = 2, 4, 64
WINDOW = 256
DOCUMENT = 512
LENGTHS = {
    "additive": [512, 2048], "bias": [6000], "window": [8192], "documents": [2048, 8192], "projections": [128, 256, 512],
    "cross_entropy": [44, 8192, 32768], "half": [1024], "few_rows": [1, 5, 16, 32], "muon": [2048], "mixers": [2048, 8192, 32768],
}  # fmt: skip
MEASURED = ("additive", "cross_entropy")
"""The kinds whose peak memory, beyond that of the inputs, is printed as well."""


def contestants(kind: str, length: int, dtype: torch.dtype, rows: int) -> dict[str, Callable[[], Tensor]]:
    """Return the functions to time, the reference first."""
    if kind == "cross_entropy":
        return losses(length)
    if kind == "half":
        return products(length)
    if kind == "few_rows":
        return few_rows(length, dtype)
    if kind == "projections":
        return projections(length)
    if kind == "muon":
        return steps(length)
    batch = max(B, 1024 // length) if kind == "additive" else rows
    heads = [torch.randn(batch, H, length, A, dtype=dtype, requires_grad=True) for _ in range(3)]  # queries, keys, values
    dot = attnkit.attentions.build("scaled_dot_product", head_dim=A, num_heads=H)
    if kind == "additive":
        additive = attnkit.attentions.build("additive", head_dim=A, num_heads=H)
        names = (name for name in reversed(additive.backends) if name.startswith("additive"))
        backends = {name: partial(additive, *heads, backend=name) for name in names}
        return {"sdpa": lambda: dot(*heads, backend="sdpa"), **backends}
    causal = Mask(causal=True)
    full = {"causal": lambda: dot(*heads, mask=causal, backend="sdpa")}
    if kind == "window":
        return {**full, f"window {WINDOW}": lambda: dot(*heads, mask=Mask(causal=True, window=WINDOW))}
    if kind == "documents":
        t = torch.arange(length).expand(rows, -1)
        numbers = {"documents": t // DOCUMENT, "padding": (t >= length * 3 // 4).long()}
        symbolic = {name: Mask(causal=True, stretches=stretches) for name, stretches in numbers.items()}
        dense = {f"{name}, matrix": mask.dense(length, length, heads[0].device) for name, mask in symbolic.items()}
        return {**full, **{name: partial(dot, *heads, mask=mask) for name, mask in (symbolic | dense).items()}}
    t = torch.arange(length)[None]
    kinds = ("alibi", "relative", "kerple", "fire")
    positions = {name: attnkit.positions.build(name, head_dim=A, num_heads=H, bidirectional=False) for name in kinds}
    biases = {name: LazyBias(position.bias, t, t, position.by_offset) for name, position in positions.items()}
    bounded = attnkit.attentions.build("scaled_dot_product", head_dim=A, num_heads=H).configure(softcap=50.0)
    capped = {"softcap": lambda: bounded(*heads, mask=causal)}
    return {**full, **{name: partial(dot, *heads, mask=causal, attn_bias=bias) for name, bias in biases.items()}, **capped}


def losses(classes: int) -> dict[str, Callable[[], Tensor]]:
    """Return the loss of 1,024 tokens with label smoothing, in torch's own functions and in attnkit's."""
    logits, targets = torch.randn(1024, classes, requires_grad=True), torch.randint(1, classes, (1024,))

    def plain() -> Tensor:
        logs = logits.log_softmax(-1)
        nll = -logs.gather(-1, targets[:, None]).sum()
        return 0.9 * nll - 0.1 * torch.cat([logs[:, :0], logs[:, 1:]], -1).mean(-1).sum()

    return {"plain": plain, "attnkit": lambda: cross_entropy(logits, targets, label_smoothing=0.1).loss}


def projections(width: int) -> dict[str, Callable[[], Tensor]]:
    """Return queries, keys and values by three products and by one."""
    x = torch.randn(1024, width, requires_grad=True)
    weights, biases = ([torch.randn(*shape, requires_grad=True) for _ in range(3)] for shape in ((width, width), (width,)))
    autocast = torch.autocast(x.device.type, torch.bfloat16)

    def separate() -> Tensor:
        with autocast:
            return sum((F.linear(x, w, b).square() for w, b in zip(weights, biases, strict=True)), torch.zeros(()))

    def joined() -> Tensor:
        with autocast:
            parts = torch.split(F.linear(x, torch.cat(weights), torch.cat(biases)), width, -1)
            return sum((part.square() for part in parts), torch.zeros(()))

    return {"three products": separate, "one product": joined}


def products(length: int) -> dict[str, Callable[[], Tensor]]:
    """Return a linear map, forward and backward; each call ends with a tensor whose backward pass costs nothing."""

    def product(dtype: torch.dtype, block: Callable[[], AbstractContextManager[None]]) -> Tensor:
        x, weight = (torch.randn(n, 256, dtype=dtype, requires_grad=True) for n in (length, 1024))
        with block():
            torch.autograd.backward(F.linear(x, weight).sum())
        return torch.zeros((), requires_grad=True)

    return {
        "float32": lambda: product(torch.float32, nullcontext),
        "bfloat16": lambda: product(torch.bfloat16, products_in_float32),
        "bfloat16, torch": lambda: product(torch.bfloat16, nullcontext),
    }


@torch.no_grad()
def few_rows(rows: int, dtype: torch.dtype) -> dict[str, Callable[[], Tensor]]:
    """Return the products of one step of decoding; each call ends with a tensor whose backward pass costs nothing."""
    shapes = [(1536, 512), (512, 512), (2048, 512), (512, 2048)] * 6 + [(8192, 512)]
    given = {width: torch.randn(rows, width, dtype=dtype) for width in (512, 2048)}
    weights = [torch.randn(shape, dtype=dtype) for shape in shapes]
    reordered = [torch.ops.mkldnn._reorder_linear_weight(weight) for weight in weights]
    packed = [Panels(weight, None) for weight in weights]

    @torch.no_grad()
    def run(multiply: Callable[[Tensor, Any], Tensor], matrices: list[Any]) -> Tensor:
        for (_, width), matrix in zip(shapes, matrices, strict=True):
            multiply(given[width], matrix)
        return torch.zeros((), requires_grad=True)

    def by_onednn(x: Tensor, matrix: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(x, matrix, None, "none", [], "")  # type: ignore[no-any-return]

    return {"torch": partial(run, F.linear, weights), "oneDNN": partial(run, by_onednn, reordered), "panels": partial(run, product, packed)}


def steps(batch_tokens: int) -> dict[str, Callable[[], Tensor]]:
    """Return training steps of one model; each step ends with a tensor whose backward pass costs nothing."""
    recipe = read_recipe("g2p/transformer")
    device = torch.get_default_device()
    with torch.device("cpu"):
        data = attnkit.datasets.build({**recipe["data"], "batch_tokens": batch_tokens})
        spec = attnkit.tasks.resolve(recipe["model"])
        task = attnkit.tasks.build(spec.replace(**values_from_data(spec.name, recipe["data"]["name"], data)))
        task.configure_model()
        batches = itertools.cycle([move_data_to_device(batch, device) for batch in itertools.islice(data.train_dataloader(), 4)])
    task.to(device)
    groups = parameter_groups(task)
    adamw = torch.optim.AdamW([{**group} for group in groups], lr=1e-6, fused=True)
    optimizers = {"adamw": adamw, "muon": attnkit.optimizers.build({"name": "muon", "lr": 1e-6}, params=groups)}

    def step(optimizer: torch.optim.Optimizer, turn: list[Any]) -> Tensor:
        if not turn:  # both optimizers take the same batch
            turn += [batch := next(batches)] * 2
        batch = turn.pop()
        with torch.autocast(device.type, torch.bfloat16):
            draws.begin(task.row_keys(batch, 0, 0, 0))
            loss = task.objective(batch).loss
        (loss / 1000).backward()
        optimizer.step()
        optimizer.zero_grad()
        return torch.zeros((), requires_grad=True)

    turn: list[Any] = []
    return {name: partial(step, optimizer, turn) for name, optimizer in optimizers.items()}


MIXERS = [
    *("delta_rule", "gated_delta", "gated_linear_attention", "linear_attention", "retention", "state_space"),
    *("selective_state_space", "rg_lru", "rwkv", "rwkv7", "rwkv_channel", "mlstm", "slstm", "convolution", "gru", "lstm", "rnn"),
]


def mixing(length: int, names: list[str], compiled: bool, tune: bool) -> dict[str, Callable[[], Tensor]]:
    """Return training steps of mixers; each ends with a tensor whose backward pass costs nothing."""
    device = torch.get_default_device()
    on_gpu = device.type == "cuda"
    x = torch.randn(max(1, (32768 if on_gpu else 2048) // length), length, 512, requires_grad=True)

    def step(mixer: Callable[..., Any], inputs: Tensor) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=on_gpu):
            y, _ = mixer(inputs, Tokens())
        y.float().square().mean().backward()
        return torch.zeros((), requires_grad=True)

    steps: dict[str, Callable[[], Tensor]] = {}
    for name in names:
        has_kernel = on_gpu and find_spec("fla") is not None and issubclass(attnkit.mixers.get(name), WithKernel)
        for kernel in ("torch", "fla") if has_kernel else ("torch",):
            spec = {"name": name, "kernel": kernel} if has_kernel else name
            mixer = attnkit.mixers.build(spec, d_model=512, num_heads=8)
            parts = {kernel: mixer, **({f"{kernel}, compiled": torch.compile(mixer)} if compiled else {})}
            steps |= {f"{name} {part}": partial(step, call, x) for part, call in parts.items()}
        if has_kernel and not tune:
            try_few_configurations()
    return steps


def try_few_configurations() -> None:
    """Restrict triton's autotuning to tile sizes with four warps: each configuration takes about a second to compile."""
    import fla.ops.gla
    import fla.ops.kda  # noqa: F401
    from triton.runtime.autotuner import Autotuner

    for kernel in [x for x in gc.get_objects() if issubclass(type(x), Autotuner)]:
        few = [c for c in kernel.configs if c.num_warps == 4] or kernel.configs
        kernel.configs = [c for c in few if c.num_stages == few[0].num_stages]


def both_passes(call: Callable[[], Tensor]) -> None:
    """Run a function and the backward pass of the sum of its output."""
    torch.autograd.backward(call().sum())


def main() -> None:
    """Print a line for each length and contestant: median milliseconds, the median ratio to the first, and for some the peak memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=LENGTHS)
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="cuda: on a GPU (default: cpu)")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="fp32", help="of attention alone and `few_rows`")
    parser.add_argument("--batch", type=int, default=1, help="rows of `bias`, `window` and `documents`")
    parser.add_argument("--names", nargs="+", choices=MIXERS, default=MIXERS, help="mixers to time")
    parser.add_argument("--compile", action="store_true", help="mixers under torch.compile, too")
    parser.add_argument("--tune", action="store_true", help="fla tries all configurations of its kernels, for minutes")
    parser.add_argument("--flush-denormal", action="store_true", help="numbers below 1e-38 become zero, as with torch.set_flush_denormal")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(chosen.flush_denormal)
    torch.manual_seed(0)
    device = torch.device(chosen.device)
    for length in chosen.lengths or LENGTHS[chosen.kind]:
        with device:
            if chosen.kind == "mixers":
                calls = mixing(length, chosen.names, chosen.compile, chosen.tune)
            else:
                calls = contestants(chosen.kind, length, {"fp32": torch.float32, "bf16": torch.bfloat16}[chosen.precision], chosen.batch)
        times: dict[str, list[float]] = {name: [] for name in calls}
        with nullcontext() if chosen.kind == "half" else products_in_float32():  # as in `attnkit fit`
            for turn in range(chosen.rounds + 1):  # the first turn warms up
                for name, call in calls.items():
                    seconds = timed(partial(both_passes, call), device)
                    if turn:
                        times[name].append(seconds)
        first = next(iter(times.values()))
        for name, own in times.items():
            ratio = statistics.median(a / b for a, b in zip(own, first, strict=True))
            memory = peak_memory(partial(both_passes, calls[name]), device) / 2**20 if chosen.kind in MEASURED else None
            line = f"T = {length:<6} {name:<18} {statistics.median(own) * 1e3:>9.2f} ms {ratio:>7.2f} x"
            print(line + ("" if memory is None else f" {memory:>8.1f} MiB"), flush=True)


if __name__ == "__main__":
    main()
