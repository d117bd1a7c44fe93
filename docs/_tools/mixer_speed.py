"""Measure how the time of training, its memory and the size of the state depend on the length, for each mixer with a constant state.

    OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py docs/results/mixers.json
    python docs/_tools/mixer_speed.py docs/results/mixers.json --page > docs/results/mixers.md

Every measurement has the same number of tokens, in rows of T: a forward and a backward pass of one mixer, without the layer around it.
Mixers that take a step for each token are also measured at a constant number of rows. At one length, everything is measured once before
anything is measured again, and the least processor time counts. Besides the mixers, their recurrences are measured alone, and other
implementations of these on the same numbers (`mixer_forms.py`). The file is written after each length; lengths that it has are not measured
again, except with `--more`, which keeps the least time.
"""

import argparse
import ctypes
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from mixer_forms import (
    by_exponentials,
    cumulative_sums,
    lightning,
    logarithmic_scan,
    segment_sums,
    stepping_means,
    stepping_selective_scan,
    stepping_sum,
)
from mixer_page import AT_ROWS, CELLS, HEAD, ROWS, STEPPING, STEPS, WIDE, page
from torch import Tensor, nn

from attnkit.files import atomic
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.recurrence.delta_rule import delta_rule
from attnkit.mixer.recurrence.long_convolution import ImplicitKernel, LongConvolution
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.scan import scan
from attnkit.mixer.recurrence.selective_scan import selective_scan
from attnkit.mixer.recurrence.short_convolution import ShortConvolution
from attnkit.profile.bench import peak_memory
from attnkit.registry import mixers
from attnkit.state import State


@dataclass(frozen=True)
class Case:
    """One measurement.

    Attributes:
        run: A forward and a backward pass.
        tokens: How many it reads.
        state_bytes: Size of the state after a row; None where there is no state.
        has_peak: Whether the peak memory can be measured.
    """

    run: Callable[[], None]
    tokens: int
    state_bytes: int | None
    has_peak: bool


