"""What every registered tokenizer promises."""

import json
import pickle
import random

import pytest

from attnkit import ConfigurationError, tokenizers
from attnkit.tokenizer import Tokenizer

LETTERS = "abcdefgh åßçñ 한국어 ≤"


def random_texts(rng: random.Random, count: int = 50) -> list[str]:
    return [" ".join("".join(rng.choices(LETTERS, k=rng.randint(1, 8))).split()) or "a" for _ in range(count)]


@pytest.fixture(params=tokenizers.names())
def untrained(request: pytest.FixtureRequest) -> Tokenizer:
    tokenizer: Tokenizer = tokenizers.build(request.param)
    return tokenizer


def test_decoding_gives_back_a_text_of_the_training_set(untrained: Tokenizer, rng: random.Random) -> None:
    texts = random_texts(rng)
    tokenizer = untrained.train(texts)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_own_tokens_come_after_the_special_ones(untrained: Tokenizer, rng: random.Random) -> None:
    texts = random_texts(rng)
    tokenizer = untrained.train(texts)
    ids = {i for text in texts for i in tokenizer.encode(text)}
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert min(ids) >= 4
    assert max(ids) < len(tokenizer)


def test_decoding_leaves_out_pad_and_bos_and_ends_at_eos(untrained: Tokenizer, rng: random.Random) -> None:
    text = random_texts(rng, 1)[0]
    tokenizer = untrained.train([text])
    ids = tokenizer.encode(text)
    assert tokenizer.decode([0, 1, *ids, 2, *ids, 0]) == text


def test_special_names_in_a_text_are_text(untrained: Tokenizer) -> None:
    tokenizer = untrained.train(["a <eos> b"])
    assert min(tokenizer.encode("a <eos> b")) >= 4
    assert tokenizer.decode(tokenizer.encode("a <eos> b")) == "a <eos> b"


def test_labels_are_one_per_id_special_ones_included(untrained: Tokenizer) -> None:
    tokenizer = untrained.train(["a"])
    assert tokenizer.tokens([1, *tokenizer.encode("a"), 2, 0, 3]) == ["<bos>", "a", "<eos>", "<pad>", "<unk>"]


def test_lowercase_applies_to_training_and_encoding(untrained: Tokenizer) -> None:
    tokenizer = tokenizers.build({"name": untrained.spec["name"], "lowercase": True}).train(["Ab cD"])
    assert tokenizer.encode("aB Cd") == tokenizer.encode("ab cd")
    assert tokenizer.decode(tokenizer.encode("AB CD")) == "ab cd"


def test_the_spec_survives_json_and_rebuilds_an_equal_tokenizer(untrained: Tokenizer, rng: random.Random) -> None:
    texts = random_texts(rng)
    tokenizer = untrained.train(texts)
    rebuilt = tokenizers.build(json.loads(json.dumps(tokenizer.spec)))
    assert rebuilt.spec == tokenizer.spec
    assert len(rebuilt) == len(tokenizer)
    unseen = random_texts(rng)
    assert [rebuilt.encode(text) for text in unseen] == [tokenizer.encode(text) for text in unseen]


def test_training_is_deterministic_and_returns_a_new_tokenizer(untrained: Tokenizer, rng: random.Random) -> None:
    texts = random_texts(rng)
    assert untrained.train(texts).spec == untrained.train(texts).spec
    assert not untrained.trained


def test_encoding_before_training_says_what_to_do(untrained: Tokenizer) -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer is not trained: call \.train\(texts\), or build it from the \.spec"):
        untrained.encode("a")


def test_workers_can_have_a_copy(untrained: Tokenizer) -> None:
    tokenizer = untrained.train(["ab ba"])
    assert pickle.loads(pickle.dumps(tokenizer)).encode("ab") == tokenizer.encode("ab")
