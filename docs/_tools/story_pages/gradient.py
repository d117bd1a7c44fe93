"""Gradients vanish and explode in an RNN, less in an LSTM, not in a Transformer."""

import math
from typing import Any

import torch

import attnkit
from attnkit.task import Task
from story_pages.base import SENTENCES, Language, Rows, at, seven, shown, task_of

FIGURE: dict[str, Any] = {"x": "distance", "y": ["gradient", "with_large_weights"], "log": "xy"}
SEEDS = (3, 4, 5)  # the factor and the limits below were chosen with seeds 0 to 2
LENGTH = 100
FACTOR = 4.0  # of the large weights
VANISHED, EXPLODED = 1e-6, 1e6  # the gradient at the largest distance, divided by that at distance 0
LESS = 1e-3  # maximum gradient of an LSTM, as a fraction of the exploding gradient of an RNN
FLAT = (1e-2, 1e2)


def enlarged(task: Task) -> Task:
    """Return a task with larger weight matrices in its layers, but unchanged embeddings and biases."""
    task.configure_model()
    with torch.no_grad():
        for weight in task.model.get_submodule("stack").parameters():
            if weight.ndim == 2:
                weight.mul_(FACTOR)
    return task


def measure() -> Rows:
    """Return the gradient by distance of recurrent encoder-decoders without and with attention, and of the Transformer, untrained."""
    probe = attnkit.probes.build({"name": "gradient", "length": LENGTH})
    rows: Rows = []
    for label, stack in seven(dropout=0.1).items():
        for seed in SEEDS:
            pairs = zip(probe(task_of(stack, seed)).rows, probe(enlarged(task_of(stack, seed))).rows, strict=True)
            rows += [{"model": label, "seed": seed, **row, "with_large_weights": large["gradient"]} for row, large in pairs]
    return rows


def left(rows: Rows, y: str) -> dict[str, float]:
    """Return the gradient at the largest distance, divided by that at distance 0, by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    return {m: at(rows, m, "distance", LENGTH - 1, y) / at(rows, m, "distance", 0, y) for m in models}


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    kept, large = (left(rows, y) for y in FIGURE["y"])
    vanishes = kept["RNN"] < VANISHED and kept["RNN"] < kept["LSTM"]
    explodes = large["RNN"] > EXPLODED and large["LSTM"] < LESS * large["RNN"]
    flat = all(FLAT[0] < found["Transformer"] < FLAT[1] for found in (kept, large))
    return language.verdict(holds=vanishes and explodes and flat)


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    kept, large = (left(rows, y) for y in FIGURE["y"])
    tables = {}
    for name, words in SENTENCES.items():
        h, factor, lines = 0.0, 1.0, []
        for word in words:
            h = math.tanh(0.8 * h + 0.5)
            lines.append((word, h, 0.8 * (1 - h * h)))
        worked: Rows = []
        for word, state, slope in reversed(lines):
            open_factor = 2.0 ** len(worked)  # w = 2 at h = 0
            worked.append({"word": word, "h": state, "0.8 (1 - h²)": slope, "product up to here": factor, "with w = 2, h = 0": open_factor})
            factor *= slope
        tables[name] = worked
    columns = {"left after 99 tokens": kept, "weights times 4: left after 99 tokens": large}
    found = {
        f"{model}_{size}".lower().replace(" + ", "_"): shown(numbers[model])
        for size, numbers in (("kept", kept), ("large", large))
        for model in ("RNN", "RNN + attention", "GRU", "LSTM", "LSTM + attention", "Transformer")
    }
    return {
        "table": language.table([{"model": m} | {name: numbers[m] for name, numbers in columns.items()} for m in kept]),
        "worked": language.worked(tables),
        "factor": f"{FACTOR:g}",
        "vanished": f"{VANISHED:.6f}",
        "exploded": f"{EXPLODED:,.0f}",
        "less": f"{1 / LESS:,.0f}",
        "low": shown(FLAT[0]),
        "high": shown(FLAT[1]),
        **found,
    }
