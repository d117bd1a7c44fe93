"""The tokenizer of a published model as a `bpe`, and which rows of its tables are which ids of ours."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor

from attnkit.files import LARGEST_JSON, parse_json, read_bytes
from attnkit.registry import ConfigurationError
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.base import Normalization
from attnkit.tokenizer.bpe import split_of

SPECIAL = len(Tokenizer.special_tokens)
ENDS = "attnkit"
"""The key in the JSON of a tokenizer's model for the ids, theirs, of the tokens that begin and end a text."""
NEVER = -1e4
"""The logit of an id that the model cannot write; its probability is zero in every precision."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and the rows of the tables of embeddings and logits.

    Our ids are those of pad, bos, eos and unk, and then all of theirs in order. bos and eos have the rows of their tokens. eos is written
    in place of theirs, and pad, bos and unk are never written, so the distribution over the others is theirs.

    Args:
        tokenizer: The spec of a `bpe`.
        size: The number of their ids.
        bos: Their id of the token that begins a text.
        eos: Their id of the token that ends one, or None.
    """

    tokenizer: dict[str, Any]
    size: int
    bos: int
    eos: int | None

    def embedding(self, theirs: Tensor) -> Tensor:
        """Return our table [4 + V, D] of embeddings, or of the linear map to the logits, from theirs [V, D]."""
        none = torch.zeros_like(theirs[:1])
        end = none if self.eos is None else theirs[self.eos : self.eos + 1]
        return torch.cat([none, theirs[self.bos : self.bos + 1], end, none, theirs])

    def theirs(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """Return the weights of the published model from those of the imported one, or None if they were trained further."""
        kept = {name: weight for name, weight in weights.items() if name not in BIASES}
        tables = {name: weight for name, weight in kept.items() if name in TABLES}
        kept |= {name: table[SPECIAL:] for name, table in tables.items()}
        biases = [weights[name] for name in BIASES if name in weights]
        is_same = len(biases) == 1 and biases[0].equal(self.bias().to(biases[0].dtype))
        return kept if is_same and all(self.embedding(kept[name]).equal(table) for name, table in tables.items()) else None

    def bias(self) -> Tensor:
        """Return the biases [4 + V] of the logits."""
        bias = torch.zeros(SPECIAL + self.size)
        never = [Tokenizer.pad_id, Tokenizer.bos_id, Tokenizer.unk_id, Tokenizer.eos_id if self.eos is None else SPECIAL + self.eos]
        bias[never] = NEVER
        return bias


TABLES = ("embedding.weight", "head.projection.weight")
BIASES = ("head.bias", "head.projection.bias")


def vocabulary_of(tokenizer: Mapping[str, Any]) -> Vocabulary | None:
    """Return the vocabulary of a published model from the spec of its tokenizer, or None for one that attnkit trained."""
    pipeline = json.loads(tokenizer.get("model") or "{}")
    if not isinstance(ends := pipeline.get(ENDS), Mapping):
        return None
    ids = range(len(pipeline["model"]["vocab"]))
    bos, eos = ends.get("bos"), ends.get("eos")
    if not isinstance(bos, int) or not isinstance(eos, int | None) or bos not in ids or (eos is not None and eos not in ids):
        return None
    return Vocabulary(dict(tokenizer), len(ids), bos, eos)


def without_tokenizer(folder: Path) -> str:
    """Return advice for a model whose task cannot be made."""
    return f"In Python, `from attnkit import convert; convert.load({str(folder)!r})` returns the model, with the ids of its own tokenizer"


@contextmanager
def pipeline_of(folder: Path) -> Iterator[Mapping[str, Any]]:
    """Give the content of tokenizer.json, and say of what file an error is."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigurationError(f"{folder} has no tokenizer.json. {without_tokenizer(folder)}")
    try:
        yield parse_json(read_bytes(path, limit=LARGEST_JSON))
    except ConfigurationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"{path} is no tokenizer that attnkit can be given: {reason}") from error


def read_vocabulary(folder: Path, size: int, bos: int, eos: int | None) -> Vocabulary:
    """Return the vocabulary of a published model with `size` ids.

    Raises:
        ConfigurationError: There is no tokenizer.json, or a `bpe` cannot do what it says.
    """
    with pipeline_of(folder) as pipeline:
        spec = {"name": "bpe", "split": split_of(pipeline), "normalization": _normalization(pipeline.get("normalizer"))}
        if pipeline.get("truncation"):
            raise ValueError("it truncates texts")
        if (decoder := pipeline.get("decoder") or {}).get("type") != "ByteLevel":
            raise ValueError(f"it makes texts of tokens by {decoder.get('type')}, not by ByteLevel")
        model, added = pipeline["model"], pipeline.get("added_tokens") or ()
        tokens = tokens_of(model["vocab"], added, size)
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        parsed = [token for token in added if not token["special"]]
        if other := [token["content"] for token in parsed if spec["normalization"] != "none" and not token["content"].isascii()]:
            raise ValueError(f"it reads {other[0]!r} before it normalises a text")
    trained = {
        **{key: pipeline.get(key) for key in ("normalizer", "pre_tokenizer")},
        "model": {**model, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges},
        **({"added_tokens": list(added)} if added else {}),
        ENDS: {"bos": bos, "eos": eos},
    }
    return Vocabulary({**spec, "vocab_size": SPECIAL + size, "model": json.dumps(trained, ensure_ascii=False)}, size, bos, eos)


def _normalization(normalizer: Mapping[str, Any] | None) -> str:
    if normalizer is None:
        return "none"
    if normalizer.keys() == {"type"} and normalizer["type"] in get_args(Normalization):
        return str(normalizer["type"])
    raise ValueError(f"it normalises texts by {normalizer['type']}")


def tokens_of(vocabulary: Mapping[str, int], added: Sequence[Mapping[str, Any]], size: int) -> Sequence[str]:
    """Return the token of each of their ids; ids that no token has get one that no text contains."""
    ids = {**vocabulary, **{token["content"]: token["id"] for token in added}}
    tokens = {i: token for token, i in ids.items()}
    if len(tokens) < len(ids) or not all(type(i) is int and 0 <= i < size for i in tokens):
        raise ValueError(f"its ids are not different numbers below the {size} of config.json")
    if other := [token for token, i in vocabulary.items() if ids[token] != i]:
        raise ValueError(f"it has two ids for {other[0]!r}")
    return [tokens.get(i, f"<unused {i}>") for i in range(size)]
