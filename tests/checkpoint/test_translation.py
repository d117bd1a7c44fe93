"""Data sections of earlier versions, in today's words."""

import shlex
from typing import Any

import pytest

from attnkit.checkpoint import CheckpointError
from attnkit.checkpoint.outdated import without_outdated_data
from attnkit.cli.arguments import read_arguments
from attnkit.registry import datasets


def read(recipe: dict[str, Any], *, task: str = "masked_lm", **saved: Any) -> tuple[dict[str, Any], str | None]:
    """Return what `attnkit test x` reads of a recipe in a checkpoint."""
    checkpoint = {"attnkit": {"version": "0.1.0", "task": task}, **saved}
    return without_outdated_data(recipe, checkpoint, "old.ckpt", given=None, command=["attnkit", "test", "x"])


COMMON = {"predict": None, "batch_tokens": 2048, "seed": 1, "num_workers": 0}
PAIRS = {**COMMON, "src_tokenizer": "word", "tgt_tokenizer": "word", "max_length": None}
TEXT = {**COMMON, "tokenizer": "word", "context": 64, "stride": None, "document_mask": False}
LABELLED = {**COMMON, "labels": "class", "tokenizer": "word", "max_length": 128}
IMAGES = {key: COMMON[key] for key in ("predict", "seed", "num_workers")} | {"shift": 2, "flip": True, "augmentation": [], "batch_size": 8}
FILES = {"train": "a.tsv", "validation": None, "test": "b.tsv", "validation_fraction": 0.1}


@pytest.mark.parametrize(
    ("old", "corpus", "framing"),
    [
        ({"name": "text_pairs", "source_column": "de", "target_column": 1, **FILES, **PAIRS},
         {"name": "files", **FILES, "columns": ["de", 1]}, {"name": "text_pairs", **PAIRS}),
        ({"name": "labelled_text", "text_column": "text", "label_column": "sign", "classes": None, **FILES, **LABELLED},
         {"name": "files", **FILES, "columns": ["text", "sign"]}, {"name": "labelled_text", "classes": None, **LABELLED}),
        ({"name": "text", "column": "text", "separator": "--", "test_fraction": 0.1, **FILES, **TEXT},
         {"name": "files", **FILES, "test_fraction": 0.1, "separator": "--", "columns": ["text"]}, {"name": "text", **TEXT}),
        ({"name": "labelled_images", "image_column": "image", "label_column": "label", "mean": None, **FILES, **IMAGES},
         {"name": "files", **FILES, "columns": ["image", "label"]}, {"name": "labelled_images", "mean": None, **IMAGES}),
        ({"name": "cmudict", "max_validation_words": 9, **PAIRS},
         {"name": "cmudict"}, {"name": "text_pairs", "max_validation_sources": 9, **PAIRS}),
        ({"name": "scan", "split": "length", "validation_commands": 9, **PAIRS},
         {"name": "scan", "split": "length", "validation_commands": 9}, {"name": "text_pairs", **PAIRS}),
        ({"name": "libreoffice_help", "source": "de", "target": "en", "folder": "d", "max_validation_pairs": 9, **PAIRS},
         {"name": "libreoffice_help", "source": "de", "target": "en", "folder": "d"},
         {"name": "text_pairs", "max_validation_sources": 9, **PAIRS}),
        ({"name": "kjv", "folder": "d", **TEXT}, {"name": "kjv", "folder": "d"}, {"name": "text", **TEXT}),
        ({"name": "movie_snippets", "unlabelled": ["imdb", "tweets"], "folder": "d", **LABELLED},
         {"name": "movie_snippets", "folder": "d"},
         {"name": "labelled_text", "unlabelled": [{"name": "imdb", "folder": "d"},
                                                  {"name": "movie_snippets", "domain": "tweets", "folder": "d"}], **LABELLED}),
        ({"name": "movie_snippets", "unlabelled": ["imdb_passages", "amazon"], "folder": "data", **LABELLED},
         {"name": "movie_snippets", "folder": "data"},
         {"name": "labelled_text", "unlabelled": [{"name": "imdb"}, {"name": "movie_snippets", "domain": "amazon"}], "passage_words": 80,
          **LABELLED}),
        ({"name": "fashion_mnist", "folder": "d", "validation_images": 9, **IMAGES},
         {"name": "fashion_mnist", "folder": "d", "validation_images": 9}, {"name": "labelled_images", **IMAGES}),
        ({"name": "span_corruption", "text": "kjv", "context": 32, "density": 0.2, "src_tokenizer": "word", **COMMON},
         {"name": "kjv"}, {"name": "span_corruption", "context": 32, "density": 0.2, "src_tokenizer": "word", **COMMON}),
        ({"name": "text_pairs", "on_bad_rows": "skip", **FILES, **PAIRS},
         {"name": "files", **FILES, "on_bad_rows": "skip"}, {"name": "text_pairs", **PAIRS}),
        ({"name": "span_corruption", "text": {"name": "text", "on_bad_rows": "error", "column": "text", **FILES, **TEXT}, "context": 32,
          "src_tokenizer": "word", **COMMON},
         {"name": "files", **FILES, "columns": ["text"], "on_bad_rows": "error"},
         {"name": "span_corruption", "context": 32, "src_tokenizer": "word", **COMMON}),
    ],
)  # fmt: skip
def test_first_edition_data_sets_translate_to_a_framing_and_a_corpus(
    old: dict[str, Any], corpus: dict[str, Any], framing: dict[str, Any]
) -> None:
    recipe, note = read({"data": old, "name": "r"})
    assert recipe == {"name": "r", "data": {**framing, "corpus": corpus}}
    assert note is not None
    datasets.resolve(recipe["data"])


