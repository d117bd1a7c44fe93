"""Attention costs the square of the length."""

import math
from typing import Any

import attnkit
from story_pages.base import SENTENCES, Language, Rows, at, task_of

FIGURE: dict[str, Any] = {"x": "length", "y": ["train_ms", "train_mb", "decode_ms", "state_mb"], "log": "xy"}
MEMORY_POWER, TIME_POWER = 1.7, 1.5  # minimum exponent of quadratic growth of memory and time
WHOLE, TILES, WINDOW = "attention (reference)", "attention (sdpa)", "attention (window of 64)"


def measure() -> Rows:
    """Return time and memory by length of an LSTM, and of decoders whose attention keeps the logits, does not, or has a window."""
    size = {"d_model": 64, "num_layers": 2}
    models: dict[str, dict[str, Any]] = {
        "LSTM": {"name": "recurrent_decoder", **size, "cell": "lstm"},
        WHOLE: {"name": "decoder", **size, "num_heads": 2, "backend": "reference"},
        TILES: {"name": "decoder", **size, "num_heads": 2, "backend": "sdpa"},
        WINDOW: {"name": "decoder", **size, "num_heads": 2, "window": 64, "backend": "tiled"},
    }
    probe = attnkit.probes.build({"name": "cost", "lengths": [128, 256, 512, 1024, 2048], "repeats": 3, "clock": "cpu"})
    return [{"model": label, **row} for label, stack in models.items() for row in probe(task_of(stack, 0)).rows]


def power(rows: Rows, model: str, y: str) -> float:
    """Return the exponent of the growth from 1,024 to 2,048 tokens."""
    return math.log2(at(rows, model, "length", 2048, y) / at(rows, model, "length", 1024, y))


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    quadratic = power(rows, WHOLE, "train_mb") > MEMORY_POWER and power(rows, WHOLE, "train_ms") > TIME_POWER
    everywhere = power(rows, TILES, "train_mb") > MEMORY_POWER
    condition = "all logits are kept and the length is large against the width"
    return language.verdict(holds=quadratic, when="" if everywhere else condition)


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    powers = [{"model": m} | {y: f"{power(rows, m, y):.2f}" for y in FIGURE["y"]} for m in models]
    tables = {
        name: [
            {"word": word, "keys that it reads": i + 1, "sum so far": (i + 1) * (i + 2) // 2, "steps of a recurrence": i + 1}
            for i, word in enumerate(words)
        ]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(tables),
        "rows": language.table(rows, ["model", "length", *FIGURE["y"]]),
        "powers": language.table(powers),
        "memory": f"{power(rows, WHOLE, 'train_mb'):.2f}",
        "memory_sdpa": f"{power(rows, TILES, 'train_mb'):.2f}",
        "memory_window": f"{power(rows, WINDOW, 'train_mb'):.2f}",
        "time": f"{power(rows, WHOLE, 'train_ms'):.2f}",
        "time_window": f"{power(rows, WINDOW, 'train_ms'):.2f}",
        "memory_power": str(MEMORY_POWER),
        "time_power": str(TIME_POWER),
        "state_window": f"{at(rows, WINDOW, 'length', 2048, 'state_mb') / at(rows, WINDOW, 'length', 128, 'state_mb'):.2f}",
        "state_whole": f"{at(rows, TILES, 'length', 2048, 'state_mb') / at(rows, TILES, 'length', 128, 'state_mb'):.0f}",
    }
