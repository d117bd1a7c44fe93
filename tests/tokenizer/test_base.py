"""The contract of every registered tokenizer."""

import json
import pickle
import random
import unicodedata
from typing import Any

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


def test_decoding_restores_a_training_text(untrained: Tokenizer, rng: random.Random) -> None:
    texts = random_texts(rng)
    tokenizer = untrained.train(texts)
    assert [tokenizer.decode(tokenizer.encode(text)) for text in texts] == texts


def test_the_vocabulary_follows_the_special_tokens(untrained: Tokenizer, rng: random.Random) -> None:
    texts = random_texts(rng)
    tokenizer = untrained.train(texts)
    ids = {i for text in texts for i in tokenizer.encode(text)}
    assert (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id) == (0, 1, 2, 3)
    assert min(ids) >= 4
    assert max(ids) < len(tokenizer)


def test_decoding_skips_pad_and_bos_and_stops_at_eos(untrained: Tokenizer, rng: random.Random) -> None:
    text = random_texts(rng, 1)[0]
    tokenizer = untrained.train([text])
    ids = tokenizer.encode(text)
    assert tokenizer.decode([0, 1, *ids, 2, *ids, 0]) == text


def test_special_token_names_in_a_text_are_plain_text(untrained: Tokenizer) -> None:
    tokenizer = untrained.train(["a <eos> b"])
    assert min(tokenizer.encode("a <eos> b")) >= 4
    apart = tokenizer.spec["name"] == "wordpiece"  # it keeps no spaces at punctuation marks
    assert tokenizer.decode(tokenizer.encode("a <eos> b")) == ("a < eos > b" if apart else "a <eos> b")


def test_every_id_has_one_label_including_special_tokens(untrained: Tokenizer) -> None:
    tokenizer = untrained.train(["a"])
    assert tokenizer.tokens([1, *tokenizer.encode("a"), 2, 0, 3]) == ["<bos>", "a", "<eos>", "<pad>", "<unk>"]


@pytest.mark.parametrize("wrong", [-1, -100, 10**6])
def test_an_id_without_a_token_is_named(untrained: Tokenizer, wrong: int) -> None:
    tokenizer = untrained.train(["a abc"])
    ids = tokenizer.encode("a")
    for read in (tokenizer.decode, tokenizer.tokens):
        with pytest.raises(IndexError, match=rf"the id {wrong} is outside of the vocabulary, whose ids are 0 to {len(tokenizer) - 1}"):
            read([*ids, wrong])
    assert tokenizer.decode([*ids, tokenizer.eos_id, wrong]) == "a"


def test_lowercase_applies_to_training_and_encoding(untrained: Tokenizer) -> None:
    tokenizer = tokenizers.build({"name": untrained.spec["name"], "lowercase": True}).train(["Ab cD"])
    assert tokenizer.encode("aB Cd") == tokenizer.encode("ab cd")
    assert tokenizer.decode(tokenizer.encode("AB CD")) == "ab cd"


def test_the_spec_round_trips_through_json_and_rebuilds_the_tokenizer(untrained: Tokenizer, rng: random.Random) -> None:
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


def test_encoding_before_training_raises_with_advice(untrained: Tokenizer) -> None:
    with pytest.raises(ConfigurationError, match=r"tokenizer is not trained: call \.train\(texts\), or build it from the \.spec"):
        untrained.encode("a")


def test_tokenizers_can_be_pickled(untrained: Tokenizer) -> None:
    tokenizer = untrained.train(["ab ba"])
    assert pickle.loads(pickle.dumps(tokenizer)).encode("ab") == tokenizer.encode("ab")


def with_extra(untrained: Tokenizer, *extra_tokens: str) -> Tokenizer:
    tokenizer: Tokenizer = tokenizers.build({"name": untrained.spec["name"], "extra_tokens": list(extra_tokens)})
    return tokenizer


