import json
import random
from typing import Any

import pytest
import tokenizers as hf
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from attnkit import ConfigurationError, tokenizers


def test_any_text_round_trips_regardless_of_the_training_texts(rng: random.Random) -> None:
    tokenizer = tokenizers.build({"name": "bpe", "vocab_size": 300}).train(["some plain text"])
    points = [rng.choice([rng.randrange(0x20, 0x7F), rng.randrange(0xAC00, 0xD7A4), rng.randrange(0x1F300, 0x1F600)]) for _ in range(50)]
    text = " ".join(map(chr, points)) + "  \t\n"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.unk_id not in tokenizer.encode(text)


def test_frequent_pairs_are_merged_up_to_the_vocabulary_size() -> None:
    texts = ["lower lowest low"] * 10
    small = tokenizers.build({"name": "bpe", "vocab_size": 260}).train(texts)
    large = tokenizers.build({"name": "bpe", "vocab_size": 262}).train(texts)
    assert (len(small), len(large)) == (260, 262)
    assert len(small.encode("low")) == 3
    assert large.tokens(large.encode("low")) == ["low"]


def test_a_vocabulary_too_small_for_the_bytes_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="vocab_size must be at least 260, but is 259"):
        tokenizers.build({"name": "bpe", "vocab_size": 259})


def test_an_invalid_model_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="model must be the JSON text of a trained model"):
        tokenizers.build({"name": "bpe", "model": "{}"})


def test_a_model_with_a_missing_part_is_rejected_by_name() -> None:
    with pytest.raises(ConfigurationError, match=r"trained model \(it has no 'vocab'\)"):
        tokenizers.build({"name": "bpe", "model": '{"model": {}}'})


TEXTS = ["The lower, the LOWEST  12 lows!", "it's low-low\n\n  Ｌｏｗ é 안녕", "<|end|>low <low>"]
BYTE_LEVEL = pre_tokenizers.ByteLevel(add_prefix_space=False)


def published(**parts: Any) -> hf.Tokenizer:
    """Train a tokenizer of the library as others do."""
    made = hf.Tokenizer(models.BPE())
    made.pre_tokenizer = BYTE_LEVEL
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(TEXTS * 3, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False))
    made.add_special_tokens(["<|end|>"])
    for name, value in parts.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("parts", "options"),
    [
        ({}, {}),
        ({"post_processor": processors.ByteLevel(trim_offsets=False)}, {}),
        ({"normalizer": normalizers.NFKC()}, {"normalization": "NFKC"}),
        ({"normalizer": normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])}, {"normalization": "NFC", "lowercase": True}),
        ({"pre_tokenizer": pre_tokenizers.Sequence([BYTE_LEVEL])}, {}),
    ],
)
def test_a_published_model_encodes_identically(parts: dict[str, Any], options: dict[str, Any]) -> None:
    theirs = published(**parts)
    ours = tokenizers.build({"name": "bpe", "model": theirs.to_str(), **options})
    for text in TEXTS[:2]:  # without special tokens
        assert ours.encode(text) == [token + 4 for token in theirs.encode(text, add_special_tokens=False).ids]


def test_a_model_in_an_older_file_format_is_read() -> None:
    model = json.loads(published().to_str())
    del model["model"]["type"], model["model"]["ignore_merges"], model["pre_tokenizer"]["use_regex"]  # as in GPT-2's
    model["model"]["merges"] = [" ".join(merge) for merge in model["model"]["merges"]]
    ours, theirs = tokenizers.build({"name": "bpe", "model": json.dumps(model)}), hf.Tokenizer.from_str(json.dumps(model))
    assert ours.encode(TEXTS[0]) == [token + 4 for token in theirs.encode(TEXTS[0]).ids]


def test_a_model_may_ignore_its_merges() -> None:
    model = json.loads(published().to_str())
    text = json.dumps(model | {"model": model["model"] | {"merges": [], "ignore_merges": True}})
    ours, theirs = tokenizers.build({"name": "bpe", "model": text}), hf.Tokenizer.from_str(text)
    assert len(ours.encode("The")) == 1
    assert ours.encode(TEXTS[0]) == [token + 4 for token in theirs.encode(TEXTS[0]).ids]


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"normalizer": normalizers.NFKC()}, "it normalises texts by NFKC"),
        ({"normalizer": normalizers.Lowercase()}, "it normalises texts by Lowercase"),
        ({"normalizer": normalizers.Replace("low", "high")}, "it normalises texts by Replace"),
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)}, "it splits texts by ByteLevel, which is none of"),
        (
            {"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)},
            "it splits texts by ByteLevel, which is none of",
        ),
        ({"pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.Digits(), BYTE_LEVEL])}, "it splits texts by Digits and ByteLevel"),
        ({"pre_tokenizer": None}, "it splits texts by nothing"),
    ],
)
def test_a_model_with_unsupported_tokenization_steps_is_rejected(parts: dict[str, Any], said: str) -> None:
    theirs = published(**parts)
    with pytest.raises(ConfigurationError, match=said):
        tokenizers.build({"name": "bpe", "model": theirs.to_str()})


def test_added_tokens_are_recognised_in_texts_unless_special() -> None:
    model = json.loads(published().to_str())
    size = len(model["model"]["vocab"])
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": True}
    for i, (content, is_special) in enumerate((("   ", False), ("<low>", False), ("<end>", True))):
        model["model"]["vocab"][content] = size + i
        model["added_tokens"].append({"id": size + i, "content": content, "special": is_special, **flags})
    tokenizer = tokenizers.build({"name": "bpe", "vocab_size": 1000, "model": json.dumps(model)})
    theirs = hf.Tokenizer.from_str(json.dumps(model))
    text = "low   low<low> low  low"
    assert tokenizer.encode(text) == [4 + i for i in theirs.encode(text).ids]
    assert {4 + size, 5 + size} < set(tokenizer.encode(text))
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert 6 + size not in tokenizer.encode("low<end>")
    assert len(tokenizer) == size + 7
    assert tokenizers.build(tokenizer.spec).encode(text) == tokenizer.encode(text)


def test_a_model_with_dropout_or_inconsistent_ids_is_rejected() -> None:
    model = json.loads(published().to_str())
    model["model"]["dropout"] = 0.1
    with pytest.raises(ConfigurationError, match=r"it leaves out merges at random \(dropout 0.1\)"):
        tokenizers.build({"name": "bpe", "model": json.dumps(model)})
    theirs = published()
    theirs.add_tokens(["<low>"])
    with pytest.raises(ConfigurationError, match="it reads added tokens such as '<low>', whose id is not in its vocabulary"):
        tokenizers.build({"name": "bpe", "model": theirs.to_str()})


def test_the_vocabulary_size_includes_extra_tokens() -> None:
    spec = {"name": "bpe", "vocab_size": 261, "extra_tokens": ["<mask>"]}
    assert len(tokenizers.build(spec).train(["low low"])) == 261
    with pytest.raises(ConfigurationError, match="vocab_size must be at least 261, but is 260"):
        tokenizers.build(spec | {"vocab_size": 260})


def test_an_extra_token_absorbs_the_preceding_space_like_any_token() -> None:
    tokenizer = tokenizers.build({"name": "bpe", "vocab_size": 300, "extra_tokens": ["<mask>"]}).train(["to be or not to be"] * 3)
    words = tokenizer.encode("to be")
    assert tokenizer.encode("to <mask> be") == [words[0], 4, words[1]]
    assert tokenizer.decode(tokenizer.encode("<mask> <mask> be<mask>")) == "<mask> <mask> be <mask>"
