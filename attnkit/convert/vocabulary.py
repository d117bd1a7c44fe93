"""The tokenizer of a published model as a `bpe`, and the mapping between rows of its tables and attnkit's ids."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_args

import torch
from tokenizers import decoders
from torch import Tensor

from attnkit.convert.folder import read_mapping
from attnkit.registry import ConfigurationError, tokenizers
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.base import Normalization
from attnkit.tokenizer.bpe import split_of, steps_of

SPECIAL = len(Tokenizer.special_tokens)
ENDS = "attnkit"
"""The key, in the JSON of a tokenizer's model, of the tokens that begin and end texts, with their ids."""
TABLE, HEAD = "embedding.weight", "head.projection.weight"
REWRITTEN = "AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER) of transformers"
"""A call that rewrites all files of a tokenizer."""
BERT = {"do_lower_case": "lowercase", "tokenize_chinese_chars": "handle_chinese_chars", "strip_accents": "strip_accents"}
"""The settings of BERT's tokenizers, with their names in tokenizer.json."""


@dataclass(frozen=True)
class Vocabulary:
    """A tokenizer, and the mapping between published and attnkit's rows of the tables of embeddings and logits.

    attnkit's ids are pad, bos, eos and unk, followed by the published ids in order. bos and eos stand for the published tokens that begin
    and end texts, which have no other id in attnkit unless texts may contain them. The ids `excluded` are never predicted, so the
    distribution over the others is that of the published model.
    """

    tokenizer: dict[str, Any]  # the spec of a `bpe`
    size: int  # number of published ids
    bos: int  # the published id of the token that begins texts
    eos: int  # the published id of the token that ends texts, which may be the same
    apart: dict[str, int]  # those of these two tokens that no text contains, with their published ids
    pad: int | None = None  # the published id of padding, if there is one

    @property
    def kept(self) -> list[int]:
        """The published ids of attnkit's tokens after the special ones."""
        gone = set(self.apart.values())
        return [i for i in range(self.size) if i not in gone]

    @property
    def read(self) -> list[int]:
        """The input id in attnkit of each published id."""
        ends = {self.eos: Tokenizer.eos_id} | {self.bos: Tokenizer.bos_id}
        ours = ends | {theirs: SPECIAL + i for i, theirs in enumerate(self.kept)}
        return [ours[i] for i in range(self.size)]

    @property
    def written(self) -> list[int]:
        """The output id in attnkit of each published id."""
        ours = {self.bos: Tokenizer.bos_id} | {theirs: SPECIAL + i for i, theirs in enumerate(self.kept)} | {self.eos: Tokenizer.eos_id}
        return [ours[i] for i in range(self.size)]

    @property
    def names(self) -> dict[str, str]:
        """The names of the tokens that begin and end texts, and of padding if it is a special token."""
        trained = json.loads(self.tokenizer["model"])
        tokens = {i: token for token, i in self.ids(trained["model"]["vocab"]).items()}
        special = {token["content"] for token in trained["added_tokens"] if token["special"]}
        pad = {} if self.pad is None or tokens[self.pad] not in special else {"pad": tokens[self.pad]}
        return {"bos": tokens[self.bos], "eos": tokens[self.eos], **pad}

    def ids(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return the published ids of all tokens, from those in the tokenizer's model (`own`)."""
        return {token: self.kept[i] for token, i in own.items()} | self.apart

    @property
    def excluded(self) -> list[int]:
        """The ids of attnkit that are never predicted."""
        return sorted(set(range(SPECIAL + len(self.kept))) - set(self.written))

    def ours(self, theirs: Tensor) -> Tensor:
        """Return attnkit's table of embeddings, or the matrix of the output map, from the published one [V, D]."""
        none = torch.zeros_like(theirs[:1])
        return torch.cat([none, theirs[[self.bos, self.eos]], none, theirs[self.kept]])

    def theirs(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the weights of the published model from those of the imported one, and notes on what training has changed."""
        table, read, notes = weights[TABLE], self.read, []
        inputs, outputs = table[read], weights.get(HEAD, table)[self.written]
        found = {**weights, TABLE: inputs}
        if HEAD in weights or not same(inputs, outputs):
            found[HEAD] = outputs
        if found.keys() != weights.keys():
            notes.append("tie_word_embeddings is false, because a token that is both read in texts and written as <eos> was trained as two")
        for ours, theirs in ((Tokenizer.bos_id, self.bos), (Tokenizer.eos_id, self.eos)):
            if read[theirs] != ours and not same(table[ours], inputs[theirs]):
                token = Tokenizer.special_tokens[ours]
                notes.append(f"{token} in an input is read as another token, because the published model has a single token for both")
        return found, notes


def same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are exactly equal; NaN equals NaN."""
    return torch.allclose(one, other, rtol=0.0, atol=0.0, equal_nan=True)


def vocabulary_of(tokenizer: Mapping[str, Any]) -> Vocabulary | None:
    """Return the vocabulary of the published model that a tokenizer's spec was made from, or None if attnkit trained the tokenizer."""
    pipeline = json.loads(tokenizer.get("model") or "{}")
    ends: Any = pipeline.get(ENDS)
    if not isinstance(ends, Mapping) or not isinstance(apart := ends.get("apart"), dict):
        return None
    own: dict[str, int] = pipeline["model"]["vocab"]
    bos, eos, pad = (cast(int, ends.get(name)) for name in ("bos", "eos", "pad"))
    size, gone = len(own) + len(apart), list(apart.values())
    are_ids = all(type(i) is int and 0 <= i < size for i in (bos, eos, *([] if pad is None else [pad]), *gone))
    if not are_ids or not set(gone) <= {bos, eos} or len(set(gone)) < len(gone) or apart.keys() & own.keys():
        return None
    return Vocabulary(dict(tokenizer), size, bos, eos, apart, pad)


def without_tokenizer(folder: Path) -> str:
    """Return advice for models that cannot be loaded as a task."""
    return f"In Python, `from attnkit import convert; convert.load({str(folder)!r})` returns the model, with the ids of its own tokenizer"


@contextmanager
def tokenizer_of(folder: Path) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Yield the content of tokenizer.json and, if it exists, tokenizer_config.json; errors inside the block are reported for the file."""
    path, second = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if not path.is_file():
        raise ConfigurationError(f"{folder} has no tokenizer.json: {REWRITTEN} makes it from other files. {without_tokenizer(folder)}")
    pipeline, settings = read_mapping(path), read_mapping(second) if second.is_file() else {}
    try:
        _require_agreement(pipeline, settings)
        yield pipeline, settings
    except ConfigurationError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"it lacks {error}" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"{path} is not a tokenizer that attnkit can import: {reason}") from error


def named(settings: Mapping[str, Any], role: str) -> Any:
    """Return the name of the token with a role in tokenizer_config.json, or None."""
    token = settings.get(f"{role}_token")
    return token["content"] if isinstance(token, Mapping) else token


def _require_agreement(pipeline: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Raise a `ValueError` if settings contradict the pipeline, which transformers' classes then change accordingly."""
    if settings.get("tokenizer_class") in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return
    steps = steps_of(pipeline.get("pre_tokenizer"), "pretokenizers")
    found: dict[str, Any] = {"add_prefix_space": any(step.get("add_prefix_space") for step in steps)}
    for step in steps_of(pipeline.get("normalizer"), "normalizers"):
        if step["type"] == "BertNormalizer":
            found |= {name: step[own] for name, own in BERT.items()}
            settings = {"do_lower_case": True, **settings}
        if step["type"] == "Lowercase":
            raise ValueError(
                "it lowercases texts, which only the tokenizer_class PreTrainedTokenizerFast does in all versions of transformers"
            )
    for name, value in found.items():
        if settings.get(name) not in (None, value):
            raise ValueError(
                f"transformers reads it with {name}: {settings[name]!r}, from tokenizer_config.json or by default, instead of {value!r}: "
                f"make the two files agree, for example with {REWRITTEN}"
            )


def read_vocabulary(folder: Path, size: int, bos: int, eos: int, pad: int | None = None) -> Vocabulary:
    """Return the vocabulary of a published model with `size` ids; the padding token is the one named in its files, or else `pad`.

    Raise if there is no tokenizer.json, or it asks for something that `bpe` does not support.
    """
    with tokenizer_of(folder) as (pipeline, settings):
        spec = bpe_of(pipeline, size)
        trained = json.loads(spec["model"])
        pad = trained["model"]["vocab"].get(named(settings, "pad"), pad)
    own = list(trained["model"]["vocab"])
    apart = {own[i]: i for i in dict.fromkeys((bos, eos)) if not is_in_texts(own[i], i, trained, spec)}
    ids = {token: i for i, token in enumerate(token for token in own if token not in apart)}
    trained["model"]["vocab"] = ids
    trained["added_tokens"] = [{**token, "id": ids.get(token["content"], token["id"])} for token in trained["added_tokens"]]
    trained[ENDS] = {"bos": bos, "eos": eos, "pad": pad, "apart": apart}
    spec |= {"vocab_size": SPECIAL + len(ids), "model": json.dumps(trained, ensure_ascii=False)}
    return Vocabulary(spec, size, bos, eos, apart, pad)


def is_in_texts(token: str, i: int, trained: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Return whether a text may contain this token, or a merge needs it."""
    merges = (merge.split(" ") if isinstance(merge, str) else merge for merge in trained["model"]["merges"])
    if len(token) == 1 or any(token in (*pair, "".join(pair)) for pair in merges):
        return True
    if any(added["content"] == token and not added["special"] for added in trained["added_tokens"]):
        return True
    is_word = trained["model"].get("ignore_merges")  # a word that is a token becomes that token
    first = SPECIAL + len(spec.get("extra_tokens") or ())
    return bool(is_word) and first + i in tokenizers.build(spec).encode(decoders.ByteLevel().decode([token]))


def bpe_of(pipeline: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the spec of a `bpe` with a published model's `size` ids, or raise a `ValueError` if it does not support the pipeline."""
    steps = steps_of(pipeline.get("normalizer"), "normalizers")
    is_lower = steps[-1:] == [{"type": "Lowercase"}]
    spec = {"name": "bpe", "split": split_of(pipeline), "normalization": form_of(steps[: len(steps) - is_lower]), "lowercase": is_lower}
    if (decoder := pipeline.get("decoder") or {}).get("type") != "ByteLevel":
        raise ValueError(f"it decodes tokens with {decoder.get('type')}, not ByteLevel")
    model, added = pipeline["model"], pipeline.get("added_tokens") or ()
    tokens = tokens_of(model["vocab"], added, size)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    parsed = [token for token in added if not token["special"]]
    if other := [token["content"] for token in parsed if spec["normalization"] != "none" and not token["content"].isascii()]:
        raise ValueError(f"it reads {other[0]!r} before it normalises a text")
    trained = {
        **{key: pipeline.get(key) for key in ("normalizer", "pre_tokenizer")},
        "model": {**model, "vocab": {token: i for i, token in enumerate(tokens)}, "merges": merges}, "added_tokens": list(added),
    }  # fmt: skip
    return {**spec, "vocab_size": SPECIAL + size, "model": json.dumps(trained, ensure_ascii=False)}


def form_of(steps: Sequence[Mapping[str, Any]]) -> str:
    """Return the Unicode form of the normalisation steps, or raise a `ValueError` unless there is at most one, of a known form."""
    if len(steps) == 1 and steps[0].keys() == {"type"} and steps[0]["type"] in get_args(Normalization):
        return str(steps[0]["type"])
    if steps:
        raise ValueError(f"it normalises texts with {' and '.join(step['type'] for step in steps)}")
    return "none"


def tokens_of(vocabulary: Mapping[str, int], added: Sequence[Mapping[str, Any]], size: int) -> Sequence[str]:
    """Return the token of each published id; unused ids get a token that no text contains."""
    ids = {**vocabulary, **{token["content"]: token["id"] for token in added}}
    tokens = {i: token for token, i in ids.items()}
    if len(tokens) < len(ids) or not all(type(i) is int and 0 <= i < size for i in tokens):
        raise ValueError(f"its ids are not distinct numbers below the {size} of config.json")
    if other := [token for token, i in vocabulary.items() if ids[token] != i]:
        raise ValueError(f"it has two ids for {other[0]!r}")
    return [tokens.get(i, f"<unused {i}>") for i in range(size)]
