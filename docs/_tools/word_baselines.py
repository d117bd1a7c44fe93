"""Simple baselines for recipes with data from a script: kjv.py, fashion_mnist.py, libreoffice_help.py or spoken_words.py.

    python docs/_tools/word_baselines.py data [NAME ...]

NAME is one of tagging, questions, captions, titles, modules, speech (default: all).
"""

import json
import math
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import torch
from torch.nn.functional import interpolate
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from attnkit.corpus.signals import stored
from attnkit.corpus.sound_reading import read_sound
from attnkit.task.metrics import GENERATION_METRICS, Rouge
from attnkit.task.question_answering import word_f1


def rows(folder: Path, part: str) -> list[dict[str, str]]:
    """Return the rows of a split."""
    return [json.loads(line) for line in (folder / f"{part}.jsonl").read_text().splitlines()]


def tagging(folder: Path) -> None:
    """Measure the most frequent tag of each word; for unknown words, the most frequent tag of all."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows(folder, "train"):
        for word, tag in zip(row["words"].lower().split(), row["tags"].split(), strict=True):
            counts[word][tag] += 1
    overall = sum(counts.values(), Counter())
    names = sorted(overall)
    found, true = [], []
    for row in rows(folder, "test"):
        for word, tag in zip(row["words"].lower().split(), row["tags"].split(), strict=True):
            found.append(names.index((counts.get(word) or overall).most_common(1)[0][0]))
            true.append(names.index(tag))
    answers, labels = torch.tensor(found), torch.tensor(true)
    accuracy = MulticlassAccuracy(num_classes=len(names), average="micro")(answers, labels)
    f1 = MulticlassF1Score(num_classes=len(names), average="macro")(answers, labels)
    print(f"tagging: accuracy {accuracy:.4f}, f1 {f1:.4f}, {len(true):,} words")


def questions(folder: Path) -> None:
    """Measure the most frequent answer to a question that occurs in the passage; if none does, the first word."""
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


def captions(folder: Path) -> None:
    """Measure the class with the nearest mean image, for single images: a captioner that knows where each image is."""
    train, test = (np.load(folder / f"{part}.npz") for part in ("train", "test"))
    pixels, labels = train["images"].reshape(-1, 784)[:55_000].astype(np.float32), train["labels"][:55_000]
    means = np.stack([pixels[labels == c].mean(0) for c in range(10)])
    images = test["images"].reshape(-1, 784).astype(np.float32)
    found = ((means**2).sum(1) - 2 * images @ means.T).argmin(1)
    a = float((found == test["labels"]).mean())
    print(f"captions: token error rate {1 - a:.4f}, expected sequence error rate {1 - (a + a**2 + a**3) / 3:.4f}")


def titles(folder: Path) -> None:
    """Measure the first words of the lead; validation chooses how many."""

    def score(part: str, count: int, name: str) -> float:
        metric, found = Rouge(name), rows(folder, part)  # type: ignore[arg-type]
        metric.update([" ".join(row["lead"].split()[:count]) for row in found], [[row["title"]] for row in found])
        return float(metric.compute())

    best = max(range(1, 20), key=lambda count: score("validation", count, "rougeL"))
    test = ", ".join(f"{name} {score('test', best, name):.2f}" for name in ("rouge1", "rouge2", "rougeL"))
    print(f"titles: {test}, the first {best} words, {len(rows(folder, 'test'))} pages")


def modules(folder: Path) -> None:
    """Measure the most frequent module, and naive Bayes over the words of the lead (multinomial, add-one smoothing)."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    prior: Counter[str] = Counter()
    for row in rows(folder, "train"):
        prior[row["module"]] += 1
        counts[row["module"]].update(bare(row["lead"]))
    known = len(set().union(*counts.values()))

    def best(words: tuple[str, ...]) -> str:
        def score(module: str) -> float:
            count = counts[module]
            return math.log(prior[module]) + sum(math.log((count[word] + 1) / (count.total() + known)) for word in words)

        return max(prior, key=score)

    test = rows(folder, "test")
    wrong = sum(row["module"] != prior.most_common(1)[0][0] for row in test) / len(test)
    bayes = sum(row["module"] != best(bare(row["lead"])) for row in test) / len(test)
    print(f"modules: error rate {wrong:.4f} of the most frequent one, {bayes:.4f} of naive Bayes, {len(test)} pages")


def speech(folder: Path) -> None:
    """Measure the phonemes of the nearest training sound, by Euclidean distance of the frames, each sound stretched to 16 frames."""
    sounds, texts = {}, {}
    for part in ("train", "test"):
        table = [line.split("\t") for line in (folder / f"{part}.tsv").read_text().splitlines()[1:]]
        frames = (read_sound(stored(folder / file)) for file, _ in table)
        sounds[part] = torch.stack([interpolate(f.T[None], 16, mode="linear", align_corners=True).flatten() for f in frames])
        texts[part] = [text for _, text in table]
    nearest = torch.cdist(sounds["test"], sounds["train"]).argmin(1)
    found = [texts["train"][i] for i in nearest]
    for name in ("token_error_rate", "sequence_error_rate"):
        metric = GENERATION_METRICS[name](str.split)
        metric.update(found, [[text] for text in texts["test"]])
        print(f"speech: {name} {float(metric.compute()):.4f}, {len(found)} words")


def bare(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case, without punctuation around them."""
    return tuple(word.strip(".,:;?!()").lower() for word in text.split())


FOLDERS = {
    tagging: "kjv/words",
    questions: "kjv/questions",
    captions: "fashion_mnist",
    titles: "libreoffice_help/pages",
    modules: "libreoffice_help/pages",
    speech: "spoken_words",
}

if __name__ == "__main__":
    names = sys.argv[2:]
    for baseline, place in FOLDERS.items():
        if not names or baseline.__name__ in names:
            baseline(Path(sys.argv[1]) / place)
