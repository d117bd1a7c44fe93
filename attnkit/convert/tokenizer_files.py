"""Writes attnkit's tokenizers in the format of the `tokenizers` library, as read by `transformers.AutoTokenizer`."""

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from attnkit.convert.masked import MaskedVocabulary
from attnkit.convert.vocabulary import Vocabulary
from attnkit.registry import ConfigurationError
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.base import MASK
from attnkit.tokenizer.bpe import EXPRESSIONS
from attnkit.tokenizer.wordpiece import LONGEST, PREFIX

SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
"""A pattern of the separators of words: white space as in Python's `str.split`."""


def _split(pattern: str, behavior: str) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": False}


SYMBOLS: dict[str, dict[str, Any]] = {
    "character": {"pre_tokenizer": _split(r"[\s\S]", "Isolated"), "decoder": {"type": "Fuse"}},
    "word": {"pre_tokenizer": _split(SPACE, "Removed"), "decoder": None},
    "wordpiece": {
        "pre_tokenizer": {"type": "BertPreTokenizer"}, "decoder": {"type": "WordPiece", "prefix": PREFIX, "cleanup": True},
        "model": {"type": "WordPiece", "continuing_subword_prefix": PREFIX, "max_input_chars_per_word": LONGEST},
    },
}  # fmt: skip
"""The pipelines of tokenizers that look up symbols."""


class Ends(NamedTuple):
    """The tokens around texts in an encoder; a decoder has only `<bos>`."""

    segments: int  # the second text of a pair is in the second segment, if there is one
    between: int = 1  # number of `<eos>` tokens between the texts of a pair


def tokenizer_files(
    tokenizer: Tokenizer, published: Vocabulary | MaskedVocabulary | None, *, kind: str, length: int, ends: Ends | None = None
) -> dict[str, dict[str, Any]]:
    """Return the content of tokenizer.json and tokenizer_config.json, with which texts get a tokenizer's ids and the tokens around texts.

    Names of special tokens in a text are ordinary text for a decoder, as they are for attnkit's tokenizers. transformers can parse either
    all of them or none, so an encoder, which needs `<mask>`, parses the others too.

    The ids are those of the `published` model that the tokenizer comes from, or its own (None); `kind` is the `model_type` of the model,
    `length` the most tokens that it reads, and `ends` are the tokens around texts (None for a decoder). Raises a `ConfigurationError` if
    the library, or transformers for this kind of model, would produce different ids.
    """
    spec, extra = tokenizer.spec, tokenizer.extra_tokens
    if extra and ends is None:
        raise ConfigurationError("its extra_tokens absorb the preceding space, which added tokens of the library cannot do")
    if spec["name"] == "bpe":
        vocabulary, given, pipeline = _bpe(spec, published)
    elif spec["name"] == "wordpiece" or (spec["name"] in SYMBOLS and not spec["lowercase"] and spec.get("punctuation") != "apart"):
        first = len(Tokenizer.special_tokens) + len(extra) if published is None else 0
        vocabulary, given = {token: i for i, token in enumerate(spec["tokens"], first)}, []
        pipeline = {"model": {"type": "WordLevel"}, **SYMBOLS[spec["name"]]}
    else:
        raise ConfigurationError("the library cannot split or lowercase texts the same way")
    steps = _normalizers(spec)
    if kind == "qwen2" and (steps, spec.get("split")) != ([{"type": "NFC"}], "qwen2"):
        raise ConfigurationError("transformers reads any tokenizer of a qwen2 model as one with split: qwen2 and normalization: NFC")
    if published is None:
        if taken := vocabulary.keys() & set(extra):
            raise ConfigurationError(f"it also has {min(taken)} as an ordinary token")
        names = _own(vocabulary)
        vocabulary |= {name: i for i, name in enumerate((*names.values(), *extra))}
        names |= {} if ends is None else {"cls": names["bos"], "sep": names["eos"]}
        names |= {"mask": MASK} if MASK in extra else {}
    else:
        names = published.names
    if spec["name"] in SYMBOLS:
        pipeline["model"] = {**pipeline["model"], "unk_token": names["unk"]}
    is_bpe, mask = spec["name"] == "bpe", names.get("mask")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added: dict[str, dict[str, Any]] = {name: {"content": name, **flags, "special": True} for name in names.values()}
    if published is None:
        added |= {name: {"content": name, **flags, "lstrip": is_bpe, "special": name == mask} for name in extra}
    added |= {token["content"]: {name: value for name, value in token.items() if name != "id"} for token in given}
    if mask is not None:
        added[mask] = {**added[mask], "lstrip": is_bpe}
    tokens = sorted(({**token, "id": vocabulary[name]} for name, token in added.items()), key=lambda token: token["id"])
    roles: dict[str, Any] = {f"{role}_token": name for role, name in names.items()}
    if mask is not None:  # given as a name only, it would no longer absorb the space
        roles["mask_token"] = {"__type": "AddedToken", **added[mask]}
    around = [names["bos"]] if ends is None else [names["cls"], names["sep"]]
    return {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": tokens, **pipeline,
            "normalizer": {"type": "Sequence", "normalizers": steps} if len(steps) > 1 else next(iter(steps), None),
            "post_processor": {
                "type": "TemplateProcessing", "single": _template(around, "A", None), "pair": _template(around, "AB", ends),
                "special_tokens": {name: {"id": name, "ids": [vocabulary[name]], "tokens": [name]} for name in around},
            },
            "model": {**pipeline["model"], "vocab": vocabulary},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", **roles, "clean_up_tokenization_spaces": False,
            "split_special_tokens": mask is None, "model_max_length": length, "padding_side": "left" if ends is None else "right",
            **({} if ends is None else {"model_input_names": ["input_ids", *["token_type_ids"] * (ends.segments > 1), "attention_mask"]}),
        },
    }  # fmt: skip


