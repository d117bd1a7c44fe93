"""The variance of q·k grows with the width."""

from typing import Any

import torch

import attnkit
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, shown

FIGURE: dict[str, Any] = {"x": "width", "y": ["variance", "entropy", "largest_weight"], "log": "x"}
CORPUS = {"name": "copy", "length": 31, "train_rows": 64, "validation_rows": 16, "test_rows": 16}
SCORES = ("dot_product", "scaled_dot_product")
NARROW, BROAD = 16, 1024
GROWS, LEVEL = 30, 2  # factors: the variance grows by more than the first without the scale, and by less than the second with it
SHARPER = 1.5  # times: the largest weight without the scale is that of the scale, at the largest width


def measure() -> Rows:
    """Return the variance of logits and the sharpness of weights by width, with and without the scale, in untrained decoders."""
    data = attnkit.datasets.build({"name": "prompted_text", "corpus": CORPUS, "tokenizer": "word"})
    rows = []
    for attention in SCORES:
        for width in (NARROW, 64, 256, BROAD):
            for seed in SEEDS:
                stack = {"name": "decoder", "d_model": width, "num_layers": 1, "num_heads": 1, "attention": attention}
                torch.manual_seed(seed)
                task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": data.tokenizer_spec})
                found = attnkit.probes.build("saturation")(task, data).rows[0]
                del found["layer"]
                rows.append({"model": attention, "seed": seed, **found})
    return rows


def growth_and_largest(rows: Rows) -> tuple[list[float], list[float]]:
    """Return the growth of the variance and the largest weight at the largest width, without and with the scale."""
    growth = [at(rows, m, "width", BROAD, "variance") / at(rows, m, "width", NARROW, "variance") for m in SCORES]
    return growth, [at(rows, m, "width", BROAD, "largest_weight") for m in SCORES]


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    growth, largest = growth_and_largest(rows)
    return language.verdict(holds=growth[0] > GROWS and growth[1] < LEVEL and largest[0] > SHARPER * largest[1])


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    growth, largest = growth_and_largest(rows)
    tables = {}
    for name, words in SENTENCES.items():
        generator = torch.Generator().manual_seed(7)
        # a query, and a key for each word; entries of variance 1
        signs = 2.0 * torch.randint(2, (len(words) + 1, 16), generator=generator) - 1
        logits = signs[1:] @ signs[0]
        plain, scaled = logits.softmax(0), (logits / 4).softmax(0)
        tables[name] = [
            {"word": w, "q·k": f"{a:.0f}", "softmax(q·k)": float(p), "q·k / √16": f"{a / 4:.2f}", "softmax(q·k / √16)": float(s)}
            for w, a, p, s in zip(words, logits.tolist(), plain, scaled, strict=True)
        ]
    return {
        "worked": language.worked(tables),
        "rows": language.table(rows, ["model", "width", "variance", "entropy", "largest_weight"]),
        "plain": shown(growth[0]),
        "scaled": shown(growth[1]),
        "plain_largest": shown(largest[0]),
        "scaled_largest": shown(largest[1]),
        "narrow": str(NARROW),
        "broad": str(BROAD),
        "times": str(BROAD // NARROW),
        "grows": str(GROWS),
        "level": str(LEVEL),
        "sharper": str(SHARPER),
    }
