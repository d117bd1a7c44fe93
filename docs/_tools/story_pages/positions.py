"""Without positions, attention reads a bag of words, unless it is causal."""

import random
import tempfile
from pathlib import Path
from typing import Any

import torch

import attnkit
from attnkit.cli.draw import draw_position
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, pairs_of, percent, prompts_of, train, trainable
from story_pages.context import exact_match

FIGURE: dict[str, Any] = {"x": "length", "y": ["exact_match"]}
LENGTHS = (2, 4, 6, 8)
SYMBOLS, STEPS = 8, 200
POSITIONS = ("none", "sinusoidal", "rotary")


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


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    models = list(dict.fromkeys(row["model"] for row in rows))
    right = {m: sum(row["exact_match"] for row in rows if row["model"] == m) / len(LENGTHS) for m in models}
    shuffled = {m: at(rows, m, "length", LENGTHS[0], "loss_of_shuffling") for m in models}
    blind, causal = "encoder_decoder, none", "decoder, none"
    other = [right[f"encoder_decoder, {name}"] for name in POSITIONS[1:]]
    holds = abs(shuffled[blind]) < 1e-3 and right[blind] < 0.5 * min(other)
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
        "verdict": language.verdict(holds=holds, when="each token reads both sides" if right[causal] > 2 * right[blind] else ""),
        "worked": language.worked(tables),
        "table": language.table(
            [{"model": m, "exact match": percent(right[m]), "loss of shuffling": f"{round(shuffled[m], 4) + 0.0:.4f}"} for m in models]
        ),
        "blind": percent(right[blind]),
        "blind_shuffled": f"{abs(shuffled[blind]):.4f}",
        "with": percent(min(other)),
        "causal": percent(right[causal]),
        "causal_with": percent(right["decoder, sinusoidal"]),
        "causal_shuffled": f"{shuffled[causal]:.2f}",
        "steps": str(STEPS),
    }


def pictures(stored: dict[str, Any]) -> dict[str, str]:
    """Return the picture of the sinusoidal table."""
    path = Path(tempfile.mkdtemp(), "table.svg")
    draw_position("sinusoidal", out=str(path))
    text = path.read_text(encoding="utf-8")
    return {"positions_table.svg": text[text.index("<svg") :]}
