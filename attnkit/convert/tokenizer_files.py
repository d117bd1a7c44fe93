"""Our tokenizers in the format of the `tokenizers` library, as `transformers.AutoTokenizer` reads them."""

import json
from collections.abc import Mapping
from typing import Any

from attnkit.convert.vocabulary import Vocabulary
from attnkit.registry import ConfigurationError
from attnkit.tokenizer import Tokenizer
from attnkit.tokenizer.bpe import EXPRESSIONS
from attnkit.tokenizer.wordpiece import LONGEST, PREFIX

SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
"""What separates words: the white space of Python's `str.split`."""


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
"""The pipelines of tokenizers that look symbols up."""


def tokenizer_files(tokenizer: Tokenizer, published: Vocabulary | None, *, kind: str, length: int) -> dict[str, dict[str, Any]]:
    """Return the content of tokenizer.json and tokenizer_config.json, which give the ids of a tokenizer, and begin texts with its `<bos>`.

    Args:
        tokenizer: A trained tokenizer.
        published: The vocabulary of the published model that it comes from, whose ids are written; None for its own.
        kind: The `model_type` of the model.
        length: The number of tokens that the model reads.

    Raises:
        ConfigurationError: The library, or transformers for this kind of model, would give other ids.
    """
    spec = tokenizer.spec
    if tokenizer.extra_tokens:
        raise ConfigurationError("its extra_tokens absorb the space before them, which added tokens of the library cannot do")
    if spec["name"] == "bpe":
        vocabulary, added, pipeline = _bpe(spec, published)
    elif spec["name"] == "wordpiece" or (spec["name"] in SYMBOLS and not spec["lowercase"] and spec.get("punctuation") != "apart"):
        vocabulary, added = {token: i for i, token in enumerate(spec["tokens"], len(Tokenizer.special_tokens))}, []
        pipeline = {"model": {"type": "WordLevel"}, **SYMBOLS[spec["name"]]}
    else:
        raise ConfigurationError("the library cannot split or lowercase texts as it does")
    is_lower, is_bert = spec.get("lowercase", False), spec["name"] == "wordpiece"
    wanted = {spec["normalization"]: spec["normalization"] != "none", "Lowercase": is_lower and not is_bert}
    steps: list[dict[str, Any]] = [{"type": step} for step, is_on in wanted.items() if is_on]
    if is_bert:
        cleaned = {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
        steps.append({"type": "BertNormalizer", **cleaned, "lowercase": is_lower})
    if kind == "qwen2" and (steps, spec.get("split")) != ([{"type": "NFC"}], "qwen2"):
        raise ConfigurationError("transformers reads any tokenizer of a qwen2 as one with split: qwen2 and normalization: NFC")
    names = _special(vocabulary, published)
    if published is None:
        vocabulary |= {name: i for i, name in enumerate(names.values())}
    if spec["name"] in SYMBOLS:
        pipeline["model"] = {**pipeline["model"], "unk_token": names["unk"]}
    start, own = names["bos"], {token["content"] for token in added}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    added += [{"id": vocabulary[name], "content": name, **flags} for name in dict.fromkeys(names.values()) if name not in own]
    begin, text, other = {"SpecialToken": {"id": start, "type_id": 0}}, *({"Sequence": {"id": x, "type_id": 0}} for x in "AB")
    return {
        "tokenizer.json": {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": sorted(added, key=lambda token: token["id"]), **pipeline,
            "normalizer": {"type": "Sequence", "normalizers": steps} if len(steps) > 1 else next(iter(steps), None),
            "post_processor": {
                "type": "TemplateProcessing", "single": [begin, text], "pair": [begin, text, other],
                "special_tokens": {start: {"id": start, "ids": [vocabulary[start]], "tokens": [start]}},
            },
            "model": {**pipeline["model"], "vocab": vocabulary},
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast", **{f"{name}_token": token for name, token in names.items()},
            "clean_up_tokenization_spaces": False, "split_special_tokens": True, "model_max_length": length, "padding_side": "left",
        },
    }  # fmt: skip


def _bpe(spec: Mapping[str, Any], published: Vocabulary | None) -> tuple[dict[str, int], list[dict[str, Any]], dict[str, Any]]:
    """Return the ids of a byte-level BPE, its added tokens, and its pipeline."""
    trained = json.loads(spec["model"])
    own: dict[str, int] = trained["model"]["vocab"]
    if published is None:
        ids = {token: i + len(Tokenizer.special_tokens) for token, i in own.items()}
    else:
        kept = published.kept
        ids = {token: kept[i] for token, i in own.items()} | published.apart
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    split: dict[str, Any] = byte_level
    if (name := spec.get("split", "gpt2")) != "gpt2":
        split = {"type": "Sequence", "pretokenizers": [_split(EXPRESSIONS[name], "Isolated"), {**byte_level, "use_regex": False}]}
    model = {"type": "BPE", "merges": trained["model"]["merges"], "ignore_merges": trained["model"].get("ignore_merges", False)}
    added = [{**t, "id": ids[t["content"]]} for t in trained.get("added_tokens", ()) if t["content"] in ids]
    return ids, added, {"pre_tokenizer": split, "decoder": byte_level, "model": model}


def _special(vocabulary: Mapping[str, int], published: Vocabulary | None) -> dict[str, str]:
    """Return the special tokens by their roles: those of a published model, or ours, in more brackets if texts have tokens of that name."""
    if published is not None:
        tokens, ends = {i: token for token, i in vocabulary.items()}, {"bos": published.bos, "eos": published.eos}
        return {role: tokens[i] for role, i in ends.items()}
    names = {}
    for token in Tokenizer.special_tokens:
        name = token
        while name in vocabulary:
            name = f"<{name}>"
        names[token.strip("<>")] = name
    return names
