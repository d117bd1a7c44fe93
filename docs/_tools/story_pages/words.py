"""Word vectors: words that are used alike get similar vectors."""

import random
from typing import Any

import torch

import attnkit
from attnkit.embedding.similarity import WordSpace
from attnkit.task import Task
from story_pages.base import SEEDS, SENTENCES, Language, Rows, at, fit, percent, shown

FIGURE: dict[str, Any] = {"x": "steps", "y": ["related_near", "cosine"]}
STEPS = (0, 200, 800)
NEAR, SHOWN = 10, ("king", "bread", "sea")
SHARE = 0.1  # minimum fraction of related pairs that are near
TIMES = 10  # as many must be near as of pairs at random, and as before training
DATA = {
    "name": "text",
    "corpus": "kjv",
    "tokenizer": {"name": "word", "lowercase": True, "punctuation": "apart", "min_count": 10},
    "context": 256,
    "batch_tokens": 2048,
}


def related(words: list[str]) -> list[tuple[str, str]]:
    """Return pairs of a word and its form in -s, -ed or -eth."""
    known = set(words)
    return [(w, w + end) for w in words if len(w) > 2 and w.isalpha() for end in ("s", "ed", "eth") if w + end in known]


def strangers(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the first words of pairs with the second words of others."""
    seconds = [b for _, b in pairs]
    random.Random(0).shuffle(seconds)
    return [(a, b) for (a, _), b in zip(pairs, seconds, strict=True)]


def near(space: WordSpace, pairs: list[tuple[str, str]]) -> tuple[float, float]:
    """Return how often the second word is among the nearest to the first, and the mean cosine of both."""
    found = [b in {word for word, _ in space.neighbours(a, NEAR)} for a, b in pairs]
    vectors = torch.nn.functional.normalize(space.vectors, dim=-1)
    cosine = (vectors[[space.id(a) for a, _ in pairs]] * vectors[[space.id(b) for _, b in pairs]]).sum(-1)
    return sum(found) / len(found), float(cosine.mean())


def task_of(data: Any, seed: int) -> Task:
    """Return new vectors."""
    torch.manual_seed(seed)
    task: Task = attnkit.tasks.build(
        {
            "name": "word_vectors",
            "objective": "skip_gram",
            "d_model": 64,
            "window": 5,
            "negatives": 5,
            "subsample": 1e-3,
            "tokenizer": data.tokenizer_spec,
            "counts": data.token_counts,
            "optimizer": {"name": "adam", "lr": 1e-2},
            "schedule": "constant",
            "questions": [],
        }
    )
    return task


def measure() -> Rows:
    """Return how close forms of a word are after some steps of skip-gram on the King James Bible, compared to shuffled pairs."""
    data = attnkit.datasets.build(DATA)
    rows = []
    for seed in SEEDS:
        for steps in STEPS:
            task: Any = task_of(data, seed)
            task.configure_model()
            if steps:
                fit(task, data, steps=steps)
            pairs = related(task.space.words)
            for label, chosen in (("related", pairs), ("shuffled", strangers(pairs))):
                found, cosine = near(task.space, chosen)
                neighbours = {word: " ".join(w for w, _ in task.space.neighbours(word, 5)) for word in SHOWN}
                rows.append(
                    {
                        "model": label,
                        "seed": seed,
                        "steps": steps,
                        "related_near": found,
                        "cosine": cosine,
                        "pairs": len(pairs),
                        **neighbours,
                    }
                )
    return rows


def verdict(rows: Rows, language: Language) -> str:
    """Return the verdict in words."""
    share = at(rows, "related", "steps", STEPS[-1], "related_near")
    others = at(rows, "shuffled", "steps", STEPS[-1], "related_near"), at(rows, "related", "steps", 0, "related_near")
    return language.verdict(holds=share > SHARE and share > TIMES * max(others))


def values(rows: Rows, language: Language) -> dict[str, str]:
    """Return the text of the page's variables."""
    last = {label: {y: at(rows, label, "steps", STEPS[-1], y) for y in FIGURE["y"]} for label in ("related", "shuffled")}
    shown_rows = [row for row in rows if row["model"] == "related" and row["steps"] in (0, STEPS[-1])]
    tables = {
        name: [
            {"word": word, "words around it (window 1)": " ".join(words[max(0, i - 1) : i] + words[i + 1 : i + 2])}
            for i, word in enumerate(words)
        ]
        for name, words in SENTENCES.items()
    }
    return {
        "worked": language.worked(tables),
        "table": language.table(
            [{"pairs": row["model"], "steps": row["steps"], "near": percent(row["related_near"]), "cosine": row["cosine"]} for row in rows]
        ),
        "neighbours": language.table([{"word": w, **{str(row["steps"]): row[w] for row in shown_rows}} for w in SHOWN]),
        "pairs": str(rows[0]["pairs"]),
        "near": f"{100 * last['related']['related_near']:.2f} %",
        "stranger": f"{100 * last['shuffled']['related_near']:.2f} %",
        "share": percent(SHARE),
        "times": str(TIMES),
        "cosine": shown(last["related"]["cosine"]),
        "stranger_cosine": shown(last["shuffled"]["cosine"]),
        "steps": str(STEPS[-1]),
        "count": str(NEAR),
    }
