"""The page with the measurements of `mixer_speed.py`."""

from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from attnkit.masks import Mask
from attnkit.mixer import Tokens
from attnkit.profile.elementwise import ElementwiseCounter
from attnkit.profile.flops import fake_tensors
from attnkit.registry import mixers

FLAT = 1.3
"""The largest ratio of times per token between two lengths that counts as flat."""
STEPS = 2048
"""The longest row for which forms that take one step of torch per token are measured, and the memory of ours: torch's profiler keeps 100 to
250 kB per step."""
COUNTED = 256
"""The length of the row whose operations are counted: several chunks. Counting takes seconds for each thousand steps of a cell."""
CELLS = ("rnn", "lstm", "gru")
STEPPING = (*CELLS, "slstm", "selective_state_space")
ROWS = 8
AT_ROWS, WIDE = f", {ROWS} rows", ", four times as wide"
HEAD = 32
SEQUENTIAL = "it is inherently sequential, and with a constant number of tokens, longer rows are fewer and have more steps"
FEW = "in a single row, a step has 2,048 numbers at this width, and much of the time goes into calling operations, not into computing them"
UNEXPLAINED = "the reason is unknown, since its operations per token are the same at each length"
REASONS = {**dict.fromkeys((*CELLS, "slstm"), SEQUENTIAL), "selective_state_space": FEW}


def page(found: dict[str, Any]) -> str:
    """Return the page of measurements."""
    lengths = dict(sorted(found["lengths"].items(), key=lambda item: int(item[0])))
    names = [*next(iter(lengths.values()))["rows"]]
    results = {name: [part["rows"].get(name) for part in lengths.values()] for name in names}
    functions = {name: row for name, row in results.items() if ": " in name}
    at_rows = {name: row for name, row in results.items() if name.endswith(AT_ROWS)}
    ours = {name: row for name, row in results.items() if name not in functions and name not in at_rows}
    constant = [name for name, row in ours.items() if len({part["state_bytes"] for part in row}) == 1 and not name.endswith(WIDE)]
    flat = [name for name in constant if _ratio(ours[name]) <= FLAT]
    also = [name for name in constant if name not in flat and name + AT_ROWS in at_rows and _ratio(at_rows[name + AT_ROWS]) <= FLAT]
    loads = [part["load"] for part in lengths.values()]
    lines = [
        "# Mixers by length",
        "",
        f"A forward and a backward pass of one mixer (`d_model` {found['width']}, heads of {HEAD}, fp32) over {found['tokens']} tokens in",
        f"rows of T, in microseconds of processor time per token on one thread: the minimum of {found['rounds']} rounds in which all take",
        f'turns (torch {found["torch"]}). The ratio is that of the slowest length to the fastest; "flat" means at most {FLAT}. MiB are the',
        f"peak memory that a pass allocates. The machine has {found['cores']} cores; its load average was {min(loads)} to {max(loads)}.",
        "Everything at one length is measured in one process; additional rounds run in another. On a shared machine, single rounds differ",
        "by a factor of up to 1.4.",
        "",
        f"Of {len(constant)} mixers with a state of constant size, {len(flat)} are flat with a constant number of tokens: {_names(flat)}.",
        *([f"With a constant number of rows, {len(also)} more are: {_names(also)}."] if at_rows else []),
        f"Ratios near {FLAT} fall on either side of it from one measurement to the next.",
        *_unmeasured(results),
        *_exceptions(ours, at_rows, [name for name in constant if name not in flat]),
        "",
        *_table("mixer", ours, [*lengths]),
        "",
        "`convolution, long` has a kernel as long as the sequence and uses fast Fourier transforms: its time grows with log T, and its",
        "state holds all tokens. Where no peak memory is given, torch's profiler would have to keep about 200 kB for each step.",
        "",
        "Each allocation of a tensor above 32 MiB gets new pages from the system, which costs `state_space` up to half of its time at any",
        "length. The measurement tells glibc to keep freed memory, as",
        "`GLIBC_TUNABLES=glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=4294967296` does for training on a CPU.",
        "",
        *(_in_rows(at_rows, [*lengths]) if at_rows else []),
        *_operations(constant, found["width"]),
        "## Comparison with other implementations",
        "",
        "Each group computes one function (layers draw their own parameters). `transformers` are functions of that package, in plain",
        "torch; the other forms are in `docs/_tools/mixer_forms.py`: `paper` is the code printed in the Mamba-2 paper, with segment sums",
        "(https://arxiv.org/abs/2405.21060, listing 1); `lightning` goes from block to block (https://arxiv.org/abs/2401.04658);",
        "`logarithms` computes a decaying sum by cumulative sums of logarithms (Heinsen 2023, https://arxiv.org/abs/2311.06281), and",
        "`exponentials` divides by decays: both subtract large numbers where attnkit multiplies, and the latter overflows in fp32 with",
        "decays below 0.06. `steps` goes from token to token, as transformers does for Mamba, RWKV and RecurrentGemma on a CPU; it is",
        f"measured up to T = {STEPS}.",
        "",
        *_table("function", functions, [*lengths]),
        "",
        *_against(functions),
        "",
        "```bash",
        "OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py docs/results/mixers.json",
        "OMP_NUM_THREADS=1 python docs/_tools/mixer_speed.py docs/results/mixers.json --rounds 3 --more",
        "python docs/_tools/mixer_speed.py docs/results/mixers.json --page > docs/results/mixers.md",
        "```",
    ]
    return "\n".join(lines) + "\n"


