"""`transformers.AutoTokenizer` gives the ids of our tokenizer, and texts back from them."""

import json
import random
import sys
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import attnkit
from attnkit.convert.importing import DECODERS
from attnkit.convert.tokenizer_files import tokenizer_files
from attnkit.registry import ConfigurationError
from attnkit.tokenizer import Tokenizer
from tests.convert.models import SIZES, transformers

pytestmark = pytest.mark.filterwarnings("ignore")
TEXTS = [
    "in the beginning God created the heaven and the earth", "2024 12345 1,000.50", "it's  we'll\n\n\tnext  line \r\n", "안녕 세상 é é ½ ﬁ",
    "<eos> text <bos>, <unk> and <pad>", "<eos>", "<bos><bos>", " leading and trailing ", "", " ", "    ", "\n", "x=y+1;//#!??...",
    "HELLO'S ΑΣ İstanbul ǅ", "\u200b\u00a0🙂🙂 👩‍👩‍👧 \x1c\x85\u2028", "e\u0301 \u1112\u1161\u11ab \u212b \ufb01",
    "\0\x7f\ufffd\uffff\U0010ffff", "a" * 300,
]  # fmt: skip
SPECS: list[dict[str, Any]] = [
    *({"name": "bpe", "vocab_size": 330, **own} for own in (
        {}, {"normalization": "none"}, {"normalization": "NFKD"}, {"lowercase": True}, {"split": "llama3"},
        {"split": "qwen2", "lowercase": True, "normalization": "NFKC"},
    )),
    {"name": "character"}, {"name": "character", "normalization": "NFD", "min_count": 2}, {"name": "word"},
    {"name": "word", "normalization": "NFKC", "min_count": 2}, {"name": "wordpiece", "vocab_size": 300},
    {"name": "wordpiece", "vocab_size": 200, "lowercase": True, "normalization": "none"},
]  # fmt: skip


def read(folder: Path, tokenizer: Tokenizer, kind: str = "llama") -> Any:
    """Return the tokenizer that transformers makes of the files."""
    for name, content in tokenizer_files(tokenizer, None, kind=kind, length=64).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False))
    (folder / "config.json").write_text(json.dumps({"model_type": kind, **SIZES[kind]}))
    return transformers.AutoTokenizer.from_pretrained(folder)


@cache
def characters(version: Any = unicodedata) -> list[str]:
    """Return all characters of a version of Unicode."""
    return [chr(i) for i in range(sys.maxunicode + 1) if version.category(chr(i)) not in ("Cs", "Cn")]


@cache
def drawn(count: int) -> list[str]:
    """Return random texts of characters of all kinds, of spaces, and of the training texts.

    The library normalises as Unicode 9 does, so newer characters are left out, for which this may differ.
    """
    draw, assigned = random.Random(0), characters(unicodedata.ucd_3_2_0)
    parts = [*TEXTS, " ", "  ", "\n", "'s", "<eos>", "e\u0301"]
    return ["".join(draw.choice(parts if draw.random() < 0.3 else assigned) for _ in range(draw.randint(1, 30))) for _ in range(count)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: "-".join(map(str, spec.values())))
def test_each_text_has_the_same_ids_after_bos(spec: dict[str, Any], tmp_path: Path) -> None:
    ours = attnkit.tokenizers.build(spec).train(TEXTS * 2)
    theirs = read(tmp_path, ours)
    assert len(theirs) == len(ours)
    for text in (*TEXTS, *drawn(400)):
        ids = ours.encode(text)
        assert theirs(text)["input_ids"] == [1, *ids], repr(text)
        assert theirs.encode(text, add_special_tokens=False) == ids
        if ours.unk_id not in ids:
            assert theirs.decode([1, *ids, 2, 0], skip_special_tokens=True) == ours.decode(ids), repr(text)
    special = (theirs.pad_token_id, theirs.bos_token_id, theirs.eos_token_id, theirs.unk_token_id)
    assert special == (0, 1, 2, 3)


