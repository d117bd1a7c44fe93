"""Hostile tokenizers."""

import json
from pathlib import Path

from tests.hostile.files.writing import text


def model(folder: Path, **changes: object) -> Path:
    from attnkit.tokenizer.bpe import BPE

    model = json.loads(BPE(vocab_size=262).train(["low lower lowest"]).spec["model"])
    parts = {key: value for key, value in changes.items() if key in ("vocab", "merges")}
    model["model"] |= parts
    return text(folder, "model.json", json.dumps(model | {k: v for k, v in changes.items() if k not in parts}))


def tokenizer_padding(folder: Path) -> Path:
    """A tokenizer that pads every text to a trillion tokens."""
    return model(
        folder,
        padding={
            "strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"
        },
    )  # fmt: skip


def tokenizer_regex(folder: Path) -> Path:
    """A tokenizer whose regular expression takes for ever."""
    return model(folder, normalizer={"type": "Replace", "pattern": {"Regex": "(a|a|aa)+$"}, "content": ""})


def tokenizer_ids(folder: Path) -> Path:
    """A tokenizer with an id beyond any embedding."""
    return model(folder, vocab={"a": 0, "b": 4_000_000_000})


def tokenizer_types(folder: Path) -> Path:
    """A tokenizer whose merges are numbers."""
    return model(folder, merges=[1, 2, 3])


def tokenizer_merges(folder: Path) -> Path:
    """A tokenizer that merges tokens which it does not have."""
    return model(folder, merges=[["low", "nowhere"]])


def tokenizer_deep(folder: Path) -> Path:
    """JSON of 100,000 lists inside each other."""
    return text(folder, "model.json", "[" * 100_000)
