"""Naive Bayes on movie_snippets, the baseline: `python docs/_tools/naive_bayes.py [FOLDER]` prints a Markdown table.

Multinomial, with add-one smoothing, over words, or words and word pairs; trained on the training part, measured on the others.
"""

import math
import re
import sys
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch
from torchmetrics.functional.classification import multiclass_f1_score

import attnkit

Features = Callable[[str], list[str]]
Average = Literal["weighted", "micro", "macro"]  # micro F1 is accuracy


def words(text: str) -> list[str]:
    """Return the lower-case words of a text."""
    return re.findall(r"[a-z0-9']+", text.lower())


def words_and_pairs(text: str) -> list[str]:
    """Return the words, and each pair of neighbours."""
    single = words(text)
    return [*single, *map(" ".join, pairwise(single))]


def predict(train: list[tuple[str, int]], test: list[str], features: Features, classes: int) -> list[int]:
    """Return the most probable class of each test text."""
    counts = [Counter(f for text, label in train if label == c for f in features(text)) for c in range(classes)]
    prior = [math.log(sum(label == c for _, label in train) / len(train)) for c in range(classes)]
    total = [sum(count.values()) + len(set().union(*counts)) for count in counts]
    scores = [[prior[c] + sum(math.log((counts[c][f] + 1) / total[c]) for f in features(text)) for c in range(classes)] for text in test]
    return [row.index(max(row)) for row in scores]


corpus = attnkit.corpora.build({"name": "movie_snippets", "folder": sys.argv[1] if len(sys.argv) > 1 else "data"})
ids = {name: i for i, name in enumerate(("negative", "neutral", "positive"))}
train, validation, test = ([(text, ids[label]) for text, label in corpus.labelled(part)] for part in ("train", "validation", "test"))
print("| naive Bayes over | validation weighted F1 | test weighted F1 | test accuracy | test macro F1 |\n|---|---|---|---|---|")
for name, features in (("words", words), ("words and pairs", words_and_pairs)):
    figures = []
    parts: tuple[tuple[list[tuple[str, int]], tuple[Average, ...]], ...] = (
        (validation, ("weighted",)),
        (test, ("weighted", "micro", "macro")),
    )
    for part, kinds in parts:
        output = torch.tensor(predict(train, [text for text, _ in part], features, len(ids)))
        truth = torch.tensor([label for _, label in part])
        figures += [multiclass_f1_score(output, truth, num_classes=len(ids), average=kind).item() for kind in kinds]
    print(f"| {name} | " + " | ".join(f"{figure:.3f}" for figure in figures) + " |")
