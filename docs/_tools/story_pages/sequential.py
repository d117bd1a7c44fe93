"""A recurrence takes one step after another, attention computes all at once."""

from copy import deepcopy
from typing import Any

import torch

import attnkit
from attnkit.task import Task
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, seven, shown, task_of

FIGURE: dict[str, Any] = {"x": "length", "y": ["chain", "train_ms", "train_mb"], "log": "xy"}
LENGTHS = (16, 64, 256)


def longest_chain(output: torch.Tensor) -> int:
    """Return the largest number of operations of the backward pass each of which waits for the one before.

    Example:
        >>> x = torch.ones(1, requires_grad=True)
        >>> longest_chain(x * 2), longest_chain((x * 2) * 3 + x)
        (2, 4)
    """
    depth: dict[Any, int] = {None: 0}
    stack: list[Any] = [output.grad_fn]
    while stack:
        node = stack[-1]
        below = [following for following, _ in node.next_functions]
        waiting = [following for following in below if following not in depth]
        if waiting:
            stack += waiting
        else:
            depth[stack.pop()] = 1 + max((depth[following] for following in below), default=0)
    return depth[output.grad_fn]


def chain_of(task: Task, length: int) -> int:
    """Return the longest chain of the backward pass through a source and a target of `length` tokens, in float64 (no fused kernels)."""
    model = deepcopy(task.model).double().eval()
    tokens = torch.arange(length)[None] % 40 + 4
    with torch.enable_grad():
        return longest_chain(model(tokens, tokens).sum())


def measure() -> Rows:
    """Return time, memory and the longest chain of operations by length."""
    probe = attnkit.probes.build({"name": "cost", "lengths": LENGTHS, "repeats": 3, "clock": "cpu"})
    rows = []
    for label, stack in seven().items():
        for seed in SEEDS:
            task = task_of(stack, seed)
            for row in probe(task).rows:
                kept = {name: row[name] for name in ("length", "train_ms", "train_mb")}
                rows.append({"model": label, "seed": seed, **kept, "chain": float(chain_of(task, row["length"]))})
    return rows


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    short, long = LENGTHS[0], LENGTHS[-1]
    models = list(dict.fromkeys(row["model"] for row in rows))
    growth = {m: at(rows, m, "length", long, "chain") / at(rows, m, "length", short, "chain") for m in models}
    recurrent = [m for m in models if m != "Transformer"]
    in_steps = growth["Transformer"] == 1 and min(growth[m] for m in recurrent) > 0.8 * long / short
    time = {m: at(rows, m, "length", long, "train_ms") for m in models}
    in_time = time["Transformer"] < min(time[m] for m in recurrent)
    tables = {
        name: [{"word": word, "recurrence computes it in step": i + 1, "attention computes it in step": 1} for i, word in enumerate(words)]
        for name, words in SENTENCES.items()
    }
    return {
        "verdict": language.verdict(
            holds=in_steps, when="" if in_time else "dependent steps are counted, not milliseconds of one processor core"
        ),
        "worked": language.worked(tables),
        "table": language.table(rows, ["model", "length", "chain", "train_ms", "train_mb"]),
        "short": str(short),
        "long": str(long),
        "lstm_short": f"{at(rows, 'LSTM', 'length', short, 'chain'):.0f}",
        "lstm_long": f"{at(rows, 'LSTM', 'length', long, 'chain'):.0f}",
        "transformer": f"{at(rows, 'Transformer', 'length', long, 'chain'):.0f}",
        "lstm_ms": shown(time["LSTM"]),
        "transformer_ms": shown(time["Transformer"]),
        "rnn_ms": shown(time["RNN"]),
        "gru_ms": shown(time["GRU"]),
    }
