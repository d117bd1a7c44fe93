"""A convolution sees nearby tokens, attention distant ones, too, and attention needs neither a convolution nor a recurrence."""

from typing import Any

import attnkit
from attnkit.probe.reading import answered, prompt_lengths
from attnkit.task import Task
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, fit, percent, prompts_of, trainable, wide
from story_pages.recall import SYMBOLS, marked

FIGURE: dict[str, Any] = {"x": "distance", "y": ["accuracy", "reached"], "log": "x"}
DISTANCES = (1, 2, 4, 8, 16, 32)
KERNEL, LAYERS, STEPS, WIDTH = 3, 2, 800, 32
BLIND = 2  # times chance: the short convolution stays below it beyond its receptive field
SEES = 0.7
FIELD = LAYERS * (KERNEL - 1)
NEAR = tuple(d for d in DISTANCES if d <= FIELD)
FAR = tuple(d for d in DISTANCES if d > FIELD)
MIXERS: dict[str, Any] = {
    "convolution of 3": {"name": "convolution", "kernel_size": KERNEL},
    "convolution of all": {"name": "convolution", "kernel_size": None},
    "GRU": "gru",
    "attention": "multi_head",
}


def asked(count: int, distances: tuple[int, ...], seed: int) -> list[tuple[str, str]]:
    """Return marked symbols, `distance` before an equals sign, which tells a model without positions that the answer comes next."""
    return [(f"{text} =", answer) for text, answer in marked(count, tuple(d - 1 for d in distances), seed)]


def decoder_of(mixer: Any, data: Any, seed: int) -> Task:
    """Return a new decoder that differs only in the mixer of its layers."""
    size = {"d_model": WIDTH, "num_layers": LAYERS, "num_heads": 2, "dropout": 0.0}
    return trainable({"name": "decoder", **size, "mixer": mixer, "position": "none"}, data, seed)


def accuracy(task: Any, data: Any) -> float:
    """Return the fraction of rows whose first answer token is right."""
    found: list[bool] = []
    for batch in data.test_dataloader():
        right, first = answered(task, batch).right, prompt_lengths(batch) - 1
        found += right.gather(1, first[:, None])[:, 0].tolist()
    return sum(found) / len(found)


def measure() -> Rows:
    """Return how often decoders name the marked symbol, by its distance, and whether the output depends on that place at all."""
    training = asked(64 * STEPS, tuple(range(1, max(DISTANCES) + 1)), 0)
    tests = {d: prompts_of(training, asked(200, (d,), 10_000 + d), batch_tokens=64 * 37) for d in DISTANCES}
    gradient = attnkit.probes.build({"name": "gradient", "length": max(DISTANCES) + 1})
    rows = []
    for label, mixer in MIXERS.items():
        for seed in SEEDS:
            task = decoder_of(mixer, tests[1], seed)
            fit(task, tests[1], steps=STEPS)
            reached = {row["distance"]: float(row["gradient"] > 0) for row in gradient(task).rows}
            found = {d: accuracy(task, data) for d, data in tests.items()}
            rows += [{"model": label, "seed": seed, "distance": d, "accuracy": a, "reached": reached[d]} for d, a in found.items()]
    return rows


def accuracies(rows: Rows) -> dict[str, dict[int, float]]:
    """Return the accuracy by model and distance."""
    return {m: {d: at(rows, m, "distance", d, "accuracy") for d in DISTANCES} for m in MIXERS}


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    score = accuracies(rows)
    short = score["convolution of 3"]
    reached = any(at(rows, "convolution of 3", "distance", d, "reached") for d in FAR)
    blind = max(short[d] for d in FAR) < BLIND / SYMBOLS and not reached
    sees = min(short[d] for d in NEAR) > SEES and min(score["attention"].values()) > SEES
    return language.verdict(holds=blind and sees, when="the kernel is short" if score["convolution of all"][DISTANCES[-1]] > SEES else "")


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    score = accuracies(rows)
    short = score["convolution of 3"]
    tables = {
        name: [
            {
                "word": word,
                "one layer reads": " ".join(words[max(0, i - KERNEL + 1) : i + 1]),
                "attention reads": " ".join(words[: i + 1]),
            }
            for i, word in enumerate(words)
        ]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(tables),
        "table": language.table(wide(rows, "distance", "accuracy")),
        "field": str(FIELD),
        "kernel": str(KERNEL),
        "layers": str(LAYERS),
        "width": str(WIDTH),
        "steps": str(STEPS),
        "chance": f"{100 / SYMBOLS:g} %",
        "near": percent(min(short[d] for d in NEAR)),
        "far": percent(max(short[d] for d in FAR)),
        "whole": percent(score["convolution of all"][DISTANCES[-1]]),
        "attention": percent(min(score["attention"].values())),
        "blind": percent(BLIND / SYMBOLS),
        "sees": percent(SEES),
        "last": str(DISTANCES[-1]),
        "gru": percent(min(score["GRU"].values())),
    }
