"""A convolution sees near, attention far, and attention needs neither it nor a recurrence."""

from typing import Any

import attnkit
from attnkit.probe.reading import answered, prompt_lengths
from attnkit.task import Task
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, fit, percent, prompts_of, trainable, wide
from story_pages.recall import SYMBOLS, marked

FIGURE: dict[str, Any] = {"x": "distance", "y": ["accuracy", "reached"], "log": "x"}
DISTANCES = (1, 2, 4, 8, 16, 32)
KERNEL, LAYERS, STEPS, WIDTH = 3, 2, 800, 32
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
    """Return a new decoder whose layers differ in their mixer alone."""
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


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    field = LAYERS * (KERNEL - 1)
    near = [d for d in DISTANCES if d <= field]
    far = [d for d in DISTANCES if d > field]
    score = {m: {d: at(rows, m, "distance", d, "accuracy") for d in DISTANCES} for m in MIXERS}
    short = score["convolution of 3"]
    blind = max(short[d] for d in far) < 2 / SYMBOLS and not any(at(rows, "convolution of 3", "distance", d, "reached") for d in far)
    holds = blind and min(short[d] for d in near) > 0.7 and min(score["attention"].values()) > 0.7
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
        "verdict": language.verdict(holds=holds, when="the kernel is short"),
        "worked": language.worked(tables),
        "table": language.table(wide(rows, "distance", "accuracy")),
        "field": str(field),
        "kernel": str(KERNEL),
        "layers": str(LAYERS),
        "steps": str(STEPS),
        "chance": percent(1 / SYMBOLS),
        "near": percent(min(short[d] for d in near)),
        "far": percent(max(short[d] for d in far)),
        "whole": percent(score["convolution of all"][DISTANCES[-1]]),
        "attention": percent(min(score["attention"].values())),
        "gru": percent(min(score["GRU"].values())),
    }