def _normalizers(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the steps that change a text before it is split."""
    is_lower, is_bert = spec.get("lowercase", False), spec["name"] == "wordpiece"
    wanted = {spec["normalization"]: spec["normalization"] != "none", "Lowercase": is_lower and not is_bert}
    steps: list[dict[str, Any]] = [{"type": step} for step, is_on in wanted.items() if is_on]
    if is_bert:
        cleaned = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
        steps.append({"type": "BertNormalizer", **cleaned, "lowercase": is_lower})
    return steps


def _template(around: list[str], texts: str, ends: Ends | None) -> list[dict[str, Any]]:
    """Return a template for one or two texts: the first token of `around`, then each text followed by the second, if there is one."""
    begin, end = around[0], around[1:]
    found = [{"SpecialToken": {"id": begin, "type_id": 0}}]
    for i, text in enumerate(texts):
        part = i if ends is not None and ends.segments > 1 else 0
        closing = end * (ends.between if ends is not None and i < len(texts) - 1 else 1)
        found.append({"Sequence": {"id": text, "type_id": part}})
        found += [{"SpecialToken": {"id": token, "type_id": part}} for token in closing]
    return found


def _bpe(
    spec: Mapping[str, Any], published: Vocabulary | MaskedVocabulary | None
) -> tuple[dict[str, int], list[dict[str, Any]], dict[str, Any]]:
    """Return the ids, the added tokens and the pipeline of a byte-level BPE."""
    trained = json.loads(spec["model"])
    own: dict[str, int] = trained["model"]["vocab"]
    first = len(Tokenizer.special_tokens) + len(spec["extra_tokens"] or ())
    ids = {token: i + first for token, i in own.items()} if published is None else published.ids(own)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split: dict[str, Any] = byte_level
    if (name := spec.get("split", "gpt2")) != "gpt2":
        split = {"type": "Sequence", "pretokenizers": [_split(EXPRESSIONS[name], "Isolated"), {**byte_level, "use_regex": False}]}
    model = {"type": "BPE", "merges": trained["model"]["merges"], "ignore_merges": trained["model"].get("ignore_merges", False)}
    added = [token for token in trained.get("added_tokens", ()) if token["content"] in ids]
    return ids, added, {"pre_tokenizer": split, "decoder": byte_level, "model": model}


def _own(vocabulary: Mapping[str, int]) -> dict[str, str]:
    """Return attnkit's special tokens by role, with additional brackets if the vocabulary has a token of that name."""
    names = {}
    for token in Tokenizer.special_tokens:
        name = token
        while name in vocabulary:
            name = f"<{name}>"
        names[token.strip("<>")] = name
    return names
