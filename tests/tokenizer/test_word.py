import random

from attnkit import tokenizers


def test_any_white_space_separates_words(rng: random.Random) -> None:
    words = rng.sample(["HH", "AH", "L", "OW", "K", "IH"], k=5)
    tokenizer = tokenizers.build("word").train([" ".join(words)])
    spaced = "".join(word + rng.choice([" ", "\t", "  ", "\n"]) for word in words)
    assert tokenizer.encode(spaced) == [4 + sorted(words).index(word) for word in words]
    assert tokenizer.decode(tokenizer.encode(spaced)) == " ".join(words)


def test_unknown_words_become_unk() -> None:
    tokenizer = tokenizers.build("word").train(["the cat"])
    assert tokenizer.encode("the dog") == [5, 3]
    assert tokenizer.decode([5, 3]) == "the <unk>"


def test_rare_words_stay_out_of_the_vocabulary() -> None:
    tokenizer = tokenizers.build({"name": "word", "min_count": 2}).train(["the cat", "the dog"])
    assert tokenizer.spec["tokens"] == ["the"]


def test_separating_punctuation_merges_word_forms() -> None:
    tokenizer = tokenizers.build({"name": "word", "punctuation": "apart"}).train(['God, "God" (don\'t) 왕!'])
    assert tokenizer.spec["tokens"] == sorted(['"', "(", ")", ",", "!", "God", "don't", "왕"])
    assert tokenizers.build(tokenizer.spec).decode(tokenizer.encode("God, God!")) == "God , God !"
