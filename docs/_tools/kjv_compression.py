"""Bits per character of compressors on the King James Bible: `python docs/_tools/kjv_compression.py [FOLDER]` prints a Markdown table."""

import bz2
import lzma
import sys
from collections.abc import Callable

import attnkit

corpus = attnkit.corpora.build({"name": "kjv", "folder": sys.argv[1] if len(sys.argv) > 1 else "data"})
chapters = {part: ["".join(document) for document in corpus.documents(part)] for part in ("train", "validation", "test")}
text = {part: "".join(documents) for part, documents in chapters.items()}
compressors: dict[str, Callable[[bytes], bytes]] = {
    "xz -9e": lambda raw: lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME),
    "bz2": lambda raw: bz2.compress(raw, 9),
}


def bits(compress: Callable[[bytes], bytes], written: str) -> int:
    """Return the compressed size of a text in bits."""
    return 8 * len(compress(written.encode()))


print("| compressor | whole text | test alone | test after train |\n|---|---|---|---|")
for name, compress in compressors.items():
    left = {part: iter(documents) for part, documents in chapters.items()}
    order = ({10: "validation", 0: "test"}.get(i % 20, "train") for i in range(1, sum(map(len, chapters.values())) + 1))
    whole = "".join(next(left[part]) for part in order)  # in the Bible's order, since concatenated parts compress worse
    alone, train = bits(compress, text["test"]), bits(compress, text["train"])
    after = bits(compress, text["train"] + text["test"]) - train
    columns = (bits(compress, whole) / len(whole), alone / len(text["test"]), after / len(text["test"]))
    print(f"| {name} | " + " | ".join(f"{value:.3f}" for value in columns) + " |")