def test_extra_tokens_directly_follow_the_special_tokens(untrained: Tokenizer, rng: random.Random) -> None:
    texts = random_texts(rng)
    plain, tokenizer = untrained.train(texts), with_extra(untrained, "<mask>", "<b>").train(texts)
    assert (tokenizer.id_of("<pad>"), tokenizer.id_of("<mask>"), tokenizer.id_of("<b>")) == (0, 4, 5)
    for text in texts:
        assert tokenizer.encode(text) == [i + 2 for i in plain.encode(text)]


def test_an_extra_token_in_a_text_is_one_id_and_round_trips(untrained: Tokenizer, rng: random.Random) -> None:
    words = [rng.choice(["ab", "cd", "<mask>", "<masked>"]) for _ in range(30)]
    text = " ".join(words)
    tokenizer = with_extra(untrained, "<mask>", "<masked>").train([text])
    ids = tokenizer.encode(text)
    assert [i for i in ids if i in (4, 5)] == [4 if w == "<mask>" else 5 for w in words if "<" in w]
    assert tokenizer.decode(ids) == text
    assert tokenizer.tokens([4, 5]) == ["<mask>", "<masked>"]


def test_the_spec_preserves_extra_tokens_and_their_absence(untrained: Tokenizer) -> None:
    tokenizer = with_extra(untrained, "<mask>").train(["a <mask> b"])
    rebuilt = tokenizers.build(json.loads(json.dumps(tokenizer.spec)))
    assert rebuilt.encode("a <mask> b") == tokenizer.encode("a <mask> b")
    old = {name: value for name, value in untrained.train(["ab ba"]).spec.items() if name != "extra_tokens"}
    assert tokenizers.build(old).spec == untrained.train(["ab ba"]).spec


def test_an_extra_token_is_not_lowercased(untrained: Tokenizer) -> None:
    spec = {"name": untrained.spec["name"], "lowercase": True, "extra_tokens": ["<MASK>"]}
    tokenizer = tokenizers.build(spec).train(["Ab Cd"])
    assert tokenizer.decode(tokenizer.encode("AB <MASK> cD")) == "ab <MASK> cd"


@pytest.mark.parametrize("extra", [["<a>", "<a>"], [""], ["<eos>"]])
def test_ambiguous_extra_tokens_are_refused(untrained: Tokenizer, extra: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="extra_tokens must be distinct, not empty and different from special tokens"):
        with_extra(untrained, *extra)


def test_a_missing_token_raises_with_the_recipe_line_to_add(untrained: Tokenizer) -> None:
    with pytest.raises(ConfigurationError, match=r"no token '<mask>'\. Train one with it: data.tokenizer.extra_tokens: \[<a>, <mask>\]"):
        with_extra(untrained, "<a>").id_of("<mask>")


def test_words_begin_at_white_space_and_punctuation(untrained: Tokenizer, rng: random.Random) -> None:
    words = [rng.choice(["dog", "lamp", "각하", "été", "12"]) for _ in range(40)]
    text = " ".join(words) + "."
    tokenizer = with_extra(untrained, "<mask>").train([text])
    ids = tokenizer.encode(text)
    begins = [True, *tokenizer.begins_word(ids)[1:]]
    groups: list[list[int]] = []
    for i, begin in zip(ids, begins, strict=True):
        groups = [*groups, [i]] if begin else [*groups[:-1], [*groups[-1], i]]
    found = [tokenizer.decode(group).strip() for group in groups]
    assert found == ([*words[:-1], f"{words[-1]}."] if tokenizer.spec["name"] == "word" else [*words, "."])
    assert tokenizer.begins_word([0, 1, 2, 3, 4]) == [True] * 5


KOREAN = "한국 각하"
DECOMPOSED = unicodedata.normalize("NFD", KOREAN)  # two or three letters per syllable


