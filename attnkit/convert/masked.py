"""The tokenizer of a published encoder, and the mapping between rows of its tables and attnkit's ids."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnkit.convert.vocabulary import HEAD, TABLE, bpe_of, form_of, is_in_texts, named, same, tokenizer_of, tokens_of
from attnkit.head.linear import NEVER
from attnkit.tokenizer.base import MASK
from attnkit.tokenizer.bpe import steps_of
from attnkit.tokenizer.wordpiece import LONGEST, PREFIX

ROLES = ("cls", "sep", "unk", "mask")
USUAL = {
    "WordPiece": ("[CLS]", "[SEP]", "[UNK]", "[MASK]", "[PAD]"), "BPE": ("<s>", "</s>", "<unk>", MASK, "<pad>"),
    "attnkit": ("<bos>", "<eos>", "<unk>", MASK, "<pad>"),
}  # fmt: skip
"""The usual names of the tokens in `ROLES` and of padding, for when tokenizer_config.json does not name them, and in attnkit's models."""
BIAS, OWN_BIAS = "head.bias", "head.projection.bias"
"""The bias of a head that shares the embedding table, and of one with its own matrix."""


@dataclass(frozen=True)
class MaskedVocabulary:
    """A tokenizer, and the mapping between published and attnkit's rows of the tables of embeddings and biases.

    attnkit's ids are pad, bos, eos, unk and, if the published model has one, `<mask>`, followed by all published ids in order. bos and eos
    have the rows of the published tokens that begin and end texts. attnkit's own ids are never predicted, so the distribution over the
    others is that of the published model.
    """

    tokenizer: dict[str, Any]  # the spec of a `wordpiece` or `bpe`
    rows: tuple[int, ...]  # the published ids of bos, eos, unk and, if there is one, `<mask>`
    pad: int | None = None  # the published id of padding, if known
    separators: int = 1  # number of tokens between the texts of a pair; two for RoBERTa

    @property
    def first(self) -> int:
        """The number of ids that only attnkit has."""
        return 1 + len(self.rows)

    @property
    def tokens(self) -> list[str]:
        """The published tokens, in the order of their ids."""
        if self.tokenizer["name"] == "wordpiece":
            return list(self.tokenizer["tokens"])
        ids: dict[str, int] = json.loads(self.tokenizer["model"])["model"]["vocab"]
        return sorted(ids, key=ids.__getitem__)

    @property
    def names(self) -> dict[str, str]:
        """The names of the tokens with roles."""
        tokens = self.tokens
        return {role: tokens[i] for role, i in zip((*ROLES, "pad"), (*self.rows, self.pad), strict=True) if i is not None}

    def ids(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return the published ids of all tokens, which equal those in the tokenizer's model (`own`)."""
        return dict(own)

    def embedding(self, theirs: Tensor) -> Tensor:
        """Return attnkit's table [first + V, D] from the published one [V, D]."""
        return torch.cat([torch.zeros_like(theirs[:1]), theirs[list(self.rows)], theirs])

    def bias(self, theirs: Tensor) -> Tensor:
        """Return attnkit's biases [first + V] from the published ones [V]."""
        return torch.cat([theirs.new_full((self.first,), NEVER), theirs])

    def theirs(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the weights of the published model from those of the imported one, and notes on what training has changed."""
        found, notes, first = dict(weights), [], self.first
        found[TABLE] = weights[TABLE][first:].clone()
        found[TABLE][list(self.rows)] = weights[TABLE][1:first]
        if BIAS in weights and same(weights[TABLE][first:], found[TABLE]):
            found[BIAS] = weights[BIAS][first:].clone()
        elif BIAS in weights or HEAD in weights:
            found[HEAD] = weights.get(HEAD, weights[TABLE])[first:].clone()
            found[OWN_BIAS] = found.pop(BIAS if BIAS in weights else OWN_BIAS)[first:].clone()
        if found.keys() != weights.keys():
            notes.append("tie_word_embeddings is false, because each special token was trained as two: one for input and one for output")
        return found, notes


def masked_vocabulary_of(tokenizer: Mapping[str, Any]) -> MaskedVocabulary | None:
    """Return the vocabulary of the published encoder that a tokenizer's spec was made from, or None if attnkit trained the tokenizer.

    It is recognised by its special tokens: a `wordpiece` trained by attnkit splits brackets, and a `bpe` has no special tokens.
    """
    if tokenizer["name"] not in ("bpe", "wordpiece") or tokenizer["extra_tokens"] != [MASK]:
        return None
    found = MaskedVocabulary(dict(tokenizer), ())
    tokens, trained = found.tokens, json.loads(tokenizer.get("model") or "{}")
    ids = {token: i for i, token in enumerate(tokens)}
    special = {token["content"] for token in trained.get("added_tokens", ()) if token["special"]} if trained else set(tokens)
    for kind, names in USUAL.items():
        if special.issuperset(names) and not any(trained and is_in_texts(name, ids[name], trained, tokenizer) for name in names):
            *rows, pad = (ids[name] for name in names)
            return replace(found, rows=tuple(rows), pad=pad, separators=2 if kind == "BPE" else 1)  # RoBERTa's names
    return None


def read_masked_vocabulary(folder: Path, size: int, *, fills: bool = True) -> MaskedVocabulary:
    """Return the vocabulary of a published encoder with `size` ids; with `fills`, it must have a mask token.

    Raise if there is no tokenizer.json, neither `wordpiece` nor `bpe` supports it, or it lacks a token that attnkit needs.
    """
    with tokenizer_of(folder) as (pipeline, settings):
        rows = _rows(pipeline, settings, fills=fills)
        spec = (_wordpiece if pipeline["model"]["type"] == "WordPiece" else bpe_of)(pipeline, size)
        extra = [MASK] if len(rows) == len(ROLES) else None
        spec |= {"extra_tokens": extra, "vocab_size": 1 + len(rows) + size}
        return MaskedVocabulary(spec, rows, separators=_separators(pipeline))


def _separators(pipeline: Mapping[str, Any]) -> int:
    """Return the number of tokens between the texts of a pair."""
    steps = steps_of(pipeline.get("post_processor"), "processors")
    pairs = ["".join("T" if "Sequence" in part else "S" for part in step.get("pair", ())) for step in steps]  # texts and special tokens
    return 2 if any(step["type"] == "RobertaProcessing" for step in steps) or any("TSST" in pair for pair in pairs) else 1


def _rows(pipeline: Mapping[str, Any], settings: Mapping[str, Any], *, fills: bool) -> tuple[int, ...]:
    """Return the published ids of the tokens that attnkit also has as its own."""
    ids = {**pipeline["model"]["vocab"], **{token["content"]: token["id"] for token in pipeline.get("added_tokens") or ()}}
    is_wordpiece = pipeline["model"]["type"] == "WordPiece"
    names = dict(zip(ROLES, USUAL["WordPiece" if is_wordpiece else "BPE"], strict=False))
    for role in ROLES:
        names[role] = named(settings, role) or names[role]
    if is_wordpiece:
        names["unk"] = pipeline["model"]["unk_token"]
    missing = [role for role in ROLES if names[role] not in ids]
    if missing == ["mask"] and not fills:
        return tuple(ids[names[role]] for role in ROLES[:-1])
    if missing:
        raise ValueError(f"it has no token {names[missing[0]]!r}, and tokenizer_config.json names no other {missing[0]}_token")
    return tuple(ids[names[role]] for role in ROLES)


def _wordpiece(pipeline: Mapping[str, Any], size: int) -> dict[str, Any]:
    """Return the spec of a `wordpiece`, or raise a `ValueError` if it would encode or decode texts differently."""
    steps, model = steps_of(pipeline.get("normalizer"), "normalizers") or [{}], pipeline["model"]
    lowercase = (normalizer := steps[-1])["lowercase"]
    said = {
        "continuing_subword_prefix": (model["continuing_subword_prefix"], (PREFIX,)),
        "max_input_chars_per_word": (model["max_input_chars_per_word"], (LONGEST,)),
        "normalizer": (normalizer["type"], ("BertNormalizer",)), "clean_text": (normalizer["clean_text"], (True,)),
        "handle_chinese_chars": (normalizer["handle_chinese_chars"], (True,)),
        "strip_accents": (normalizer["strip_accents"], (None, lowercase)),
        "pre_tokenizer": (pipeline["pre_tokenizer"]["type"], ("BertPreTokenizer",)),
        "decoder": ({**pipeline["decoder"]}, ({"type": "WordPiece", "prefix": PREFIX, "cleanup": True},)),
    }  # fmt: skip
    for name, (found, known) in said.items():
        if found not in known:
            raise ValueError(f"its {name} is {found!r}, but attnkit only supports {known[0]!r}")
    added = pipeline.get("added_tokens") or ()
    if read := [token["content"] for token in added if not token["special"]]:
        raise ValueError(f"it reads the added token {read[0]!r} in texts")
    return {
        "name": "wordpiece", "tokens": list(tokens_of(model["vocab"], added, size)), "lowercase": lowercase,
        "normalization": form_of(steps[:-1]),
    }  # fmt: skip