@pytest.mark.parametrize(("normalization", "between"), [("none", ""), ("NFC", " ")])
def test_each_character_has_the_same_ids(normalization: str, between: str, tmp_path: Path) -> None:
    ours = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 330, "normalization": normalization}).train(TEXTS)
    theirs, assigned = read(tmp_path, ours), characters()
    for start in range(0, len(assigned), 500):
        text = between.join(assigned[start : start + 500])
        assert theirs(text)["input_ids"] == [1, *ours.encode(text)]


@pytest.mark.parametrize("kind", DECODERS)
def test_auto_tokenizer_encodes_identically_for_every_family(kind: str, tmp_path: Path) -> None:
    """AutoTokenizer ignores parts of the file for some families: it must not for those that we write."""
    split = {"split": "qwen2"} if kind == "qwen2" else {}
    ours = attnkit.tokenizers.build({"name": "bpe", "vocab_size": 330, **split}).train(TEXTS)
    theirs = read(tmp_path, ours, kind)
    for text in (*TEXTS, *drawn(50)):
        assert theirs(text)["input_ids"] == [1, *ours.encode(text)], repr(text)


def test_a_batch_is_padded_on_the_left_for_generation(tmp_path: Path) -> None:
    theirs = read(tmp_path, attnkit.tokenizers.build({"name": "bpe", "vocab_size": 330}).train(TEXTS))
    assert theirs(["in", "in the beginning"], padding=True)["input_ids"][0][0] == 0


@pytest.mark.parametrize("spec", [{"name": "bpe", "vocab_size": 300}, {"name": "word"}])
def test_tokens_named_like_special_tokens_stay_ordinary(spec: dict[str, Any], tmp_path: Path) -> None:
    texts = [" <eos> <bos> <unk> <pad>"] * 50
    ours = attnkit.tokenizers.build(spec).train(texts)
    theirs = read(tmp_path, ours)
    assert theirs(texts[0])["input_ids"] == [1, *ours.encode(texts[0])]
    assert theirs.eos_token_id == 2
    assert theirs.eos_token != "<eos>" if spec["name"] == "word" else len(theirs) == len(ours)


@pytest.mark.parametrize(
    ("spec", "kind", "message"),
    [
        ({"name": "bpe", "vocab_size": 300, "extra_tokens": ["<mask>"]}, "llama", "extra_tokens absorb the preceding space"),
        ({"name": "bpe", "vocab_size": 300}, "qwen2", "split: qwen2 and normalization: NFC"),
        ({"name": "bpe", "vocab_size": 300, "split": "qwen2", "normalization": "none"}, "qwen2", "split: qwen2"),
        ({"name": "character", "lowercase": True}, "llama", "cannot split or lowercase"),
        ({"name": "word", "punctuation": "apart"}, "llama", "cannot split or lowercase"),
    ],
)
def test_a_tokenizer_the_library_would_encode_differently_is_rejected(spec: dict[str, Any], kind: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tokenizer_files(attnkit.tokenizers.build(spec).train(TEXTS), None, kind=kind, length=64)


def test_tokens_added_to_a_given_model_keep_their_ids(tmp_path: Path) -> None:
    """A `model` may be a published tokenizer.json: some of its special tokens have no place in the vocabulary, as those of Llama 3."""
    trained = json.loads(attnkit.tokenizers.build("bpe").train(TEXTS).spec["model"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    vocabulary = trained["model"]["vocab"]
    vocabulary["<think>"] = vocabulary["<s>"] = len(vocabulary)
    vocabulary["<s>"] += 1
    trained["added_tokens"] = [
        {"id": vocabulary["<think>"], "content": "<think>", "special": False, **flags},
        {"id": vocabulary["<s>"], "content": "<s>", "special": True, **flags},
        {"id": 128_000, "content": "<|begin_of_text|>", "special": True, **flags},
    ]
    ours = attnkit.tokenizers.build({"name": "bpe", "model": json.dumps(trained)})
    theirs = read(tmp_path, ours)
    assert len(theirs) == len(ours)
    for text in (*TEXTS, "in <think>the <s> a", "<|begin_of_text|>"):
        assert theirs(text)["input_ids"] == [1, *ours.encode(text)], text