def test_decomposed_and_composed_korean_are_equivalent(untrained: Tokenizer) -> None:
    for texts in ([KOREAN], [DECOMPOSED]):
        tokenizer = untrained.train(texts)
        assert tokenizer.encode(DECOMPOSED) == tokenizer.encode(KOREAN)
        assert tokenizer.unknown(DECOMPOSED) == []
        assert tokenizer.decode(tokenizer.encode(DECOMPOSED)) == KOREAN
    assert untrained.train([KOREAN]).spec == untrained.train([DECOMPOSED]).spec


@pytest.mark.parametrize(("form", "text"), [("NFD", DECOMPOSED), ("NFKC", "ﬁ １ 각"), ("NFKD", "ﬁ １ 각")])
def test_texts_are_normalised_to_the_requested_form(untrained: Tokenizer, form: Any, text: str) -> None:
    tokenizer = tokenizers.build({"name": untrained.spec["name"], "normalization": form}).train([KOREAN, text])
    assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize(form, text) == tokenizer.normalized(text)
    assert tokenizers.build(json.loads(json.dumps(tokenizer.spec))).encode(text) == tokenizer.encode(text)


def test_without_normalization_composed_and_decomposed_differ(untrained: Tokenizer) -> None:
    tokenizer = tokenizers.build({"name": untrained.spec["name"], "normalization": "none"}).train([KOREAN, DECOMPOSED])
    assert tokenizer.encode(DECOMPOSED) != tokenizer.encode(KOREAN)
    assert tokenizer.decode(tokenizer.encode(DECOMPOSED)) == DECOMPOSED


def test_a_trained_spec_that_predates_normalization_still_encodes_the_same(untrained: Tokenizer) -> None:
    never = tokenizers.build({"name": untrained.spec["name"], "normalization": "none"}).train([KOREAN, DECOMPOSED])
    old = {name: value for name, value in never.spec.items() if name != "normalization"}
    for spec in (
        old,
        tokenizers.resolve(old),
        json.loads(json.dumps(tokenizers.resolve(old).plain())),
    ):
        rebuilt = tokenizers.build(spec)
        assert rebuilt.spec == never.spec
        assert rebuilt.encode(DECOMPOSED) == never.encode(DECOMPOSED) != rebuilt.encode(KOREAN)


def test_the_spec_contains_the_normalization_which_is_nfc_by_default(untrained: Tokenizer) -> None:
    assert untrained.spec["normalization"] == "NFC"
    assert untrained.train(["a"]).spec["normalization"] == "NFC"


def test_an_unknown_normalization_form_is_rejected(untrained: Tokenizer) -> None:
    with pytest.raises(ConfigurationError, match=r"normalization must be .*NFKC.* but is 'nfc'"):
        tokenizers.build({"name": untrained.spec["name"], "normalization": "nfc"})


def test_an_extra_token_is_unaffected_by_normalisation(untrained: Tokenizer) -> None:
    extra = unicodedata.normalize("NFD", "<é>")
    text = f"{DECOMPOSED} {extra}\u0338 {extra}"  # '>' and U+0338 compose to '≯'
    tokenizer = tokenizers.build({"name": untrained.spec["name"], "extra_tokens": [extra]}).train([text])
    assert tokenizer.encode(text).count(4) == 2
    assert tokenizer.tokens([4]) == [extra]


def test_every_id_has_a_symbol_and_unknown_ids_show_the_original_text(untrained: Tokenizer) -> None:
    tokenizer = with_extra(untrained, "<mask>").train(["한국 ab"])
    text = f"{DECOMPOSED} <mask> ab"
    assert len(tokenizer.symbols(text)) == len(tokenizer.encode(text))
    unknown = tokenizer.unknown(text)
    assert unknown == {"bpe": [], "character": ["각", "하"], "word": ["각하"], "wordpiece": ["각하"]}[tokenizer.spec["name"]]
    assert [s for s, i in zip(tokenizer.symbols(text), tokenizer.encode(text), strict=True) if i == tokenizer.unk_id] == unknown
