"""Gradients vanish in a recurrence, and attention is a way around it."""

import math
from typing import Any

import attnkit
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, seven, shown, task_of

FIGURE: dict[str, Any] = {"x": "distance", "y": ["gradient"], "log": "xy"}


def measure() -> Rows:
    """Return the gradient by distance of recurrent encoder-decoders without and with attention, and of the Transformer, untrained."""
    probe = attnkit.probes.build({"name": "gradient", "length": 100})
    return [
        {"model": label, "seed": seed, **row}
        for label, stack in seven(dropout=0.1).items()
        for seed in SEEDS
        for row in probe(task_of(stack, seed)).rows
    ]


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    kept = {
        model: at(rows, model, "distance", 99, "gradient") / at(rows, model, "distance", 0, "gradient")
        for model in dict.fromkeys(row["model"] for row in rows)
    }
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
    recurrent = [kept[cell] for cell in ("RNN", "GRU", "LSTM")]
    with_attention = [kept[f"{cell} + attention"] for cell in ("RNN", "GRU", "LSTM")] + [kept["Transformer"]]
    holds = recurrent[0] < 1e-6 and recurrent[0] < recurrent[2] and min(with_attention) > 1e-3
    return {
        "verdict": language.verdict(holds=holds),
        "kept": language.table([{"model": model, "left after 99 tokens": value} for model, value in kept.items()]),
        "worked": language.worked(tables),
        "rnn": shown(kept["RNN"]),
        "gru": shown(kept["GRU"]),
        "lstm": shown(kept["LSTM"]),
        "lstm_attention": shown(kept["LSTM + attention"]),
        "transformer": shown(kept["Transformer"]),
    }
