import random

import pytest

from attnkit import ConfigurationError, tokenizers


def test_every_character_is_one_token_in_sorted_order(rng: random.Random) -> None:
    text = "".join(rng.choices("xyzabc 각", k=100))
    tokenizer = tokenizers.build("character").train([text])
    alphabet = sorted(set(text))
    assert tokenizer.encode(text) == [4 + alphabet.index(c) for c in text]
    assert len(tokenizer) == 4 + len(alphabet)


def test_unknown_characters_become_unk() -> None:
    tokenizer = tokenizers.build("character").train(["abc"])
    assert tokenizer.encode("a!c") == [4, 3, 6]
    assert tokenizer.decode([4, 3, 6]) == "a<unk>c"


def test_rare_characters_stay_out_of_the_vocabulary() -> None:
    tokenizer = tokenizers.build({"name": "character", "min_count": 2}).train(["aab", "bc"])
    assert tokenizer.spec["tokens"] == ["a", "b"]


@pytest.mark.parametrize("tokens", [["a", "b", "a"], ["a", ""]])
def test_repeated_or_empty_tokens_are_refused(tokens: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="must be distinct and not empty"):
        tokenizers.build({"name": "character", "tokens": tokens})