def main() -> None:
    """Measure and write the file, or print its page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON of the measurements")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens of a measurement, a multiple of every length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--width", type=int, default=64, help="d_model; heads have 32 channels")
    parser.add_argument("--rounds", type=int, default=2, help="the fastest is reported")
    parser.add_argument("--names", nargs="+", help="what to measure (default: everything)")
    parser.add_argument("--more", action="store_true", help="measure again, and keep the least time of all rounds")
    parser.add_argument("--page", action="store_true", help="print the page with the measurements of the file, and measure nothing")
    options = parser.parse_args()
    if options.page:
        print(page(json.loads(options.file.read_text(encoding="utf-8"))), end="")
        return
    torch.set_num_threads(1)
    _keep_freed_memory()
    facts = {"cores": os.cpu_count(), "torch": torch.__version__, "tokens": options.tokens, "width": options.width}
    fresh: dict[str, Any] = {**facts, "rounds": options.rounds, "lengths": {}}
    found = json.loads(options.file.read_text(encoding="utf-8")) if options.file.exists() else fresh
    if {**found, **facts} != found or (not options.more and found["rounds"] != options.rounds):
        parser.error(f"{options.file} has other settings: remove it")
    selected = {name: make for name, make in _measured(options.width) if options.names is None or name in options.names}
    for length in options.lengths:
        if options.more or str(length) not in found["lengths"]:
            rows = options.tokens // length
            cases = {name: make(rows, length) for name, make in selected.items() if length <= STEPS or not name.endswith(": steps")}
            fresh["lengths"][str(length)] = _measure(cases, options.rounds)
            if not options.more:
                found["lengths"] |= fresh["lengths"]
                _write(found, options.file)
            print(length, file=sys.stderr)
    if options.more:
        _write(least(found, fresh), options.file)


def _write(found: dict[str, Any], path: Path) -> None:
    with atomic(path) as file:
        file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def least(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Merge two measurements with the same lengths and rows, keeping the least time of each row."""
    lengths = {}
    for length, part in first["lengths"].items():
        other = second["lengths"][length]
        times = {name: min(row["microseconds"], other["rows"][name]["microseconds"]) for name, row in part["rows"].items()}
        rows = {name: {**row, "microseconds": times[name]} for name, row in part["rows"].items()}
        lengths[length] = {"load": max(part["load"], other["load"]), "rows": rows}
    return {**first, "rounds": first["rounds"] + second["rounds"], "lengths": lengths}


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory: otherwise each tensor above 32 MiB gets new pages, which the kernel must clear."""
    if platform.libc_ver()[0] == "glibc":
        for option, value in ((-4, 0), (-1, -1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD: never
            ctypes.CDLL(None).mallopt(option, value)
        torch.ones(2**30)  # 4 GiB, whose pages are allocated once


def _measure(cases: dict[str, Case], rounds: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.process_time()
            case.run()
            times[name].append(time.process_time() - start)
    rows = {
        name: {
            "microseconds": round(min(times[name]) / case.tokens * 1e6, 2),
            "mib": round(peak_memory(case.run, torch.device("cpu")) / 2**20, 1) if case.has_peak else None,
            "state_bytes": case.state_bytes,
        }
        for name, case in cases.items()
    }
    return {"load": round(os.getloadavg()[2], 1), "rows": rows}


def _measured(width: int) -> Iterator[tuple[str, Callable[[int, int], Case]]]:
    for name in mixers.names():
        kind = mixers.get(name)
        if "causal" in kind.directions and kind.growth == "constant":
            yield name, partial(_mixer, name, width)
    yield "convolution, long", partial(_mixer, {"name": "convolution", "kernel_size": None}, width)
    yield f"selective_state_space{WIDE}", partial(_mixer, "selective_state_space", 4 * width)
    for name in STEPPING:
        yield name + AT_ROWS, partial(_at_rows, name, width)
    for functions, inputs in ((_of_heads(), _heads), (_of_channels(width), _channels)):
        for name, function in functions:
            yield name, partial(_function, name, function, inputs, width)


def _mixer(spec: Any, width: int, rows: int, length: int, *, passes: int = 1) -> Case:
    torch.manual_seed(0)
    mixer = mixers.build(spec, d_model=width, num_heads=width // HEAD, direction="causal")
    x = torch.randn(rows, length, width, requires_grad=True)
    tokens = Tokens(mask=Mask(causal=True))
    with torch.no_grad():
        _, state = mixer(x[:1], tokens)

    gradient = torch.randn(rows, length, width)  # a constant's gradient vanishes behind a norm, and denormal numbers are slow

    def run() -> None:
        for _ in range(passes):
            y, _ = mixer(x, tokens)
            y.backward(gradient)

    return Case(run, passes * rows * length, _bytes(state), has_peak=passes == 1 and (spec not in STEPPING or length <= STEPS))


def _at_rows(name: str, width: int, rows: int, length: int) -> Case:
    return _mixer(name, width, ROWS, length, passes=max(1, rows // ROWS))


def _function(name: str, function: Callable[..., Tensor], draw: Callable[..., list[Tensor]], width: int, rows: int, length: int) -> Case:
    inputs = draw(width, rows, length)

    def run() -> None:
        y = function(*inputs)
        torch.autograd.backward(y, torch.ones_like(y))

    is_stepping = name.startswith(CELLS) or name.endswith(": steps") or (name.startswith("selective") and length > STEPS)
    return Case(run, rows * length, None, has_peak=not is_stepping)


def _heads(width: int, rows: int, length: int) -> list[Tensor]:
    """Return queries, keys of length one and values [B, T, H, N], and decays and betas [B, T, H]."""
    torch.manual_seed(0)
    heads = width // HEAD
    query, key, value = (torch.randn(rows, length, heads, HEAD) for _ in range(3))
    parts = query, F.normalize(key, dim=-1), value, *(torch.rand(rows, length, heads) for _ in range(2))
    return [x.requires_grad_() for x in parts]


def _channels(width: int, rows: int, length: int) -> list[Tensor]:
    """Return inputs and gates [B, T, D], gates in (0, 1), and two vectors of state [B, T, 16]."""
    torch.manual_seed(0)
    parts = torch.randn(rows, length, width), torch.rand(rows, length, width), *(torch.randn(rows, length, 16) for _ in range(2))
    return [x.requires_grad_() for x in parts]


def _of_heads() -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Yield functions of queries, keys, values, decays and betas, ours first."""
    from transformers.models.mamba2.modeling_mamba2 import mamba2_chunk_scan
    from transformers.models.qwen3_next.modeling_qwen3_next import torch_chunk_gated_delta_rule

    def turned(*tensors: Tensor) -> list[Tensor]:
        return [x.transpose(1, 2) for x in tensors]

    def rates(decay: Tensor) -> Tensor:
        return torch.linspace(0.02, 0.2, decay.shape[2])

    yield "sum: attnkit", lambda q, k, v, d, b: outer_product(*turned(q, k, v, torch.zeros(1, v.shape[1], 1, 1)))[0].transpose(1, 2)
    yield "sum: cumulative sums", lambda q, k, v, d, b: cumulative_sums(q, k, v)
    yield (
        "fixed decay by head: attnkit",
        lambda q, k, v, d, b: outer_product(*turned(q, k, v, -rates(d)[None, None, :, None].expand(1, v.shape[1], -1, 1)))[0],
    )
    yield "fixed decay by head: lightning", lambda q, k, v, d, b: lightning(q, k, v, rates(d))
    yield "decay by head: attnkit", lambda q, k, v, d, b: outer_product(*turned(q, k, v * d[..., None], -d[..., None]))[0]
    yield (
        "decay by head: transformers, mamba2",
        lambda q, k, v, d, b: mamba2_chunk_scan(v, d, -torch.ones(d.shape[2]), k, q, chunk_size=64),
    )
    yield "decay by head: paper", lambda q, k, v, d, b: segment_sums(v * d[..., None], -d, k, q)
    yield "gated delta: attnkit", lambda q, k, v, d, b: delta_rule(*turned(q, k, v, b[..., None], -d[..., None]))[0]
    yield "gated delta: transformers, qwen3_next", lambda q, k, v, d, b: torch_chunk_gated_delta_rule(q, k, v, g=-d, beta=b)[0]
    yield "decay by channel: attnkit", lambda q, k, v, d, b: outer_product(*turned(q, k, v, -d[..., None] * v.sigmoid()))[0]
    yield "decay by channel: exponentials", lambda q, k, v, d, b: by_exponentials(q, k, v, -d[..., None] * v.sigmoid())


