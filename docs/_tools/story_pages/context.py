"""A fixed context vector has room for a short sentence."""

import random
from typing import Any

from attnkit.probe.reading import answered
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, pairs_of, percent, seven, train, trainable, wide

FIGURE: dict[str, Any] = {"x": "length", "y": ["exact_match"]}
LENGTHS = (2, 4, 6, 8, 10, 12)
SYMBOLS, STEPS, WIDTH = 8, 500, 64


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
        for length, is_right in zip((answer.scored.sum(1) - 1).tolist(), whole, strict=True):  # without the end
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


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    cells = ("RNN", "GRU", "LSTM")
    longest = {model: at(rows, model, "length", LENGTHS[-1], "exact_match") for model in dict.fromkeys(row["model"] for row in rows)}
    short = {model: at(rows, model, "length", LENGTHS[0], "exact_match") for model in longest}
    fixed, attending = [longest[cell] for cell in cells], [longest[f"{cell} + attention"] for cell in cells] + [longest["Transformer"]]
    holds = max(fixed) < 0.5 * min(attending) and min(short["GRU"], short["LSTM"]) > 0.9
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
        "verdict": language.verdict(holds=holds),
        "worked": language.worked(tables),
        "table": language.table(wide(rows, "length", "exact_match")),
        "width": str(WIDTH),
        "steps": str(STEPS),
        "room": str(room),
        "needed": str(LENGTHS[-1] * 3),
        "longest": str(LENGTHS[-1]),
        "fixed": percent(max(fixed)),
        "attending": percent(min(attending)),
        "gru_short": percent(short["GRU"]),
        "rnn_short": percent(short["RNN"]),
    }
