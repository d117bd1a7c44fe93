"""Without positions, attention reads a bag of words, unless it is causal."""

import random
import tempfile
from pathlib import Path
from typing import Any

import torch

import attnkit
from attnkit.cli.draw import draw_position
from story_pages.base import SEEDS, SENTENCES, Language, Rows, pairs_of, percent, prompts_of, shown, train, trainable
from story_pages.context import exact_match

FIGURE: dict[str, Any] = {"x": "length", "y": ["exact_match"]}
LENGTHS = (2, 4, 6, 8)
SYMBOLS, STEPS = 8, 200
POSITIONS = ("none", "sinusoidal", "rotary")
NOTICED = 1e-3  # nats per token: minimum effect of shuffling on the loss of a model that notices the order
SHARE = 0.5  # fraction of the worst model with positions; the one without stays below
BLIND, CAUSAL = "encoder_decoder, none", "decoder, none"


def mirrored(count: int, lengths: tuple[int, ...], seed: int) -> list[tuple[str, str]]:
    """Return random symbols, each text with its mirror image."""
    rng = random.Random(seed)
    texts = [[str(rng.randrange(SYMBOLS)) for _ in range(rng.choice(lengths))] for _ in range(count)]
    return [(" ".join([*text, "="]), " ".join(text[::-1])) for text in texts]


def measure() -> Rows:
    """Return how many texts of each length models with and without positions write backwards, and how much the order matters to them."""
    training = mirrored(64 * STEPS, tuple(range(2, 9)), 0)
    test = [pair for length in LENGTHS for pair in mirrored(100, (length,), 10_000 + length)]
    pairs, prompts = pairs_of(training, test, batch_tokens=1024), prompts_of(training, test, batch_tokens=1024)
    order = attnkit.probes.build({"name": "order", "kept": [0], "batches": 8})
    size = {"d_model": 64, "num_layers": 2, "num_heads": 2, "dropout": 0.0}
    rows = []
    for name in ("encoder_decoder", "decoder"):
        for position in POSITIONS if name == "encoder_decoder" else POSITIONS[:2]:
            for seed in SEEDS:
                stack, data = {"name": name, **size, "position": position}, pairs if name == "encoder_decoder" else prompts
                task = trainable(stack, data, seed)
                train(task, data, steps=STEPS)
                [read] = order(task, data).rows
                rows += [
                    {
                        "model": f"{name}, {position}",
                        "seed": seed,
                        "length": n,
                        "exact_match": found,
                        "loss_of_shuffling": read["loss"] - read["loss_in_order"],
                    }
                    for n, found in exact_match(task, data).items()
                ]
    return rows


def by_model(rows: Rows, y: str) -> dict[str, float]:
    """Return the mean of `y` over the lengths by model."""
    models = dict.fromkeys(row["model"] for row in rows)
    return {m: sum(row[y] for row in rows if row["model"] == m) / len(LENGTHS) for m in models}


def with_positions(right: dict[str, float]) -> float:
    """Return what the worst encoder-decoder with positions gets right."""
    return min(right[f"encoder_decoder, {name}"] for name in POSITIONS[1:])


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    right, shuffled = by_model(rows, "exact_match"), by_model(rows, "loss_of_shuffling")
    holds = abs(shuffled[BLIND]) < NOTICED and right[BLIND] < SHARE * with_positions(right)
    return language.verdict(holds=holds, when="each token reads both sides" if abs(shuffled[CAUSAL]) > NOTICED else "")


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    right, shuffled = by_model(rows, "exact_match"), by_model(rows, "loss_of_shuffling")
    channels = ("sin(t)", "cos(t)", "sin(t / 100)", "cos(t / 100)")
    tables = {}
    for name, words in SENTENCES.items():
        t = torch.arange(len(words), dtype=torch.float64)
        table = torch.stack([t.sin(), t.cos(), (t / 100).sin(), (t / 100).cos()], 1).tolist()
        tables[name] = [
            {"word": word, "t": i, **{channel: f"{x:.2f}" for channel, x in zip(channels, row, strict=True)}}
            for i, (word, row) in enumerate(zip(words, table, strict=True))
        ]
    return {
        "worked": language.worked(tables),
        "table": language.table(
            [{"model": m, "exact match": percent(right[m]), "loss of shuffling": f"{round(shuffled[m], 4) + 0.0:.4f}"} for m in right]
        ),
        "blind": percent(right[BLIND]),
        "blind_shuffled": f"{abs(shuffled[BLIND]):.4f}",
        "with": percent(with_positions(right)),
        "causal": percent(right[CAUSAL]),
        "causal_with": percent(right["decoder, sinusoidal"]),
        "causal_shuffled": f"{shuffled[CAUSAL]:.2f}",
        "noticed": shown(NOTICED),
        "share": percent(SHARE),
        "steps": str(STEPS),
    }


def pictures(stored: dict[str, Any]) -> dict[str, str]:
    """Return the picture of the sinusoidal table."""
    path = Path(tempfile.mkdtemp(), "table.svg")
    draw_position("sinusoidal", out=str(path))
    text = path.read_text(encoding="utf-8")
    return {"positions_table.svg": text[text.index("<svg") :]}
