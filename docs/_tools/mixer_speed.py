"""Measure how the time of training, its memory and the size of the state depend on the length, for each mixer with a constant state.

    OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py docs/results/mixers.json
    python docs/_tools/mixer_speed.py docs/results/mixers.json --page > docs/results/mixers.md

Every measurement has the same number of tokens, in rows of T: a forward and a backward pass of one mixer, without the layer around it.
Everything takes its turn at one length before anything is measured again; the least processor time counts. Beside the mixers stand their
recurrences alone, and those of other hands on the same numbers: functions of transformers, and the forms that papers print. The file is
written after each length, and lengths that it has are not measured again.
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
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.files import atomic
from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.recurrence.delta_rule import delta_rule
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.mixer.recurrence.scan import scan
from attnkit.profile.bench import peak_memory
from attnkit.registry import mixers
from attnkit.state import State

FLAT = 1.3
"""The most that a time per token may differ between two lengths, as a factor, to be called flat."""
STEPS = 2048
"""The most tokens of a row for which the memory of mixers with a step for each is measured: torch's profiler keeps 100 to 250 kB a step."""
CELLS = ("rnn", "lstm", "gru")
STEPPING = (*CELLS, "selective_state_space")
ONE_ROW, WIDE = ", one row", ", four times as wide"
SEQUENTIAL = ": it computes one token after another by nature, and with a constant number of tokens, longer rows are fewer"
CALLS = ": in a single row a step has 2,048 numbers at this width, and nearly half of the time goes into calling operations, not into them"
REASONS = {**dict.fromkeys(CELLS, SEQUENTIAL), "selective_state_space": CALLS}


@dataclass(frozen=True)
class Case:
    """What is measured.

    Attributes:
        run: A forward and a backward pass.
        tokens: How many it reads.
        state_bytes: Size of the state after a row; None where there is no state.
        has_peak: Whether the peak of memory can be measured.
    """

    run: Callable[[], None]
    tokens: int
    state_bytes: int | None
    has_peak: bool


