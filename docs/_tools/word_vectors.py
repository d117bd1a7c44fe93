"""Analogies solved by word vectors, and by PPMI with SVD of the same text: `python docs/_tools/word_vectors.py CHECKPOINT... [--data.X Y]`.

Prints two Markdown tables: for inflected pairs whose words are both in the vocabulary (come, cometh; son, sons), the fraction of questions
`a : a' = b : ?` whose answer b' has the nearest vector, or one of the ten nearest; and the neighbours of some words.
"""

import itertools
import random
import sys

import numpy as np
import torch

from attnkit import datasets
from attnkit.embedding.similarity import WordSpace
from attnkit.task.word_vectors import WordVectors
from attnkit.tokenizer import Tokenizer

WINDOW, DIMENSIONS, QUESTIONS = 5, 100, 3000
SHOWN = ("king", "bread", "moses", "sea", "seven")
DATA = {"name": "text", "corpus": "kjv", "tokenizer": {"name": "word", "lowercase": True, "punctuation": "apart", "min_count": 5}}


def ppmi_svd() -> WordSpace:
    """Return the vectors of Levy and Goldberg (2014), without a shift: positive PMI, then SVD with the roots of the singular values."""
    data = datasets.build(DATA)
    ids = np.asarray(data.packed("train").ids, dtype=np.int64)
    size, special = len(data.tokenizer), len(Tokenizer.special_tokens)
    documents = (ids == Tokenizer.eos_id).cumsum()
    counts = np.zeros((size, size), dtype=np.float32)
    for offset in range(1, WINDOW + 1):  # nearer words count more, as in word2vec
        same = documents[offset:] == documents[:-offset]
        pairs = (ids[offset:][same], ids[:-offset][same])
        for one, other in (pairs, pairs[::-1]):
            np.add.at(counts, (one, other), (WINDOW + 1 - offset) / WINDOW)
    counts = counts[special:, special:]
    context = counts.sum(0) ** 0.75
    ratio = counts * context.sum() / np.outer(counts.sum(1), context).clip(1e-9)
    ppmi = torch.from_numpy(np.log(ratio.clip(1)))
    torch.manual_seed(0)
    u, s, _ = torch.svd_lowrank(ppmi, q=DIMENSIONS, niter=4)
    return WordSpace(data.tokenizer.tokens(range(special, size)), u * s.sqrt())


def questions(words: list[str]) -> dict[str, list[tuple[str, str, str, str]]]:
    """Return questions of two relations, equal for equal vocabularies."""
    known, found = set(words), {}
    for suffix in ("s", "eth"):
        pairs = [(w, w + suffix) for w in words if len(w) > 2 and w.isalpha() and w + suffix in known]
        tests = [(*one, *other) for one, other in itertools.permutations(pairs, 2)]
        found[f"-{suffix}"] = random.Random(0).sample(tests, min(QUESTIONS, len(tests)))
    return found


spaces = {"PPMI and SVD": ppmi_svd()}
for path in sys.argv[1:]:
    task = WordVectors.load(path)
    spaces[task.config.objective] = task.space
tests = questions(spaces["PPMI and SVD"].words)
print("| vectors | " + " | ".join(f"{name} first | {name} first ten" for name in tests) + " |\n|---" + "|---" * 2 * len(tests) + "|")
for label, space in spaces.items():
    cells = []
    for rows in tests.values():
        found = [[word for word, _ in space.analogy(a, b, c, 10)] for a, b, c, _ in rows]
        ranks = np.array([words.index(row[3]) if row[3] in words else 10 for words, row in zip(found, rows, strict=True)])
        cells += [f"{np.mean(ranks < 1):.1%}", f"{np.mean(ranks < 10):.1%}"]
    print(f"| {label} | {' | '.join(cells)} |")
print(f"\n({', '.join(f'{len(rows):,} questions {name}' for name, rows in tests.items())})\n")
print("| word | " + " | ".join(spaces) + " |\n|---" + "|---" * len(spaces) + "|")
for word in SHOWN:
    print(f"| {word} | " + " | ".join(" ".join(w for w, _ in space.neighbours(word, 5)) for space in spaces.values()) + " |")
