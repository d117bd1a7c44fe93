"""Plain baselines of the recipes tagging/kjv, questions/kjv and image/captions, from the files of the scripts kjv.py and fashion_mnist.py.

python docs/_tools/word_baselines.py data
"""

import json
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from attnkit.task.question_answering import word_f1


def rows(folder: Path, part: str) -> list[dict[str, str]]:
    """Return the rows of a split."""
    return [json.loads(line) for line in (folder / f"{part}.jsonl").read_text().splitlines()]


def tags(folder: Path) -> None:
    """The most frequent tag of each word; of unknown words, the most frequent of all."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows(folder, "train"):
        for word, tag in zip(row["words"].lower().split(), row["tags"].split(), strict=True):
            counts[word][tag] += 1
    every = sum(counts.values(), Counter())
    names = sorted(every)
    found, true = [], []
    for row in rows(folder, "test"):
        for word, tag in zip(row["words"].lower().split(), row["tags"].split(), strict=True):
            found.append(names.index((counts.get(word) or every).most_common(1)[0][0]))
            true.append(names.index(tag))
    answers, labels = torch.tensor(found), torch.tensor(true)
    accuracy = MulticlassAccuracy(num_classes=len(names), average="micro")(answers, labels)
    f1 = MulticlassF1Score(num_classes=len(names), average="macro")(answers, labels)
    print(f"tagging: accuracy {accuracy:.4f}, f1 {f1:.4f}, {len(true):,} words")


def questions(folder: Path) -> None:
    """The most frequent answer to a question that occurs in the passage; if none does, the first word."""
    counts: dict[str, Counter[tuple[str, ...]]] = defaultdict(Counter)
    for row in rows(folder, "train"):
        counts[row["question"]][bare(row["answer"])] += 1
    exact = f1 = 0.0
    test = rows(folder, "test")
    for row in test:
        words = row["passage"].split()
        plain = bare(row["passage"])
        answer = words[0]
        for known, _ in counts[row["question"]].most_common():
            places = [i for i in range(len(words)) if plain[i : i + len(known)] == known]
            if places:
                answer = " ".join(words[places[0] : places[0] + len(known)])
                break
        exact += answer.lower() == row["answer"].lower()
        f1 += word_f1(answer, row["answer"])
    print(f"questions: exact match {exact / len(test):.4f}, f1 {f1 / len(test):.4f}, {len(test):,} questions")


def clothes(folder: Path) -> None:
    """The nearest mean image of a class, for single images: a captioner that is told where each image is."""
    train, test = (np.load(folder / f"{part}.npz") for part in ("train", "test"))
    pixels, labels = train["images"].reshape(-1, 784)[:55_000].astype(np.float32), train["labels"][:55_000]
    means = np.stack([pixels[labels == c].mean(0) for c in range(10)])
    images = test["images"].reshape(-1, 784).astype(np.float32)
    found = ((means**2).sum(1) - 2 * images @ means.T).argmin(1)
    a = float((found == test["labels"]).mean())
    print(f"captions: token error rate {1 - a:.4f}, expected sequence error rate {1 - (a + a**2 + a**3) / 3:.4f}")


def bare(text: str) -> tuple[str, ...]:
    """Return the words of a text without marks around them, in lower case."""
    return tuple(word.strip(".,:;?!()").lower() for word in text.split())


if __name__ == "__main__":
    data = Path(sys.argv[1])
    tags(data / "kjv" / "words")
    questions(data / "kjv" / "questions")
    clothes(data / "fashion_mnist")
