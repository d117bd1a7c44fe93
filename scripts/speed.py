"""Time attention alone, forward and backward on one thread, contestants in alternation: the numbers of docs/results/speed.md.

Usage: python scripts/speed.py {additive,bias,window} [--lengths T ...] [--rounds N]
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import attnkit
from attnkit.attention import LazyBias
from attnkit.masks import Mask

B, H, A = 2, 4, 64
WINDOW = 256
LENGTHS = {"additive": [512, 2048], "bias": [6000], "window": [8192]}


def contestants(kind: str, length: int) -> dict[str, Callable[[], Tensor]]:
    """Return what is timed; the first one is what the others are compared with."""
    batch = B if kind == "additive" else 1
    given = [torch.randn(batch, H, length, A, requires_grad=True) for _ in range(3)]
    dot = attnkit.attentions.build("scaled_dot_product", head_dim=A, num_heads=H)
    if kind == "additive":
        additive = attnkit.attentions.build("additive", head_dim=A, num_heads=H)
        others = {name: lambda name=name: additive(*given, backend=name) for name in ("additive_compiled", "additive_eager")}
        return {"sdpa": lambda: dot(*given, backend="sdpa"), **others}
    causal = Mask(causal=True)
    full = {"causal": lambda: dot(*given, mask=causal, backend="sdpa")}
    if kind == "window":
        return {**full, f"window {WINDOW}": lambda: dot(*given, mask=Mask(causal=True, window=WINDOW))}
    t = torch.arange(length)[None]
    names = ("alibi", "relative", "kerple", "fire")
    places = {name: attnkit.positions.build(name, head_dim=A, num_heads=H, bidirectional=False) for name in names}
    biases = {name: LazyBias(place.bias, t, t, place.by_offset) for name, place in places.items()}
    return {**full, **{name: lambda bias=bias: dot(*given, mask=causal, attn_bias=bias) for name, bias in biases.items()}}


def main() -> None:
    """Print a line for each length and contestant: median milliseconds, and the median ratio to the first."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=LENGTHS)
    parser.add_argument("--lengths", type=int, nargs="+")
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for length in chosen.lengths or LENGTHS[chosen.kind]:
        calls = contestants(chosen.kind, length)
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(chosen.rounds + 1):  # the first one warms up
            for name, call in calls.items():
                began = time.perf_counter()
                call().sum().backward()
                if turn:
                    times[name].append(time.perf_counter() - began)
        first = next(iter(times.values()))
        for name, found in times.items():
            ratio = statistics.median(own / base for own, base in zip(found, first, strict=True))
            print(f"T = {length:<6} {name:<18} {statistics.median(found) * 1e3:>9.1f} ms {ratio:>7.2f} x", flush=True)


if __name__ == "__main__":
    main()
