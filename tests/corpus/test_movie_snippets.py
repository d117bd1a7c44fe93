"""The movie snippets, in the format of the real archive."""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import movie_snippets

import attnkit
from attnkit import ConfigurationError
from attnkit.corpus.imdb import IMDB
from attnkit.data.labelled_text import passages, sentences


def corpus(folder: Path, **arguments: Any) -> Any:
    return attnkit.corpora.build({"name": "movie_snippets", "folder": str(folder)}, **arguments)


def make(folder: Path, *, unlabelled: Sequence[str] = (), **arguments: Any) -> Any:
    """Build the framing; `unlabelled` are `imdb` and domains of the same archive."""
    others = [
        {"name": "imdb", "folder": str(folder)} if name == "imdb" else {"name": "movie_snippets", "domain": name, "folder": str(folder)}
        for name in unlabelled
    ]
    spec = {"name": "labelled_text", "corpus": {"name": "movie_snippets", "folder": str(folder)}, "unlabelled": others, "tokenizer": "word"}
    return attnkit.datasets.build({**spec, **arguments})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    movie_snippets.write(tmp_path)
    return tmp_path


def test_every_sentence_is_in_one_split_and_each_split_mixes_labels(folder: Path) -> None:
    parts = {part: corpus(folder).labelled(part) for part in ("train", "validation", "test")}
    texts = [text for part in parts.values() for text, _ in part]
    assert sorted(texts) == sorted(text for _, text in movie_snippets.rated())
    assert {label for _, label in parts["train"]} == {"negative", "neutral", "positive"}
    assert all(parts.values())


def test_class_boundaries_match_the_paper(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {-4.0: "negative", -0.2: "negative", -0.19: "neutral", 0.0: "neutral", 0.19: "neutral", 0.2: "positive", 4.0: "positive"}
    monkeypatch.setattr(movie_snippets, "rated", lambda: [(rating, f"text {i} {j}") for i, rating in enumerate(wanted) for j in range(9)])
    movie_snippets.write(folder)
    found = dict(pair for part in ("train", "validation", "test") for pair in corpus(folder).labelled(part))
    assert found == {f"text {i} {j}": label for i, label in enumerate(wanted.values()) for j in range(9)}


def test_numeric_labels_are_mean_ratings(folder: Path) -> None:
    data = make(folder, labels="number")
    ratings = {text: rating for rating, text in movie_snippets.rated()}
    for batch in data.test_dataloader():
        torch.testing.assert_close(batch["label"], torch.tensor([ratings[text] for text in batch["text"]]))


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_unlabelled_texts_are_added_to_training(folder: Path) -> None:
    plain, data = make(folder), make(folder, unlabelled=["imdb", "tweets"])
    tweets = [
        text for text, _ in attnkit.corpora.build({"name": "movie_snippets", "domain": "tweets", "folder": str(folder)}).labelled("train")
    ]
    added = [*data.unlabelled_texts()]
    assert added == [*movie_snippets.unrated()["imdb"], *tweets]
    assert tweets
    assert data.tokenizer_spec == plain.tokenizer_spec
    counts = [sum(len(batch["tokens"]) for batch in d.train_dataloader()) for d in (plain, data)]
    assert counts[1] == counts[0] + len(added)
    assert all("label" not in batch for batch in data.train_dataloader())
    for part in ("val_dataloader", "test_dataloader"):
        assert [b["text"] for b in getattr(data, part)()] == [b["text"] for b in getattr(plain, part)()]


def test_held_out_sentences_are_not_trained_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = [text for part in ("validation", "test") for text, _ in corpus(folder).labelled(part)]
    names = list(movie_snippets.unrated())
    texts = [*(f"{text}." for text in held_out), "another one."]
    monkeypatch.setattr(movie_snippets, "unrated", lambda: dict.fromkeys(names, texts))
    monkeypatch.setattr(movie_snippets, "rated", lambda: [(1.0, f"{text}{end}") for text in held_out for end in ("", ".")])
    movie_snippets.write(folder)
    kept = {text for part in ("validation", "test") for text, _ in corpus(folder).labelled(part)}
    whole = [text for text in kept if text.endswith(".")]
    assert whole
    for words in (None, 80):
        found = [*make(folder, unlabelled=["imdb", "tweets"], passage_words=words).unlabelled_texts()]
        assert any("another one." in text for text in found)
        assert not any(text in passage for passage in found for text in whole)


def test_reviews_have_one_of_two_labels(folder: Path) -> None:
    data = IMDB(folder=str(folder))
    assert {label for _, label in data.labelled("train")} <= {"negative", "positive"}
    with pytest.raises(ConfigurationError, match="imdb has no test split in its files"):
        data.labelled("test")
    path = folder / "imdb" / "train.jsonl"
    path.write_text(path.read_text().replace('"label": 1', '"label": -1'))
    with pytest.raises(ConfigurationError, match="has the label '-1', which is neither 0 nor 1"):
        data.labelled("train")


def test_passages_are_consecutive_sentences() -> None:
    row = [" ".join([f"s{i}"] * random.randint(1, 30)) for i in range(100)]
    found = list(passages(row, words=20))
    assert " ".join(found) == " ".join(row)
    lengths = [len(passage.split()) for passage in found]
    assert all(length <= 20 or passage in row for length, passage in zip(lengths, found, strict=True))
    firsts = [len(next(s for s in row if passage.startswith(f"{s} ") or passage == s).split()) for passage in found]
    assert all(length + first > 20 for length, first in zip(lengths[:-1], firsts[1:], strict=True)), "the next sentence would have had room"


def test_sentences_end_at_line_breaks_or_punctuation_before_white_space() -> None:
    assert sentences("  A bore!  Or not?\nIt lasts 2.5 hours. \n\n\u2028x") == ["A bore!", "Or not?", "It lasts 2.5 hours.", "x"]


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_a_labelled_task_rejects_unlabelled_texts(folder: Path) -> None:
    data = make(folder, unlabelled=["editorials"])
    stack = {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    task = attnkit.tasks.build({"name": "classification", "stack": stack, "tokenizer": data.tokenizer_spec, "classes": data.classes})
    task.configure_model()
    with pytest.raises(ConfigurationError, match=r"remove data.unlabelled"):
        task.objective(next(iter(data.train_dataloader())))


def test_an_unknown_domain_is_named(folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"domain must be Literal\['movies', 'amazon', 'editorials', 'tweets'\], but is 'tweet'"):
        make(folder, unlabelled=["tweet"])