def _of_channels(width: int) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    """Yield functions of inputs, gates and two vectors of state, ours first."""
    torch.manual_seed(0)
    rate, taps = torch.rand(width, 16).requires_grad_(), nn.Conv1d(width, width, 3, groups=width, padding=2)
    short = ShortConvolution(channels=width, kernel_size=3, bias=True, activation="identity")
    long, kernel, rwkv = LongConvolution(channels=width, bias=False, activation="identity"), ImplicitKernel(channels=width), _rwkv(width)
    yield "sum of vectors: attnkit", lambda x, g, b, c: scan(g, x, torch.zeros_like(x[:, 0]), dim=1)
    yield "sum of vectors: logarithms", lambda x, g, b, c: logarithmic_scan(g.log(), x)
    yield "sum of vectors: steps", lambda x, g, b, c: stepping_sum(g.log(), x)
    yield (
        "selective scan: attnkit",
        lambda x, g, b, c: selective_scan(g, rate, x, b, c, None, x.new_zeros(len(x), *rate.shape))[0],
    )
    yield "selective scan: steps", lambda x, g, b, c: stepping_selective_scan(g, rate, x, b, c)
    yield "rwkv: attnkit", lambda x, g, b, c: rwkv(x, Tokens())[0]
    yield "rwkv: steps", lambda x, g, b, c: _stepping_rwkv(rwkv, x)
    yield "short convolution: attnkit", lambda x, g, b, c: short(x, Tokens())[0]
    yield "short convolution: torch, Conv1d", lambda x, g, b, c: taps(x.mT)[..., :-2].mT
    yield "long convolution: attnkit", lambda x, g, b, c: long(x, Tokens())[0]
    yield "long convolution: rfft", lambda x, g, b, c: _fourier(x, kernel(x.shape[1]))
    for name, kind in (("rnn", nn.RNN), ("lstm", nn.LSTM), ("gru", nn.GRU)):
        ours, theirs = mixers.build(name, d_model=width, direction="causal"), kind(width, width, batch_first=True)
        yield f"{name}: attnkit", lambda x, g, b, c, ours=ours: ours(x, Tokens())[0]
        yield f"{name}: torch", lambda x, g, b, c, theirs=theirs: theirs(x)[0]


def _rwkv(width: int) -> Any:
    return mixers.build("rwkv", d_model=width, direction="causal")


def _stepping_rwkv(mixer: Any, x: Tensor) -> Tensor:
    """Return the outputs of the mixer `rwkv`, with its recurrence computed token by token."""
    before = F.pad(x, (0, 0, 1, -1))
    parts = zip((mixer.receptance, mixer.key, mixer.value), (mixer.mix_receptance, mixer.mix_key, mixer.mix_value), strict=True)
    receptance, key, value = (projection(before.lerp(x, share)) for projection, share in parts)
    return mixer.output(receptance.sigmoid() * stepping_means(mixer.log_rate.exp(), mixer.bonus, key, value))  # type: ignore[no-any-return]


def _fourier(x: Tensor, kernel: Tensor) -> Tensor:
    size = 2 * x.shape[1]
    y: Tensor = torch.fft.irfft(torch.fft.rfft(x, n=size, dim=1) * torch.fft.rfft(kernel, n=size, dim=0), n=size, dim=1)
    return y[:, : x.shape[1]]


def _bytes(state: State | None) -> int:
    values = [] if state is None else vars(state).values()
    return sum(x.numel() * x.element_size() for x in values if isinstance(x, Tensor))


if __name__ == "__main__":
    main()