def _in_rows(at_rows: dict[str, list[Any]], lengths: list[str]) -> list[str]:
    """Return the section about a constant number of rows."""
    return [
        f"## A step for each token, in {ROWS} rows",
        "",
        "These mixers take one step after another. In the table above, longer rows are fewer, so steps are smaller, and each costs a call.",
        f"With {ROWS} rows at each length, a step is always the same work, so a flat time per token means that the mixer is linear in T.",
        "",
        *_table("mixer", at_rows, lengths),
        "",
    ]


def _operations(names: list[str], width: int) -> list[str]:
    """Return the section about operations, which are counted when the page is made: they depend on the code alone."""
    lines = [
        "## Operations per token",
        "",
        f"Operations of a forward pass over a row of {COUNTED} tokens, as `attnkit.profile` counts them for `attnkit plan` and studies:",
        "FLOPs (matrix products, plus what each scan declares) and element-wise operations, where an exponential counts as one.",
        "",
        "| mixer | FLOPs | element-wise |",
        "|---|---:|---:|",
    ]
    for name in names:
        with fake_tensors(torch.double), sdpa_kernel(SDPBackend.MATH), torch.no_grad():
            mixer = mixers.build(name, d_model=width, num_heads=width // HEAD, direction="causal")
            with FlopCounterMode(display=False) as products, ElementwiseCounter() as others:
                mixer(torch.empty(1, COUNTED, width), Tokens(mask=Mask(causal=True)))
        lines.append(f"| {name} | {products.get_total_flops() / COUNTED:,.0f} | {others.total / COUNTED:,.0f} |")
    return [*lines, ""]


def _unmeasured(results: dict[str, Any]) -> list[str]:
    """Return a line with the mixers that were added after the measurement, if there are any."""
    missing = [name for name in mixers.names() if getattr(mixers.get(name), "growth", "") == "constant" and name not in results]
    return [f"Added since, and not measured: {_names(missing)}."] if missing else []


def _exceptions(ours: dict[str, list[Any]], at_rows: dict[str, list[Any]], names: list[str]) -> list[str]:
    """Return lines about mixers whose time is not flat with a constant number of tokens."""
    if not names:
        return []
    wide = [f"; four times as wide, {_ratio(row):.2f}" for name, row in ours.items() if name.endswith(WIDE)]
    lines = ["", "These are not flat with a constant number of tokens:", ""]
    for name in names:
        steady = f" ({_ratio(at_rows[name + AT_ROWS]):.2f} in {ROWS} rows)" if name + AT_ROWS in at_rows else ""
        wider = "".join(wide) if name + WIDE in ours else ""
        odd = "; in 8 rows, the reason is unknown" if steady and _ratio(at_rows[name + AT_ROWS]) > FLAT else ""
        lines.append(f"- `{name}`, {_ratio(ours[name]):.2f}{steady}: {REASONS.get(name, UNEXPLAINED)}{wider}{odd}")
    return lines


def _against(functions: dict[str, list[dict[str, Any] | None]]) -> list[str]:
    """Return a line for each function that others have too: how much longer the fastest of them takes, over the lengths."""
    lines = []
    for kind in dict.fromkeys(name.split(": ")[0] for name in functions):
        (_, ours), *others = [row for row in functions.items() if row[0].startswith(f"{kind}: ")]
        factors = []
        for i, own in enumerate(ours):
            times = [row[i]["microseconds"] for _, row in others if row[i] is not None]  # type: ignore[index]
            factors += [min(times) / own["microseconds"]] if times and own else []
        if not factors:
            continue
        slower = "" if min(factors) >= 1 else ", **less** at some length"
        lines.append(f"- {kind}: the fastest other form takes {min(factors):.2f} to {max(factors):.2f} times as long as attnkit's{slower}.")
    return lines


def _names(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names) or "none"


def _table(title: str, rows: dict[str, list[Any]], lengths: list[str]) -> list[str]:
    def cells(row: list[dict[str, Any] | None], key: str, form: str) -> list[str]:
        return ["-" if part is None or part[key] is None else format(part[key], form) for part in row]

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


def _ratio(row: list[dict[str, Any] | None]) -> float:
    times = [part["microseconds"] for part in row if part is not None]
    return float(max(times) / min(times))
