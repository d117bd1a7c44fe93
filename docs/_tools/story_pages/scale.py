"""The variance of q·k grows with the width."""

from typing import Any

import torch

import attnkit
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, shown

FIGURE: dict[str, Any] = {"x": "width", "y": ["variance", "entropy", "largest_weight"], "log": "x"}
CORPUS = {"name": "copy", "length": 31, "train_rows": 64, "validation_rows": 16, "test_rows": 16}
SCORES = ("dot_product", "scaled_dot_product")


def measure() -> Rows:
    """Return the variance of logits and the sharpness of weights by width, with and without the scale, in untrained decoders."""
    data = attnkit.datasets.build({"name": "prompted_text", "corpus": CORPUS, "tokenizer": "word"})
    rows = []
    for attention in SCORES:
        for width in (16, 64, 256, 1024):
            for seed in SEEDS:
                stack = {"name": "decoder", "d_model": width, "num_layers": 1, "num_heads": 1, "attention": attention}
                torch.manual_seed(seed)
                task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": data.tokenizer_spec})
                found = attnkit.probes.build("saturation")(task, data).rows[0]
                del found["layer"]
                rows.append({"model": attention, "seed": seed, **found})
    return rows


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    growth = {m: at(rows, m, "width", 1024, "variance") / at(rows, m, "width", 16, "variance") for m in SCORES}
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
    largest = {m: at(rows, m, "width", 1024, "largest_weight") for m in growth}
    holds = growth["dot_product"] > 30 and growth["scaled_dot_product"] < 2 and largest["dot_product"] > 1.5 * largest["scaled_dot_product"]
    return {
        "verdict": language.verdict(holds=holds),
        "worked": language.worked(tables),
        "rows": language.table(rows, ["model", "width", "variance", "entropy", "largest_weight"]),
        "plain": shown(growth["dot_product"]),
        "scaled": shown(growth["scaled_dot_product"]),
        "plain_largest": shown(largest["dot_product"]),
        "scaled_largest": shown(largest["scaled_dot_product"]),
    }