def main() -> None:
    """Measure and write the file, or print the page of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="JSON of the measurements")
    parser.add_argument("--tokens", type=int, default=32768, help="tokens of a measurement, a multiple of every length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--width", type=int, default=64, help="d_model; heads have 32 channels")
    parser.add_argument("--rounds", type=int, default=2, help="the fastest is reported")
    parser.add_argument("--names", nargs="+", help="what to measure (default: everything)")
    parser.add_argument("--page", action="store_true", help="print the page of the file, and measure nothing")
    given = parser.parse_args()
    if given.page:
        print(page(json.loads(given.file.read_text(encoding="utf-8"))), end="")
        return
    torch.set_num_threads(1)
    _keep_freed_memory()
    facts = {"cores": os.cpu_count(), "torch": torch.__version__, "tokens": given.tokens, "width": given.width, "rounds": given.rounds}
    found = json.loads(given.file.read_text(encoding="utf-8")) if given.file.exists() else {**facts, "lengths": {}}
    if {**found, **facts} != found:
        parser.error(f"{given.file} has other settings: remove it")
    what = {name: make for name, make in _measured(given.width) if given.names is None or name in given.names}
    for length in given.lengths:
        if str(length) not in found["lengths"]:
            rows = given.tokens // length
            cases = {name: make(rows, length) for name, make in what.items() if rows > 1 or not name.endswith(ONE_ROW)}
            found["lengths"][str(length)] = _measure(cases, given.rounds)
            with atomic(given.file) as file:
                file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(length, file=sys.stderr)


def _keep_freed_memory() -> None:
    """Let glibc keep what is freed: otherwise each tensor above 32 MiB is made of new pages, which the kernel has to clear."""
    if platform.libc_ver()[0] == "glibc":
        for option, value in ((-4, 0), (-1, 2**31 - 1)):  # M_MMAP_MAX, M_TRIM_THRESHOLD
            ctypes.CDLL(None).mallopt(option, value)
        torch.ones(2**29)  # 2 GiB, made of pages once


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


def page(found: dict[str, Any]) -> str:
    """Return the page of measurements."""
    lengths = dict(sorted(found["lengths"].items(), key=lambda item: int(item[0])))
    names = [*next(iter(lengths.values()))["rows"]]
    results = {name: [_row(part["rows"], name) for part in lengths.values()] for name in names}
    functions = {name: row for name, row in results.items() if ": " in name}
    single = {name: row for name, row in results.items() if name.endswith(ONE_ROW)}
    ours = {name: row for name, row in results.items() if name not in functions and name not in single}
    constant = [name for name, row in ours.items() if len({part["state_bytes"] for part in row}) == 1 and not name.endswith(WIDE)]
    flat = [name for name in constant if _ratio(ours[name]) <= FLAT]
    loads = [part["load"] for part in lengths.values()]
    lines = [
        "# Mixers by length",
        "",
        f"A forward and a backward pass of one mixer (`d_model` {found['width']}, heads of 32, fp32) over {found['tokens']} tokens in",
        f"rows of T, in microseconds of processor time per token on one thread: the least of {found['rounds']} rounds in which all take",
        f'turns (torch {found["torch"]}). The ratio is that of the slowest length to the fastest; "flat" is at most {FLAT}. Peaks are of',
        f"memory that a pass allocates. The machine has {found['cores']} cores; its load average was {min(loads)} to {max(loads)}. All at",
        "one length is measured in one process.",
        "",
        f"Of {len(constant)} mixers with a state of constant size, {len(flat)} are flat: {_names(flat)}. Not flat are:",
        "",
        *[f"- `{name}`, {_ratio(ours[name]):.2f}{REASONS.get(name, '')}" for name in constant if name not in flat],
        *[f"- (`{name}`: {_ratio(row):.2f})" for name, row in ours.items() if name.endswith(WIDE)],
        "",
        *_table("mixer", ours, [*lengths]),
        "",
        "`convolution, long` has a kernel as long as the sequence, by fast Fourier transforms: its time grows with log T, and it remembers",
        "all tokens. Where there is no peak of memory, torch's profiler would have to keep some 200 kB for each step.",
        "",
        "Tensors above 32 MiB are made of new pages whenever they are allocated, which costs `state_space` up to half of its time at any",
        "length. The measurement tells glibc to keep freed memory, as",
        "`GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296` does for a training on a CPU.",
        "",
        "## Cells in one row",
        "",
        "With one row of each length, `rnn`, `gru` and `lstm` do the same work in each step, and the time of a step",
        "does not grow: they too are linear in T. Short rows also pay for what is done once.",
        "",
        *_table("cell", single, [*lengths]),
        "",
        "## The recurrences alone, and those of other hands",
        "",
        "The same queries, keys and values. Those of transformers are its plain torch forms, which cut time into chunks of 64 tokens, as",
        "`paper` does (ours into 32): that is the form that the paper of Mamba-2 prints, with segment sums",
        "(https://arxiv.org/abs/2405.21060, listing 1). `logarithms` computes a decaying sum by cumulative sums of logarithms (Heinsen",
        "2023, https://arxiv.org/abs/2311.06281): it subtracts large numbers where ours multiplies.",
        "",
        *_table("recurrence", functions, [*lengths]),
        "",
        *_against(functions),
        "",
        "A sum of vectors takes one step after another where a step is large (rows of 512), otherwise it combines pairs of steps, which is",
        "more work in fewer calls. For the recurrences of `selective_state_space` and `rwkv`, transformers loops over the tokens unless it",
        "is compiled; these are not measured.",
        "",
        "```bash",
        "OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py docs/results/mixers.json",
        "python docs/_tools/mixer_speed.py docs/results/mixers.json --page > docs/results/mixers.md",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _against(functions: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return a line for each recurrence that others have too: how much faster ours is, over the lengths."""
    lines = []
    for kind in dict.fromkeys(name.split(": ")[0] for name in functions):
        (_, ours), *others = [row for row in functions.items() if row[0].startswith(f"{kind}: ")]
        if others:
            times = [[part["microseconds"] for part in row] for row in [ours, *(row for _, row in others)]]
            factors = [min(theirs) / own for own, *theirs in zip(*times, strict=True)]
            lines.append(f"- {kind}: the fastest other form takes {min(factors):.1f} to {max(factors):.1f} times as long as attnkit's.")
    return lines


