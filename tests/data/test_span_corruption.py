import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attnkit import ConfigurationError, datasets
from attnkit.data.loading import Share
from attnkit.data.span_corruption import Corruption, SpanCorruption

WORDS = [f"w{i}" for i in range(50)]


@pytest.fixture
def location(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> Path:
    """A table of documents, each of some words."""
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "texts.tsv"
    documents = [" ".join(rng.choice(WORDS, size=rng.integers(1, 120))) for _ in range(40)]
    path.write_text("\n".join(["text", " ".join(WORDS), *documents]) + "\n")
    return path


def make(location: Path, **arguments: object) -> SpanCorruption:
    corpus = {"name": "files", "train": str(location), "validation": str(location), "test": str(location)}
    data: SpanCorruption = datasets.build(
        {"name": "span_corruption", "corpus": corpus, "src_tokenizer": "word", "context": 32, "batch_tokens": 400} | arguments
    )
    return data


def merged(source: list[int], target: list[int], sentinels: range) -> list[int]:
    """The text that a source and its target were made of."""
    spans: dict[int, list[int]] = {}
    current: list[int] = []
    for token in target[1:-1]:
        if token in sentinels:
            current = spans[token] = []
        else:
            current.append(token)
    return [token for place in source[:-1] for token in spans.get(place, [place])]


def without_padding(row: list[int]) -> list[int]:
    return row[: row.index(2) + 1]


def batches_of(data: SpanCorruption, epoch: int = 0) -> list[tuple[list[int], list[int]]]:
    loader = data.train_dataloader()
    loader.sampler.set_epoch(epoch)  # as Lightning does
    rows = [pair for batch in loader for pair in zip(batch["src"].tolist(), batch["tgt"].tolist(), strict=True)]
    return [(without_padding(src), without_padding(tgt)) for src, tgt in rows]


def test_source_and_target_rebuild_the_text_with_the_papers_counts(rng: np.random.Generator) -> None:
    sentinels = range(4, 60)
    for _ in range(300):
        corruption = Corruption(density=float(rng.uniform(0.05, 0.9)), mean_length=float(rng.uniform(1, 6)))
        tokens = rng.integers(100, 1000, size=rng.integers(2, 60)).tolist()
        source, target = corruption.apply(tokens, sentinels, rng)
        assert merged(source, target, sentinels) == tokens
        (hidden,), (spans,) = corruption.counts(np.array([len(tokens)]))
        assert len(source) == len(tokens) - hidden + spans + 1
        assert [t for t in source if t in sentinels] == list(sentinels[:spans])
        assert [t for t in target if t in sentinels] == list(sentinels[: spans + 1])
        assert target[-2:] == [sentinels[spans], 2]
        assert target[0] == 1
        assert not any(a in sentinels and b in sentinels for a, b in pairwise(source))
        assert abs(hidden - min(max(len(tokens) * corruption.density, 1), len(tokens) - 1)) <= 0.5


def test_spans_are_drawn_uniformly(rng: np.random.Generator) -> None:
    """Of 7 tokens 3 are hidden in 2 spans: 2 ways to part 3, times the ways to choose 2 of the 5 places around 4 tokens."""
    corruption = Corruption(density=3 / 7, mean_length=1.5)
    draws = 20 * 400
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(draws):
        source = tuple(corruption.apply([10, 11, 12, 13, 14, 15, 16], [4, 5, 6], rng).source)
        counts[source] = counts.get(source, 0) + 1
    assert len(counts) == 2 * math.comb(5, 2)
    chi_squared = sum((n - draws / 20) ** 2 / (draws / 20) for n in counts.values())
    assert chi_squared < 19 + 6 * math.sqrt(2 * 19)  # 19 degrees of freedom: mean 19, standard deviation 6.2


def test_an_epoch_contains_every_window_of_every_document_once(location: Path) -> None:
    data = make(location)
    sentinels = range(4, 4 + len(data.tokenizer.extra_tokens))
    texts = sorted(data.tokenizer.decode(merged(*pair, sentinels)) for pair in batches_of(data))
    documents = [line.split() for line in location.read_text().splitlines()[1:]]
    windows = [" ".join(words[i : i + 32]) for words in documents for i in range(0, len(words), 32)]
    assert texts == sorted(window for window in windows if " " in window)


def test_corruption_is_a_function_of_seed_and_epoch_only(location: Path) -> None:
    first = batches_of(make(location))
    np.random.default_rng().random()
    assert batches_of(make(location)) == first
    others = [batches_of(make(location), epoch=1), batches_of(make(location, seed=1))]
    for other in others:
        assert other != first
        before, after = ({tuple(src) for src, _ in pairs if len(src) > 25} for pairs in (first, other))
        assert len(before & after) < len(before) / 4  # a window of 25 tokens has hundreds of corruptions, so few are the same by chance
    assert others[0] != others[1]


def test_evaluation_is_fixed_and_readable(location: Path) -> None:
    loaders = [make(location, seed=seed).val_dataloader() for seed in (0, 0, 5)]
    loaders[1].sampler.set_epoch(3)
    first, again, other = ([dict(zip(b["source"], b["references"], strict=True)) for b in loader] for loader in loaders)
    assert again == first
    assert {s: r for batch in other for s, r in batch.items()} == {s: r for batch in first for s, r in batch.items()}
    source, (reference,) = next((s, r) for batch in first for s, r in batch.items() if len(s.split()) > 10)
    assert source.count("<extra_0>") == reference.count("<extra_0>") == 1
    assert reference.startswith("<extra_0> w")
    data = make(location)
    (batch, *_) = data.test_dataloader()
    assert data.tokenizer.decode(batch["tgt"][0]) == batch["references"][0][0]
    assert batch["src"].shape[0] * (batch["src"].shape[1] + batch["tgt"].shape[1]) <= 400


def test_workers_do_not_change_batches(location: Path) -> None:
    alone = batches_of(make(location, num_workers=1), epoch=2)
    assert alone == batches_of(make(location), epoch=2)


@pytest.mark.parametrize("part", ["train", "validation"])
def test_corruption_of_a_window_depends_only_on_seed_epoch_and_window(location: Path, part: str) -> None:
    data = make(location)
    loader: Any = data.train_dataloader() if part == "train" else data.val_dataloader()
    examples, batch = loader.dataset, next(iter(loader.sampler)).batch[:4]
    whole = examples[Share(batch=batch, epoch=2)]
    parts = [examples[Share(batch=batch, epoch=2, rank=rank, processes=5)] for rank in range(5)]
    for name in ("example", "src", "tgt"):
        assert torch.equal(torch.cat([part[name] for part in parts[:4]]), whole[name]), name
    assert parts[4]["example"].tolist() == [-1]
    assert torch.equal(parts[4]["src"], whole["src"][:1])
    assert parts[4]["tgt"][0].tolist() == [1, *[0] * (whole["tgt"].shape[1] - 1)]
    if part == "validation":
        assert (len(parts[3]["references"]), len(parts[4]["references"])) == (1, 0)
    else:
        assert not torch.equal(examples[Share(batch=batch, epoch=3)]["src"], whole["src"])


def test_prediction_sources_keep_their_order_and_sentinels(location: Path, tmp_path: Path) -> None:
    (tmp_path / "sources.txt").write_text("w1 <extra_0> w2\nw3 <extra_0>\n")
    data = make(location, predict=str(tmp_path / "sources.txt"))
    (batch,) = data.predict_dataloader()
    assert batch["source"] == ["w1 <extra_0> w2", "w3 <extra_0>"]
    assert batch["src"][:, 1].tolist() == [data.tokenizer.id_of("<extra_0>")] * 2
    assert batch["references"] == [[], []]
    with pytest.raises(ConfigurationError, match=r"set data\.predict to a \.txt file"):
        make(location).predict_dataloader()


def test_the_tokenizer_has_enough_sentinels_for_any_window(location: Path) -> None:
    data = make(location, context=40, density=0.3, mean_length=2.0, src_tokenizer={"name": "word", "extra_tokens": ["<mask>"]})
    assert data.tokenizer.extra_tokens == ("<mask>", *(f"<extra_{i}>" for i in range(6 + 1)))
    assert data.src_tokenizer_spec == data.tgt_tokenizer_spec
    again = make(location, context=40, density=0.3, mean_length=2.0, src_tokenizer=data.src_tokenizer_spec)
    assert again.src_tokenizer_spec == data.src_tokenizer_spec
    with pytest.raises(ConfigurationError, match="src_tokenizer is trained, but lacks '<extra_7>'"):
        make(location, context=80, density=0.3, mean_length=2.0, src_tokenizer=data.src_tokenizer_spec)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"density": 0.0}, "density above 0 and below 1"),
        ({"mean_length": 0.5}, "mean_length at least 1"),
        ({"context": 1}, "context must be at least 2"),
        ({"corpus": "cmudict"}, "the corpus 'cmudict' holds pairs of texts, not running text"),
    ],
)
def test_misuse_is_refused(location: Path, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(location, **arguments)


def test_a_text_without_two_consecutive_tokens_is_rejected(tmp_path: Path, location: Path) -> None:
    (tmp_path / "words.tsv").write_text("text\none\ntwo\n")
    with pytest.raises(ConfigurationError, match="no document of the training text has two tokens"):
        make(tmp_path / "words.tsv").train_dataloader()
