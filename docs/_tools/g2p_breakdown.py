"""Break down the test error of a CMUdict model: `python docs/_tools/g2p_breakdown.py CHECKPOINT BEAM_SIZE` prints a Markdown table."""

import sys

import attnkit
from attnkit.corpus.base import references
from attnkit.task import Seq2Seq

task = Seq2Seq.load(sys.argv[1])
corpus = attnkit.corpora.build("cmudict")
listed = corpus.references("test")  # every pronunciation in the dictionary
in_part = references(corpus.pairs("test"))  # only those in the test part
trained = {word for word, _ in corpus.pairs("train")}
words = list(listed)
outputs = dict(zip(words, task.generate(words, beam_size=int(sys.argv[2])), strict=True))


def row(label: str, chosen: list[str], right: dict[str, list[str]]) -> str:
    """Return a row of the table: how many of the chosen words have no correct output."""
    wrong = sum(outputs[word] not in right[word] for word in chosen)
    return f"| {label} | {len(chosen):,} | {100 * wrong / len(chosen):.1f} |"


print("| test words | number | WER, % |\n|---|---|---|")
print(row("all, any listed pronunciation is correct", words, listed))
print(row("all, only pronunciations in the test part are correct", words, in_part))
print(row("words without an entry in the training part", [w for w in words if w not in trained], listed))
for shortest, longest in ((1, 4), (5, 6), (7, 8), (9, 10), (11, 99)):
    label = f"{shortest} to {longest} letters" if longest < 99 else f"{shortest} letters or more"
    print(row(label, [w for w in words if shortest <= len(w) <= longest], listed))
