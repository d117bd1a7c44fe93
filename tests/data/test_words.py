from pathlib import Path
from typing import Any

import pytest
from samples.framed import framed

from attnkit import ConfigurationError, tokenizers
from attnkit.data.words import read_words

TAGGED = "words\ttags\nthe cat sat\tD N V\nunbelievable cats\tA N\n"


def tagged(tmp_path: Path, text: str = TAGGED, **arguments: Any) -> Any:
    path = tmp_path / "tags.tsv"
    path.write_text(text, encoding="utf-8")
    return framed("tagged_text", **{"train": str(path), "test": str(path), **arguments})


def asked(tmp_path: Path, rows: str, **arguments: Any) -> Any:
    path = tmp_path / "questions.tsv"
    path.write_text(f"question\tpassage\tanswer\tstart\n{rows}", encoding="utf-8")
    return framed("questions", **{"train": str(path), "test": str(path), "tokenizer": "character", **arguments})


@pytest.mark.parametrize("tokenizer", ["word", "character", {"name": "bpe", "vocab_size": 270}])
def test_only_the_first_token_of_each_word_carries_its_tag(tmp_path: Path, tokenizer: Any) -> None:
    data = tagged(tmp_path, tokenizer=tokenizer)
    (batch,) = data.test_dataloader()
    for tokens, words, label, text in zip(batch["tokens"], batch["words"], batch["label"], batch["text"], strict=True):
        begins = (words > 0).nonzero().flatten().tolist()
        expected = {"the cat sat": [1, 2, 3], "unbelievable cats": [0, 2]}[text]
        assert label[label >= 0].tolist() == expected
        assert (label >= 0).nonzero().flatten().tolist() == begins
        ends = [*begins[1:], int((tokens != 0).sum()) - 1]
        assert [data.tokenizer.decode(tokens[a:b].tolist()).strip() for a, b in zip(begins, ends, strict=True)] == text.split()


@pytest.mark.parametrize("separators", [1, 2])
def test_question_and_passage_are_separated_even_when_the_question_is_empty(separators: int, tmp_path: Path) -> None:
    data = asked(tmp_path, "a\tab\tab\t0\n\u200b\tab\tab\t0\n", tokenizer="wordpiece", separators=separators)
    (batch,) = data.test_dataloader()
    a, b = data.tokenizer.encode("a"), data.tokenizer.encode("ab")
    between = [2] * separators
    assert sorted(batch["tokens"].tolist()) == sorted([[1, *a, *between, *b, 2], [1, *between, *b, 2, 0]])


@pytest.mark.parametrize("removed", ["\u200b", "\ufffd"])
def test_a_word_whose_characters_are_all_removed_is_unknown(removed: str) -> None:
    tokenizer = tokenizers.build("wordpiece").train(["the cat"])
    the, cat = tokenizer.encode("the cat")
    assert tokenizer.encode(removed) == []
    assert read_words(tokenizer, ["the", removed, "cat"]) == ([1, the, 3, cat, 2], [0, 1, 2, 3, 0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "words\ttags\nthe cat\tD\n",
            r"tags\.tsv:2: 2 words and 1 tag: 'the cat'; each word needs one tag\. Correct .* on_bad_rows: skip",
        ),
        ("words\ttags\n", "the training data are empty"),
        ("", "empty"),
        ("text\tlabel\na\tb\n", "no column 'words'"),
    ],
)
def test_bad_tag_tables_raise_one_error(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        tagged(tmp_path, text).train_dataloader()


def test_bad_tag_and_question_rows_are_skipped_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "tags.tsv").write_text("words\ttags\nthe cat\tD\n\na cat\tD N\n", encoding="utf-8")
    (tmp_path / "questions.tsv").write_text(
        "question\tpassage\tanswer\tstart\nwho\tthe cat\tdog\t0\nwho\tthe cat\tcat\t4\n", encoding="utf-8"
    )
    for framing, name in (("tagged_text", "tags.tsv"), ("questions", "questions.tsv")):
        data = framed(framing, train=str(tmp_path / name), on_bad_rows="skip", tokenizer="word")
        assert sum(len(batch["tokens"]) for batch in data.train_dataloader()) == 1
        assert f"1 bad row skipped, first: {tmp_path / name}:2: " in caplog.text


def test_a_tag_missing_from_training_is_named_with_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "other.tsv").write_text("words\ttags\ncat\tn\n", encoding="utf-8")
    with pytest.raises(ConfigurationError, match=r"the tag 'n', which is not a training tag.*Tags: A, D, N, V"):
        tagged(tmp_path, test=str(tmp_path / "other.tsv"), tokenizer="word").test_dataloader()


def test_long_sentences_are_omitted_from_training_only(tmp_path: Path) -> None:
    data = tagged(tmp_path, tokenizer="word", max_length=4)
    assert sum(len(batch["tokens"]) for batch in data.train_dataloader()) == 1
    assert sum(len(batch["tokens"]) for batch in data.test_dataloader()) == 2
    with pytest.raises(ConfigurationError, match="all 2 training sentences are longer than max_length=2"):
        tagged(tmp_path, tokenizer="word", max_length=2).train_dataloader()


def test_an_answer_is_the_span_of_words_it_touches(tmp_path: Path) -> None:
    (batch,) = asked(tmp_path, "who\tthe  old cat sat\told cat\t5\nwhat\ta cat\tca\t2\n").test_dataloader()
    for tokens, words, (first, last), row in zip(batch["tokens"], batch["words"], batch["label"], batch["text"], strict=True):
        assert (int(words[first]), int(words[last])) == {"who": (2, 3), "what": (2, 2)}[row.question]
        assert int(tokens[0]) == 1
        assert not words[: 2 + len(row.question)].any()  # the question is no answer


def test_an_answer_inside_words_is_extended_to_whole_words_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = asked(tmp_path, 'who\tsee "the cat".\tthe cat\t5\nwhat\ta dog\tdog\t2\n')
    (batch,) = data.test_dataloader()
    assert {row.question: (row.answer, row.start) for row in batch["text"]} == {"who": ('"the cat".', 4), "what": ("dog", 2)}
    assert "1 with an answer extended to whole words, first: 'the cat' to '\"the cat\".'" in caplog.text


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("who\tthe cat\tdog\t0\n", "the passage does not contain 'dog' at character 0"),
        ("who\tthe cat\tcat\t3\n", "the passage does not contain 'cat' at character 3"),
        ("who\tthe cat\tcat\t-3\n", "at character -3"),
        ("who\tthe cat\tcat\tx\n", "at character x"),
        (f"who\tthe cat\tcat\t{5000 * '9'}\n", "at character 999"),
        ("who\tthe cat\t \t3\n", "at character 3"),
        ("", "the training data are empty"),
    ],
)
def test_bad_question_tables_raise_one_error(tmp_path: Path, rows: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        asked(tmp_path, rows).train_dataloader()
