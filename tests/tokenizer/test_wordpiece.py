import random

import pytest

from attnkit import ConfigurationError, tokenizers
from attnkit.tokenizer import Tokenizer

TOKENS = ["[PAD]", "un", "##aff", "##able", "##a", "aff", "able", ",", ".", "Été", "ete", "中", "[SEP]", "'", "s", "it", "["]


def built(**options: object) -> Tokenizer:
    tokenizer: Tokenizer = tokenizers.build({"name": "wordpiece", "tokens": TOKENS, **options})
    return tokenizer


def labels(text: str, **options: object) -> list[str]:
    tokenizer = built(**options)
    return tokenizer.tokens(tokenizer.encode(text))


def test_words_are_split_into_the_longest_pieces_from_the_left() -> None:
    assert labels("unaffable, able.") == ["un", "##aff", "##able", ",", "able", "."]
    assert labels("it's") == ["it", "'", "s"]


def test_a_word_that_cannot_be_split_is_unknown_as_a_whole() -> None:
    assert labels("unable unaffx") == ["un", "##able", "<unk>"]
    assert labels("unaff" + "a" * 95) == ["un", "##aff", *["##a"] * 95]
    assert labels("unaff" + "a" * 96) == ["<unk>"]


def test_lowercasing_removes_accents() -> None:
    assert labels("Été") == ["Été"]
    assert labels("Été", lowercase=True) == ["ete"]


def test_chinese_characters_and_brackets_are_split_and_special_names_unparsed() -> None:
    assert labels("中中[SEP]") == ["中", "中", "[", "<unk>", "<unk>"]


def test_decoding_joins_words_with_spaces_but_not_before_punctuation() -> None:
    tokenizer = built(extra_tokens=["<mask>"])
    assert tokenizer.decode(tokenizer.encode("unaffable ,  <mask>un")) == "unaffable, <mask> un"
    assert tokenizer.begins_word(tokenizer.encode("unaffable")) == [True, False, False]


def test_unknown_words_are_shown_in_their_original_spelling() -> None:
    assert built(lowercase=True).unknown("it ÄRGER un's Q") == ["ÄRGER", "Q"]


def test_ids_match_transformers_for_the_same_vocabulary() -> None:
    transformers = pytest.importorskip("transformers")
    vocabulary = {token: i for i, token in enumerate(["[UNK]", *TOKENS, "[CLS]", "[MASK]"])}
    theirs = transformers.BertTokenizer(vocab=vocabulary, do_lower_case=True)
    ours = built(lowercase=True)
    for text in ("unaffable, able. It's ÉTÉ", "", "中able\tun\n", "unaff\x00able", "x" * 200 + " it"):
        wanted = theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.encode(text) == [ours.unk_id if i == 0 else 3 + i for i in wanted], text


def test_training_yields_the_requested_size_and_a_stable_order(rng: random.Random) -> None:
    words = ["".join(rng.choices("abcdefgh", k=rng.randint(1, 7))) for _ in range(300)]
    texts = [" ".join(rng.choices(words, k=12)) for _ in range(200)]
    untrained = tokenizers.build({"name": "wordpiece", "vocab_size": 250, "extra_tokens": ["<mask>"]})
    first, *others = (untrained.train(texts) for _ in range(4))
    assert len(first) == 250
    within = [token for token in first.spec["tokens"] if len(token) == 3 and token.startswith("##")]
    assert within == sorted(within)  # a set's order differs between processes
    assert all(other.spec == first.spec for other in others)
    assert all(first.unknown(text) == [] for text in texts)


def test_every_training_character_has_an_id_even_in_a_small_vocabulary() -> None:
    tokenizer = tokenizers.build({"name": "wordpiece", "vocab_size": 4}).train(["abc cab"])
    assert set(tokenizer.spec["tokens"]) == {"a", "b", "c", "##a", "##b", "##c"}
    assert tokenizer.unknown("bca") == []


@pytest.mark.parametrize("tokens", [["a", "a"], ["a", ""], ["\0"]])
def test_duplicate_tokens_are_rejected(tokens: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="must be distinct, not empty and different from"):
        tokenizers.build({"name": "wordpiece", "tokens": tokens})


def test_a_vocabulary_smaller_than_its_special_tokens_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="vocab_size must be at least 5, but is 4"):
        tokenizers.build({"name": "wordpiece", "vocab_size": 4, "extra_tokens": ["<mask>"]})
