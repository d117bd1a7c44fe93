"""The tokenizer of a published encoder, and which rows of its tables are which ids of ours."""

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
"""What these and the token that pads rows are called where tokenizer_config.json does not say it, and in models of attnkit."""
BIAS, OWN_BIAS = "head.bias", "head.projection.bias"
"""The biases of a head that shares the table of embeddings, and of one with its own matrix."""


@dataclass(frozen=True)
class MaskedVocabulary:
    """A tokenizer, and the rows of the tables of embeddings and biases.

    Our ids are those of pad, bos, eos, unk and `<mask>`, if they have one, and then all of theirs in order. bos and eos have the rows of
    their tokens that begin and end texts. None of ours is ever predicted, so the distribution over the others is theirs.

    Args:
        tokenizer: The spec of a `wordpiece` or `bpe`.
        rows: Their ids of bos, eos, unk and, if there is one, `<mask>`.
        pad: Their id of the token that pads rows, if it is known.
        separators: How many tokens stand between the texts of a pair: two for RoBERTa.
    """

    tokenizer: dict[str, Any]
    rows: tuple[int, ...]
    pad: int | None = None
    separators: int = 1

    @property
    def first(self) -> int:
        """How many ids are ours alone."""
        return 1 + len(self.rows)

    @property
    def tokens(self) -> list[str]:
        """Their tokens, by their ids."""
        if self.tokenizer["name"] == "wordpiece":
            return list(self.tokenizer["tokens"])
        ids: dict[str, int] = json.loads(self.tokenizer["model"])["model"]["vocab"]
        return sorted(ids, key=ids.__getitem__)

    @property
    def names(self) -> dict[str, str]:
        """What the tokens with roles are called."""
        tokens = self.tokens
        return {role: tokens[i] for role, i in zip((*ROLES, "pad"), (*self.rows, self.pad), strict=True) if i is not None}

    def ids(self, own: Mapping[str, int]) -> dict[str, int]:
        """Return their ids of all tokens, from those in the model of the tokenizer, which are the same."""
        return dict(own)

    def embedding(self, theirs: Tensor) -> Tensor:
        """Return our table [first + V, D] from theirs [V, D]."""
        return torch.cat([torch.zeros_like(theirs[:1]), theirs[list(self.rows)], theirs])

    def bias(self, theirs: Tensor) -> Tensor:
        """Return our biases [first + V] from theirs [V]."""
        return torch.cat([theirs.new_full((self.first,), NEVER), theirs])

    def theirs(self, weights: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Return the weights of the published model from those of the imported one, and notes on what training has made different."""
        found, notes, first = dict(weights), [], self.first
        found[TABLE] = weights[TABLE][first:].clone()
        found[TABLE][list(self.rows)] = weights[TABLE][1:first]
        if BIAS in weights and same(weights[TABLE][first:], found[TABLE]):
            found[BIAS] = weights[BIAS][first:].clone()
        elif BIAS in weights or HEAD in weights:
            found[HEAD] = weights.get(HEAD, weights[TABLE])[first:].clone()
            found[OWN_BIAS] = found.pop(BIAS if BIAS in weights else OWN_BIAS)[first:].clone()
        if found.keys() != weights.keys():
            notes.append("tie_word_embeddings is false, since each special token was trained as two: the one that is read, and an output")
        return found, notes


def masked_vocabulary_of(tokenizer: Mapping[str, Any]) -> MaskedVocabulary | None:
    """Return the vocabulary of the published encoder that the spec of a tokenizer was made from, or None if attnkit trained it.

    It is known by its special tokens: a `wordpiece` that attnkit trains takes brackets apart, and a `bpe` has no special tokens.
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
    """Return the vocabulary of a published encoder with `size` ids, which has a mask if it `fills` them.

    Raises:
        ConfigurationError: There is no tokenizer.json, or neither `wordpiece` nor `bpe` can do what it says, or a token that attnkit needs
            is missing.
    """
    with tokenizer_of(folder) as (pipeline, settings):
        rows = _rows(pipeline, settings, fills=fills)
        spec = (_wordpiece if pipeline["model"]["type"] == "WordPiece" else bpe_of)(pipeline, size)
        extra = [MASK] if len(rows) == len(ROLES) else None
        spec |= {"extra_tokens": extra, "vocab_size": 1 + len(rows) + size}
        return MaskedVocabulary(spec, rows, separators=_separators(pipeline))


def _separators(pipeline: Mapping[str, Any]) -> int:
    """Return how many tokens there are between the texts of a pair."""
    steps = steps_of(pipeline.get("post_processor"), "processors")
    pairs = ["".join("T" if "Sequence" in part else "S" for part in step.get("pair", ())) for step in steps]  # texts and special tokens
    return 2 if any(step["type"] == "RobertaProcessing" for step in steps) or any("TSST" in pair for pair in pairs) else 1


def _rows(pipeline: Mapping[str, Any], settings: Mapping[str, Any], *, fills: bool) -> tuple[int, ...]:
    """Return their ids of the tokens that attnkit has for itself."""
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
    """Return the spec of a `wordpiece`, or raise a `ValueError` if it would encode or decode texts otherwise."""
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
            raise ValueError(f"its {name} is {found!r}, but attnkit reads only {known[0]!r}")
    added = pipeline.get("added_tokens") or ()
    if read := [token["content"] for token in added if not token["special"]]:
        raise ValueError(f"it reads the added token {read[0]!r} in texts")
    return {
        "name": "wordpiece", "tokens": list(tokens_of(model["vocab"], added, size)), "lowercase": lowercase,
        "normalization": form_of(steps[:-1]),
    }  # fmt: skip
