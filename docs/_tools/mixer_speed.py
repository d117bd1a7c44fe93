"""Measure how the time of training and the size of the state depend on the length, for each mixer with a causal direction.

    OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py > docs/results/mixer_speed.csv

Every measurement has the same number of tokens, in rows of T: a forward and a backward pass of one mixer, without the layer around it.
Where transformers has a pure torch form of the same recurrence, it is measured on the same numbers in the same run.
"""

import argparse
import csv
import sys
import time
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.recurrence.delta_rule import delta_rule
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.scan import scan
from attnkit.registry import mixers
from attnkit.state import State


def main() -> None:
    """Print a table of times per token, in microseconds, and of the bytes of the state."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=32768, help="tokens of a measurement, a multiple of every length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--width", type=int, default=64, help="d_model; heads have 32 channels")
    parser.add_argument("--repeats", type=int, default=3, help="the fastest is reported")
    parser.add_argument("--names", nargs="+", help="what to measure (default: everything)")
    given = parser.parse_args()
    table = csv.writer(sys.stdout)
    table.writerow(
        ["what", *(f"us/token at {n}" for n in given.lengths), "longest/shortest", *(f"state bytes at {n}" for n in given.lengths)]
    )
    for name, make in _measured(given.width):
        if given.names and name not in given.names:
            continue
        times, sizes = [], []
        for length in given.lengths:
            run, size = make(given.tokens // length, length)
            times.append(min(_seconds(run) for _ in range(1 + given.repeats)) / given.tokens * 1e6)
            sizes.append(size)
        table.writerow([name, *(f"{t:.2f}" for t in times), f"{times[-1] / times[0]:.2f}", *sizes])
        sys.stdout.flush()


Case = tuple[Callable[[], None], int | str]


def _measured(width: int) -> Iterator[tuple[str, Callable[[int, int], Case]]]:
    for name in mixers.names():
        if name != "none" and "causal" in mixers.get(name).directions:
            yield name, lambda rows, length, name=name: _mixer(name, width, rows, length)
    for name, function in _recurrences():
        yield name, lambda rows, length, function=function: _function(function, width, rows, length)


def _mixer(name: str, width: int, rows: int, length: int) -> Case:
    torch.manual_seed(0)
    mixer = mixers.build(name, d_model=width, num_heads=width // 32, direction="causal")
    x = torch.randn(rows, length, width, requires_grad=True)
    tokens = Tokens(mask=Mask(causal=True))
    with torch.no_grad():
        _, state = mixer(x[:1], tokens)

    def run() -> None:
        y, _ = mixer(x, tokens)
        y.backward(torch.ones_like(y))

    return run, _bytes(state)


def _function(function: Callable[..., Tensor], width: int, rows: int, length: int) -> Case:
    torch.manual_seed(0)
    heads = width // 32
    query, key, value = (torch.randn(rows, length, heads, 32, requires_grad=True) for _ in range(3))
    decay, beta = (torch.rand(rows, length, heads, requires_grad=True) for _ in range(2))

    def run() -> None:
        y = function(query, F.normalize(key, dim=-1), value, decay, beta)
        y.backward(torch.ones_like(y))

    return run, ""


def _recurrences() -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Yield recurrences of queries, keys and values [B, T, H, N], and of decays and betas [B, T, H]: ours, and that of transformers."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    def ours(*tensors: Tensor) -> list[Tensor]:
        return [x.transpose(1, 2) for x in tensors]

    def scalar(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return outer_product(*ours(q, k, v * decay[..., None], -decay[..., None]))[0]

    def mamba2(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return mamba2_chunk_scan(v, decay, -torch.ones(decay.shape[2]), k, q, chunk_size=64)

    def gated_delta(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return delta_rule(*ours(q, k, v, beta[..., None], -decay[..., None]))[0]

    def qwen3_next(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return torch_chunk_gated_delta_rule(q, k, v, g=-decay, beta=beta)[0]

    def channels(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return outer_product(*ours(q, k, v, -decay[..., None] * v.sigmoid()))[0]

    def elements(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return scan(q.sigmoid(), v, torch.zeros_like(v[:, 0]), dim=1)

    yield "recurrence: decay by head (attnkit)", scalar
    yield "recurrence: decay by head (transformers, mamba2)", mamba2
    yield "recurrence: gated delta (attnkit)", gated_delta
    yield "recurrence: gated delta (transformers, qwen3_next)", qwen3_next
    yield "recurrence: decay by channel (attnkit)", channels
    yield "recurrence: each number by itself (attnkit)", elements


def _seconds(run: Callable[[], None]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _bytes(state: State | None) -> int:
    values = [] if state is None else vars(state).values()
    return sum(x.numel() * x.element_size() for x in values if isinstance(x, Tensor))


if __name__ == "__main__":
    main()
