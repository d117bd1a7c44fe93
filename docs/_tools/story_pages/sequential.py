"""A recurrence takes one step after another, attention computes all at once."""

from copy import deepcopy
from typing import Any

import torch

import attnkit
from attnkit.task import Task
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, seven, shown, task_of

FIGURE: dict[str, Any] = {"x": "length", "y": ["chain", "train_ms", "train_mb"], "log": "xy"}
LENGTHS = (16, 64, 256)
GROWS = 0.8  # minimum growth of a recurrence's chain, as a fraction of the growth in length


def longest_chain(output: torch.Tensor) -> int:
    """Return the length of the longest chain of dependent operations in the backward pass.

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


def times(rows: Rows) -> dict[str, float]:
    """Return the time of a pass over the longest source and target by model."""
    return {row["model"]: row["train_ms"] for row in rows if row["length"] == LENGTHS[-1]}


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    short, long = LENGTHS[0], LENGTHS[-1]
    time = times(rows)
    growth = {m: at(rows, m, "length", long, "chain") / at(rows, m, "length", short, "chain") for m in time}
    in_steps = growth.pop("Transformer") == 1 and min(growth.values()) > GROWS * long / short
    in_time = time["Transformer"] == min(time.values())
    condition = "dependent steps are counted, not milliseconds of one processor core"
    return language.verdict(holds=in_steps, when="" if in_time else condition)


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    short, long = LENGTHS[0], LENGTHS[-1]
    time = times(rows)
    table = [row | {"chain": f"{row['chain']:,.0f}"} for row in rows]
    tables = {
        name: [{"word": word, "recurrence computes it in step": i + 1, "attention computes it in step": 1} for i, word in enumerate(words)]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(tables),
        "table": language.table(table, ["model", "length", "chain", "train_ms", "train_mb"]),
        "grows": f"{GROWS * long / short:g}",
        "short": str(short),
        "long": str(long),
        "lstm_short": f"{at(rows, 'LSTM', 'length', short, 'chain'):,.0f}",
        "lstm_long": f"{at(rows, 'LSTM', 'length', long, 'chain'):,.0f}",
        "transformer": f"{at(rows, 'Transformer', 'length', long, 'chain'):.0f}",
        "lstm_ms": shown(time["LSTM"]),
        "transformer_ms": shown(time["Transformer"]),
        "rnn_ms": shown(time["RNN"]),
        "gru_ms": shown(time["GRU"]),
    }
