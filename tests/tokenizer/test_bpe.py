import random

import pytest

from attnkit import ConfigurationError, tokenizers


def test_any_text_is_restored_whatever_the_training_texts(rng: random.Random) -> None:
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


def test_the_vocabulary_size_includes_extra_tokens() -> None:
    spec = {"name": "bpe", "vocab_size": 261, "extra_tokens": ["<mask>"]}
    assert len(tokenizers.build(spec).train(["low low"])) == 261
    with pytest.raises(ConfigurationError, match="vocab_size must be at least 261, but is 260"):
        tokenizers.build(spec | {"vocab_size": 260})


def test_an_extra_token_absorbs_the_space_before_it_like_any_token() -> None:
    tokenizer = tokenizers.build({"name": "bpe", "vocab_size": 300, "extra_tokens": ["<mask>"]}).train(["to be or not to be"] * 3)
    words = tokenizer.encode("to be")
    assert tokenizer.encode("to <mask> be") == [words[0], 4, words[1]]
    assert tokenizer.decode(tokenizer.encode("<mask> <mask> be<mask>")) == "<mask> <mask> be <mask>"