def test_first_edition_tokenizers_move_to_the_framing() -> None:
    trained = {"name": "word", "tokens": ["jump", "walk"]}
    old = {"name": "scan", "split": "length", "validation_commands": 9, **PAIRS, "tgt_tokenizer": None}
    recipe, _ = read({"data": old}, Scan={"src_tokenizer": trained, "tgt_tokenizer": trained})
    assert (recipe["data"]["src_tokenizer"], recipe["data"]["tgt_tokenizer"]) == (trained, None)


def test_a_data_section_without_a_valid_translation_is_rejected() -> None:
    """Sentences of WordNet are no source of texts any more, and passages of reviews are cut in one way only."""
    for sources, kept in ((["wordnet", "amazon"], "amazon"), (["imdb", "imdb_passages"], "imdb")):
        old = {"name": "movie_snippets", "unlabelled": sources, "folder": "d", **LABELLED}
        with pytest.raises(CheckpointError, match=r"Give the data again: add --config RECIPE") as refused:
            read({"data": old})
        assert f"without what attnkit no longer has (unlabelled {sources[0]!r})" in str(refused.value)
        given = read_arguments(shlex.split(str(refused.value).splitlines()[-1])[2:])
        section = datasets.resolve(given.flags["data"])
        assert (section["name"], section["corpus"]["folder"], section["batch_tokens"]) == ("labelled_text", "d", 2048)
        assert kept in section["unlabelled"][0].values()


@pytest.mark.parametrize(
    ("old", "today"),
    [
        ({"name": "cmudict", "on_bad_rows": None}, {"name": "cmudict"}),
        ({"name": "fashion_mnist", "source": "package", "folder": "d"}, {"name": "fashion_mnist", "source": "auto", "folder": "d"}),
        ({"name": "imdb", "source": "hub", "folder": "d", "on_bad_rows": None}, {"name": "imdb", "source": "hub", "folder": "d"}),
        ({"name": "hub", "path": "wmt16", "config": "de-en", "max_rows": 9}, {"name": "files", "hub": "wmt16:de-en", "max_rows": 9}),
        ({"name": "hub", "path": "stanfordnlp/imdb", "config": None}, {"name": "files", "hub": "stanfordnlp/imdb"}),
    ],
)
def test_a_corpus_with_outdated_arguments_is_read(old: dict[str, Any], today: dict[str, Any]) -> None:
    recipe, note = read({"data": {"name": "labelled_text", "corpus": old, "unlabelled": [old], **LABELLED}})
    assert recipe["data"] == {"name": "labelled_text", "corpus": today, "unlabelled": [today], **LABELLED}
    assert note is not None


@pytest.mark.parametrize(
    "section", [None, 3, [], {}, {"name": ["text"]}, {"name": "x", "corpus": 3}, {"name": "movie_snippets", "unlabelled": [[]]}]
)
def test_an_invalid_data_section_is_rejected(section: Any) -> None:
    with pytest.raises(CheckpointError, match="run"):
        read({"data": section})


def test_a_custom_task_may_have_any_data() -> None:
    with pytest.raises(CheckpointError, match=r"where NAME is a data module \(`attnkit list datasets`\):\n  attnkit test x --data NAME$"):
        read({"data": {"name": "gone"}}, task="of_mine")
