"""A fixed context vector has room for a short sentence."""

import random
from typing import Any

from attnkit.probe.reading import answered
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, pairs_of, percent, seven, train, trainable, wide

FIGURE: dict[str, Any] = {"x": "length", "y": ["exact_match"]}
LENGTHS = (2, 4, 6, 8, 10, 12)
SYMBOLS, STEPS, WIDTH = 8, 500, 64
CELLS = ("RNN", "GRU", "LSTM")
SHARE = 0.5  # fraction of the worst model with attention; no model without it may reach it at the largest length
LEARNED = 0.9  # minimum that GRU and LSTM copy at the smallest length


def copies(count: int, lengths: tuple[int, ...], seed: int) -> list[tuple[str, str]]:
    """Return random symbols, each text paired with itself."""
    rng = random.Random(seed)
    texts = (" ".join(str(rng.randrange(SYMBOLS)) for _ in range(rng.choice(lengths))) for _ in range(count))
    return [(text, text) for text in texts]


def exact_match(task: Any, data: Any) -> dict[int, float]:
    """Return the fraction of test targets without a mistake, by length, given the true prefix."""
    right: dict[int, list[bool]] = {}
    for batch in data.test_dataloader():
        answer = answered(task, batch)
        whole = (answer.right | ~answer.scored).all(1).tolist()
        for length, is_right in zip((answer.scored.sum(1) - 1).tolist(), whole, strict=True):  # without the end token
            right.setdefault(length, []).append(is_right)
    return {length: sum(found) / len(found) for length, found in sorted(right.items())}


def measure() -> Rows:
    """Return how many texts of each length the models copy without a mistake, after a short training on all lengths."""
    tests = [pair for length in LENGTHS for pair in copies(100, (length,), 10_000 + length)]
    data = pairs_of(copies(64 * STEPS, tuple(range(1, 13)), 0), tests, batch_tokens=1024)
    rows = []
    for label, stack in seven(d_model=WIDTH, num_layers=1).items():
        for seed in SEEDS:
            task = trainable(stack, data, seed)
            train(task, data, steps=STEPS)
            rows += [{"model": label, "seed": seed, "length": n, "exact_match": found} for n, found in exact_match(task, data).items()]
    return rows


def extremes(rows: Rows) -> tuple[float, float]:
    """Return what the best model without attention and the worst with it copy at the largest length."""
    longest = {row["model"]: row["exact_match"] for row in rows if row["length"] == LENGTHS[-1]}
    fixed = max(longest.pop(cell) for cell in CELLS)
    return fixed, min(longest.values())


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    fixed, attending = extremes(rows)
    learned = min(at(rows, cell, "length", LENGTHS[0], "exact_match") for cell in CELLS[1:])
    return language.verdict(holds=fixed < SHARE * attending and learned > LEARNED)


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    fixed, attending = extremes(rows)
    short = {cell: at(rows, cell, "length", LENGTHS[0], "exact_match") for cell in CELLS}
    room = 32 * WIDTH
    tables = {
        name: [
            {
                "words read": i + 1,
                "sentence": " ".join(words[: i + 1]),
                "fixed vector, numbers": WIDTH,
                "attention, numbers": (i + 1) * WIDTH,
            }
            for i in range(len(words))
        ]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(tables),
        "table": language.table(wide(rows, "length", "exact_match")),
        "width": str(WIDTH),
        "steps": str(STEPS),
        "room": str(room),
        "needed": str(LENGTHS[-1] * 3),
        "longest": str(LENGTHS[-1]),
        "shortest": str(LENGTHS[0]),
        "share": percent(SHARE),
        "learned": percent(LEARNED),
        "fixed": percent(fixed),
        "attending": percent(attending),
        "gru_short": percent(short["GRU"]),
        "rnn_short": percent(short["RNN"]),
    }