def _row(rows: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return a row; where the length is the number of tokens, a mixer has one row in any case."""
    return rows[name] if name in rows else rows[name.removesuffix(ONE_ROW)]


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _table(title: str, rows: dict[str, list[dict[str, Any]]], lengths: list[str]) -> list[str]:
    def cells(row: list[dict[str, Any]], key: str, form: str) -> list[str]:
        return ["-" if part[key] is None else format(part[key], form) for part in row]

    heads = [f"T = {n}" for n in lengths]
    lines = [
        f"| {title} | {' | '.join(heads)} | ratio | MiB, {heads[0]} | MiB, {heads[-1]} | bytes of state |",
        "|---|" + "---:|" * (len(lengths) + 4),
    ]
    for name, row in rows.items():
        peaks, states = cells(row, "mib", ".0f"), cells(row, "state_bytes", "d")
        state = states[0] if len(set(states)) == 1 else f"{states[0]} to {states[-1]}"
        parts = [*cells(row, "microseconds", ".2f"), f"{_ratio(row):.2f}", peaks[0], peaks[-1], state]
        lines.append(f"| {name} | {' | '.join(parts)} |")
    return lines


def _ratio(row: list[dict[str, Any]]) -> float:
    times = [part["microseconds"] for part in row]
    return float(max(times) / min(times))


def _measured(width: int) -> Iterator[tuple[str, Callable[[int, int], Case]]]:
    for name in mixers.names():
        kind = mixers.get(name)
        if "causal" in kind.directions and kind.growth == "constant":
            yield name, lambda rows, length, name=name: _mixer(name, width, rows, length)
    yield "convolution, long", lambda rows, length: _mixer({"name": "convolution", "kernel_size": None}, width, rows, length)
    wide = "selective_state_space"
    yield wide + WIDE, lambda rows, length: _mixer(wide, 4 * width, rows, length)
    for name in CELLS:
        yield name + ONE_ROW, lambda rows, length, name=name: _mixer(name, width, 1, length)
    for name, function in _recurrences():
        yield name, lambda rows, length, function=function: _function(function, width, rows, length)


def _mixer(spec: Any, width: int, rows: int, length: int) -> Case:
    torch.manual_seed(0)
    mixer = mixers.build(spec, d_model=width, num_heads=width // 32, direction="causal")
    x = torch.randn(rows, length, width, requires_grad=True)
    tokens = Tokens(mask=Mask(causal=True))
    with torch.no_grad():
        _, state = mixer(x[:1], tokens)

    def run() -> None:
        y, _ = mixer(x, tokens)
        y.backward(torch.ones_like(y))

    return Case(run, rows * length, _bytes(state), has_peak=spec not in STEPPING or length <= STEPS)


def _function(function: Callable[..., Tensor], width: int, rows: int, length: int) -> Case:
    torch.manual_seed(0)
    heads = width // 32
    query, key, value = (torch.randn(rows, length, heads, 32, requires_grad=True) for _ in range(3))
    decay, beta = (torch.rand(rows, length, heads, requires_grad=True) for _ in range(2))

    def run() -> None:
        y = function(query, F.normalize(key, dim=-1), value, decay, beta)
        y.backward(torch.ones_like(y))

    return Case(run, rows * length, None, has_peak=True)


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

    def printed(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return segment_sums(v * decay[..., None], -decay, k, q)

    yield "decay by head: attnkit", scalar
    yield "decay by head: transformers, mamba2", mamba2
    yield "decay by head: paper", printed
    yield "gated delta: attnkit", gated_delta
    yield "gated delta: transformers, qwen3_next", qwen3_next

    def numbers(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return scan((-decay[..., None] * k.sigmoid()).exp(), v, torch.zeros_like(v[:, 0]), dim=1)

    def logarithms(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
        return logarithmic_scan(-decay[..., None] * k.sigmoid(), v)

    yield "decay by channel: attnkit", channels
    yield "sum of vectors: attnkit", numbers
    yield "sum of vectors: logarithms", logarithms


def segment_sums(x: Tensor, log_decay: Tensor, write: Tensor, read: Tensor, size: int = 64) -> Tensor:
    r"""Return $y_t = \sum_{s \le t} \exp(\sum_{l = s + 1}^{t} g_l) (c_t \cdot b_s) x_s$ in blocks, as listing 1 of Mamba-2 does."""
    x, write, read = (part.unflatten(1, (-1, size)) for part in (x, write, read))  # [B, chunks, C, H, ...]
    log_decay = log_decay.unflatten(1, (-1, size)).permute(0, 3, 1, 2)  # [B, H, chunks, C]
    sums = log_decay.cumsum(-1)
    inside = torch.einsum("bclhn,bcshn,bhcls,bcshp->bclhp", read, write, _segments(log_decay).exp(), x)
    states = torch.einsum("bclhn,bhcl,bclhp->bchpn", write, (sums[..., -1:] - sums).exp(), x)
    states = torch.cat([torch.zeros_like(states[:, :1]), states], 1)
    states = torch.einsum("bhzc,bchpn->bzhpn", _segments(F.pad(sums[..., -1], (1, 0))).exp(), states)[:, :-1]
    return (inside + torch.einsum("bclhn,bchpn,bhcl->bclhp", read, states, sums.exp())).flatten(1, 2)


def logarithmic_scan(log_decay: Tensor, x: Tensor) -> Tensor:
    r"""Return $h_t = e^{g_t} h_{t-1} + x_t$ over the axis 1 as Heinsen 2023 does: positive and negative parts apart."""
    decayed = log_decay.cumsum(1)
    parts = torch.stack([x, -x]).clamp(min=1e-30).log() - decayed
    sums = (decayed + parts.logcumsumexp(2)).exp()
    return sums[0] - sums[1]


def _segments(x: Tensor) -> Tensor:
    size = x.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool).tril()
    return x[..., None].expand(*x.shape, size).masked_fill(~below.tril(-1), 0).cumsum(-2).masked_fill(~below, float("-inf"))


def _bytes(state: State | None) -> int:
    values = [] if state is None else vars(state).values()
    return sum(x.numel() * x.element_size() for x in values if isinstance(x, Tensor))


if __name__ == "__main__":
    main()
