"""How far back a model remembers."""

import random
from typing import Any

from attnkit.probe.reading import answered
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, pairs_of, percent, seven, shown, train, trainable, wide

FIGURE: dict[str, Any] = {"x": "distance", "y": ["after_250", "after_800"], "log": "x"}
TRAINED = 32  # longest distance in training
DISTANCES = (1, 2, 4, 8, 16, 32, 64, 128)
SYMBOLS, WIDTH = 8, 32
SHORT, STEPS = 250, 800  # two training lengths, since forgetting also depends on how long a model is trained
BEHIND = 0.1  # the worst model with attention, which a model that forgets is at least


def marked(count: int, distances: tuple[int, ...], seed: int) -> list[tuple[str, str]]:
    """Return random symbols of which one is marked, `distance` symbols before the end, each text with the marked symbol."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        symbols = [str(rng.randrange(SYMBOLS)) for _ in range(max(TRAINED, max(distances)) + 1)]
        place = len(symbols) - 1 - rng.choice(distances)
        rows.append((" ".join([*symbols[:place], f"+{symbols[place]}", *symbols[place + 1 :]]), symbols[place]))
    return rows


def accuracy(task: Any, data: Any, count: int) -> float:
    """Return the fraction of the test rows whose first target token is right."""
    return sum(int(answered(task, batch).right[:, 0].sum()) for batch in data.test_dataloader()) / count


def measure() -> Rows:
    """Return how often the models name the marked symbol, by its distance, after a short training on all distances."""
    training = marked(64 * STEPS, tuple(range(TRAINED + 1)), 0)
    tests = {d: pairs_of(training, dict(marked(200, (d,), 10_000 + d)).items(), batch_tokens=64 * 36) for d in DISTANCES}
    for data in tests.values():
        data.load_state_dict(tests[1].state_dict())  # train the tokenizers only once
    rows = []
    for label, stack in seven(d_model=WIDTH, num_layers=1).items():
        for seed in SEEDS:
            found: Rows = [{"model": label, "seed": seed, "distance": d} for d in DISTANCES]
            for steps in (SHORT, STEPS):
                task = trainable(stack, tests[1], seed)
                train(task, tests[1], steps=steps)
                for row in found:
                    row[f"after_{steps}"] = accuracy(task, tests[row["distance"]], 200)
            rows += found
    return rows


def far_away(rows: Rows) -> tuple[float, float, float]:
    """Return the accuracy at the longest trained distance: of the RNN, the worse of GRU and LSTM, and the worst model with attention."""
    far = {row["model"]: row[f"after_{STEPS}"] for row in rows if row["distance"] == TRAINED}
    plain, gated = far.pop("RNN"), min(far.pop("GRU"), far.pop("LSTM"))
    return plain, gated, min(far.values())


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    plain, gated, attending = far_away(rows)
    when = "" if gated < attending - BEHIND else "the recurrence has no gates"
    return language.verdict(holds=plain < attending - BEHIND, when=when)


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    y, early = f"after_{STEPS}", f"after_{SHORT}"
    plain, gated, attending = far_away(rows)
    tables = {
        name: [
            {"word": word, "distance": len(words) - 1 - i, "0.9^d": 0.9 ** (len(words) - 1 - i), "steps of attention": 1}
            for i, word in enumerate(words)
        ]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(tables),
        "table": language.table(wide(rows, "distance", y)),
        "early": language.table(wide(rows, "distance", early)),
        "behind": f"{100 * BEHIND:.0f}",
        "steps": str(STEPS),
        "short": str(SHORT),
        "width": str(WIDTH),
        "chance": f"{100 / SYMBOLS:g} %",
        "trained": str(TRAINED),
        "last": shown(0.9**TRAINED),
        "rnn_near": percent(at(rows, "RNN", "distance", 1, y)),
        "rnn_far": percent(plain),
        "gated": percent(gated),
        "attending": percent(attending),
        "rnn_early": percent(at(rows, "RNN", "distance", 1, early)),
        "beyond": ", ".join(f"{m} {percent(at(rows, m, 'distance', DISTANCES[-1], y))}" for m in models),
    }
