"""Measure how the time of training, its memory and the size of the state depend on the length, for each mixer with a constant state.

    OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py > docs/results/mixers.json
    python docs/_tools/mixer_speed.py --page docs/results/mixers.json > docs/results/mixers.md

Every measurement has the same number of tokens, in rows of T: a forward and a backward pass of one mixer, without the layer around it.
Everything takes its turn at one length before anything is measured again; the least processor time counts. Beside the mixers stand their
recurrences alone, and those of other hands on the same numbers: functions of transformers, and the forms that papers print.
"""

import argparse
import json
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.mixer.recurrence.delta_rule import delta_rule
from attnkit.mixer.recurrence.outer_product import outer_product
from attnkit.profile.bench import peak_memory
from attnkit.registry import mixers
from attnkit.state import State

FLAT = 1.3
"""The most that a time per token may differ between two lengths, as a factor, to be called flat."""


def main() -> None:
    """Print the measurements as JSON, or the page of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=32768, help="tokens of a measurement, a multiple of every length")
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192, 32768])
    parser.add_argument("--width", type=int, default=64, help="d_model; heads have 32 channels")
    parser.add_argument("--rounds", type=int, default=3, help="the fastest is reported")
    parser.add_argument("--names", nargs="+", help="what to measure (default: everything)")
    parser.add_argument("--page", type=Path, metavar="FILE", help="print the page of these measurements, and measure nothing")
    given = parser.parse_args()
    if given.page is not None:
        print(page(json.loads(given.page.read_text(encoding="utf-8"))), end="")
        return
    torch.set_num_threads(1)
    what = {name: make for name, make in _measured(given.width) if given.names is None or name in given.names}
    found: dict[str, dict[str, Any]] = {name: {"microseconds": [], "mib": [], "state_bytes": []} for name in what}
    for length in given.lengths:
        cases = {name: make(given.tokens // length, length) for name, make in what.items()}
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(given.rounds):
            for name, (run, _) in cases.items():
                times[name].append(_seconds(run))
        for name, (run, size) in cases.items():
            found[name]["microseconds"].append(round(min(times[name]) / given.tokens * 1e6, 2))
            found[name]["mib"].append(round(peak_memory(run, torch.device("cpu")) / 2**20, 1))
            found[name]["state_bytes"].append(size)
        print(length, file=sys.stderr)
    facts = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__, "tokens": given.tokens,
             "width": given.width, "rounds": given.rounds, "lengths": given.lengths}  # fmt: skip
    print(json.dumps({**facts, "results": found}, indent=1))


def page(found: dict[str, Any]) -> str:
    """Return the page of measurements."""
    lengths, results = found["lengths"], found["results"]
    ours = {name: row for name, row in results.items() if ": " not in name}
    functions = {name: row for name, row in results.items() if ": " in name}
    flat = [name for name, row in ours.items() if _ratio(row) <= FLAT]
    grows = [name for name, row in ours.items() if len(set(row["state_bytes"])) > 1]
    state = f"grows in {_names(grows)}" if grows else "of none grows with the length"
    lines = [
        "# Mixers by length",
        "",
        f"A forward and a backward pass of one mixer (`d_model` {found['width']}, heads of 32, fp32) over {found['tokens']} tokens",
        "in rows of T, in microseconds of processor time per token on one thread: the least of "
        f"{found['rounds']} rounds in which all take turns",
        f'(torch {found["torch"]}). The ratio is that of the slowest length to the fastest; "flat" is at most {FLAT}. Peaks are of memory',
        "that a pass allocates.",
        "",
        f"Flat are {len(flat)} of {len(ours)}: {_names(flat)}. The state {state}.",
        "`rnn`, `lstm` and `gru` compute one token after another by nature: with a constant number of tokens, longer rows are fewer, and",
        "each step has less to do at once.",
        "",
        *_table("mixer", ours, lengths),
        "",
        "## The recurrences alone, and those of other hands",
        "",
        "The same queries, keys and values. Those of transformers are its plain torch forms; `paper` is the form that the paper of",
        "Mamba-2 prints (segment sums, https://arxiv.org/abs/2405.21060, listing 1). All cut time into 64 tokens, ours into 32.",
        "",
        *_table("recurrence", functions, lengths),
        "",
        "```bash",
        "OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py > docs/results/mixers.json",
        "python docs/_tools/mixer_speed.py --page docs/results/mixers.json > docs/results/mixers.md",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _table(title: str, rows: dict[str, dict[str, Any]], lengths: list[int]) -> list[str]:
    def states(row: dict[str, Any]) -> str:
        sizes = [size for size in row["state_bytes"] if size is not None]
        return "-" if not sizes else f"{sizes[0]}" if len(set(sizes)) == 1 else f"{sizes[0]} to {sizes[-1]}"

    ends = f"MiB, T = {lengths[0]} | MiB, T = {lengths[-1]}"
    lines = [
        f"| {title} | {' | '.join(f'T = {n}' for n in lengths)} | ratio | {ends} | bytes of state |",
        "|---|" + "---:|" * (len(lengths) + 4),
    ]
    for name, row in rows.items():
        cells = [f"{t:.2f}" for t in row["microseconds"]]
        cells += [f"{_ratio(row):.2f}", f"{row['mib'][0]:.0f}", f"{row['mib'][-1]:.0f}", states(row)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _ratio(row: dict[str, Any]) -> float:
    return float(max(row["microseconds"]) / min(row["microseconds"]))


Case = tuple[Callable[[], None], int | None]


def _measured(width: int) -> Iterator[tuple[str, Callable[[int, int], Case]]]:
    for name in mixers.names():
        kind = mixers.get(name)
        if "causal" in kind.directions and kind.growth == "constant":
            yield name, lambda rows, length, name=name: _mixer(name, width, rows, length)
    yield "convolution, long", lambda rows, length: _mixer({"name": "convolution", "kernel_size": None}, width, rows, length)
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

    return run, _bytes(state)


def _function(function: Callable[..., Tensor], width: int, rows: int, length: int) -> Case:
    torch.manual_seed(0)
    heads = width // 32
    query, key, value = (torch.randn(rows, length, heads, 32, requires_grad=True) for _ in range(3))
    decay, beta = (torch.rand(rows, length, heads, requires_grad=True) for _ in range(2))

    def run() -> None:
        y = function(query, F.normalize(key, dim=-1), value, decay, beta)
        y.backward(torch.ones_like(y))

    return run, None


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
    yield "decay by channel: attnkit", channels


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


def _segments(x: Tensor) -> Tensor:
    size = x.shape[-1]
    below = torch.ones(size, size, dtype=torch.bool).tril()
    return x[..., None].expand(*x.shape, size).masked_fill(~below.tril(-1), 0).cumsum(-2).masked_fill(~below, float("-inf"))


def _seconds(run: Callable[[], None]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _bytes(state: State | None) -> int:
    values = [] if state is None else vars(state).values()
    return sum(x.numel() * x.element_size() for x in values if isinstance(x, Tensor))


if __name__ == "__main__":
    main()
