"""Batches of pairs of texts, and promises of all data modules to Lightning."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader, SequentialSampler

from attnkit import ConfigurationError, corpora, datasets, tokenizers
from attnkit.corpus.base import Pair, PairCorpus, Part
from attnkit.data import Seq2SeqBatch
from attnkit.data.text_pairs import TextPairs

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # lightning 2.6 with torch 2.13


class DoubledLetters(PairCorpus):
    """Letters, and each of them twice: as characters, and as words."""

    def __init__(self, *, sources: list[str]) -> None:
        super().__init__()
        self.sources = sources

    def pairs(self, part: Part) -> list[Pair]:
        return [(source, double(source)) for source in self.sources]

    def references(self, part: Part) -> dict[str, list[str]]:
        return {source: [double(source), part] for source in self.sources}


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(corpora._classes, "doubled", DoubledLetters)


def doubled(sources: Sequence[str], **options: Any) -> TextPairs:
    path = Path(tempfile.mkdtemp(), "inputs.txt")
    path.write_text("\n".join(sources))
    arguments: dict[str, Any] = {"src_tokenizer": "character", "tgt_tokenizer": "word", "batch_tokens": 60, "predict": str(path)}
    return TextPairs(corpus={"name": "doubled", "sources": [*sources]}, **(arguments | options))


def double(text: str) -> str:
    return " ".join(c.upper() * 2 for c in text)


@pytest.fixture
def sources(rng: np.random.Generator) -> list[str]:
    return list({"".join(rng.choice(list("abcdef"), size=rng.integers(1, 12))) for _ in range(80)})


class Recorder(LightningModule):
    """Keeps the batches of every step."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: dict[str, list[Any]] = {"train": [], "validation": [], "predict": []}

    def training_step(self, batch: Seq2SeqBatch) -> torch.Tensor:
        self.seen["train"].append((self.current_epoch, batch))
        return self.weight.sum()

    def validation_step(self, batch: Seq2SeqBatch) -> None:
        if not self.trainer.sanity_checking:
            self.seen["validation"].append((self.current_epoch, batch))

    def predict_step(self, batch: Seq2SeqBatch) -> list[str]:
        return batch["source"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def trainer(tmp_path: Path, **options: Any) -> Trainer:
    return Trainer(
        accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path, **options
    )


def test_training_batches_add_bos_and_eos(sources: list[str]) -> None:
    data = doubled(sources)
    pairs = set()
    for batch in data.train_dataloader():
        assert set(batch) == {"example", "src", "tgt"}
        assert batch["src"].dtype == batch["tgt"].dtype == torch.int64
        for src, tgt in zip(batch["src"], batch["tgt"], strict=True):
            assert src[src != 0][-1] == 2
            assert (tgt[0], tgt[tgt != 0][-1]) == (1, 2)
            pairs.add((data.src_tokenizer.decode(src), data.tgt_tokenizer.decode(tgt)))
    assert pairs == set(data.corpus.pairs("train"))


@pytest.mark.parametrize("part", ["validation", "test"])
def test_evaluation_batches_have_texts_and_references(part: Literal["validation", "test"], sources: list[str]) -> None:
    data = doubled(sources)
    loader = data.val_dataloader() if part == "validation" else data.test_dataloader()
    seen = {}
    for batch in loader:
        assert set(batch) == {"example", "src", "tgt", "source", "references"}
        for i, source in enumerate(batch["source"]):
            assert data.src_tokenizer.decode(batch["src"][i]) == source
            assert data.tgt_tokenizer.decode(batch["tgt"][i]) == batch["references"][i][0]
            seen[source] = batch["references"][i]
    assert seen == data.evaluation_set(part)


def test_prediction_batches_keep_the_order_and_have_no_target(sources: list[str]) -> None:
    batches = list(doubled(sources * 2).predict_dataloader())
    assert [source for batch in batches for source in batch["source"]] == sources * 2
    assert all(set(batch) == {"example", "src", "source", "references"} for batch in batches)
    assert all(batch["references"] == [[]] * len(batch["source"]) for batch in batches)


def test_specs_are_plain_data_and_known_before_setup(sources: list[str]) -> None:
    data = doubled(sources)
    for spec, tokenizer in ((data.src_tokenizer_spec, data.src_tokenizer), (data.tgt_tokenizer_spec, data.tgt_tokenizer)):
        assert json.loads(json.dumps(spec)) == spec == tokenizer.spec
        assert tokenizers.build(spec).trained


def test_a_trained_tokenizer_is_used_unchanged(sources: list[str]) -> None:
    spec = tokenizers.build("character").train(["zyx"]).spec
    assert doubled(sources, src_tokenizer=spec).src_tokenizer_spec == spec


def test_one_tokenizer_may_serve_both_sides() -> None:
    data = doubled(["ab"], tgt_tokenizer=None)
    assert data.src_tokenizer is data.tgt_tokenizer
    assert data.src_tokenizer_spec["tokens"] == [" ", "A", "B", "a", "b"]


def test_a_checkpoints_tokenizers_replace_those_of_the_data(sources: list[str]) -> None:
    data, other = doubled(sources), doubled(["xyz"])
    other.load_state_dict(data.state_dict())
    assert (other.src_tokenizer_spec, other.tgt_tokenizer_spec) == (data.src_tokenizer_spec, data.tgt_tokenizer_spec)


def test_long_pairs_are_omitted_from_training_only(sources: list[str]) -> None:
    data = doubled([*sources, "a" * 20], max_length=8)
    assert all(batch["src"].shape[1] <= 8 and batch["tgt"].shape[1] <= 8 for batch in data.train_dataloader())
    assert len(data.train_dataloader().dataset) == sum(len(s) <= 6 for s in sources)  # type: ignore[arg-type]
    assert len(data.test_dataloader().dataset) == len(sources) + 1  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="training pairs are longer than max_length=1"):
        doubled(sources, max_length=1).train_dataloader()


@pytest.mark.parametrize(
    ("framing", "name", "one", "other"),
    [
        ("text_pairs", "a.tsv", "a\tb\n", "b\tb\n"), ("text_pairs", "a.tsv", "a\tb\n", "a\ta\n"),
        ("prompted_text", "a.tsv", "aa\tb\n", "a\tab\n"), ("labelled_text", "a.tsv", "a\ta\nb\tb\n", "a\tb\nb\ta\n"),
        ("tagged_text", "a.tsv", "words\ttags\na b\ta b\n", "words\ttags\na b\tb a\n"),
        ("questions", "a.jsonl", *(f'{{"question": "a", "passage": "a a", "answer": "a", "start": {start}}}' for start in (0, 2))),
        ("text", "a.txt", "abab", "abba"), ("span_corruption", "a.txt", "abab", "abba"),
    ],
)  # fmt: skip
def test_content_tells_examples_of_the_same_lengths_apart(framing: str, name: str, one: str, other: str, tmp_path: Path) -> None:
    path, tokenizer = tmp_path / name, {"name": "character", "extra_tokens": ["<extra_0>", "<extra_1>"]}
    trained = tokenizers.build(tokenizer).train(["ab "]).spec
    sides = {"text_pairs": ("src_tokenizer", "tgt_tokenizer"), "span_corruption": ("src_tokenizer",)}.get(framing, ("tokenizer",))
    short = {"context": 4} if path.suffix == ".txt" else {}
    found = []
    for content in (one, other, one):
        path.write_text(content)
        data = datasets.build({"name": framing, "corpus": str(path), **dict.fromkeys(sides, trained), **short})
        found.append(data.train_dataloader().sampler.content)
    assert found[0] == found[2] != found[1]


@pytest.mark.parametrize(("name", "value"), [("batch_tokens", 0), ("seed", -1), ("num_workers", -2)])
def test_numbers_out_of_range_are_refused(name: str, value: int) -> None:
    with pytest.raises(ConfigurationError, match=f"{name} must be at least .*, but is {value}"):
        doubled(["a"], **{name: value})


def test_workers_make_the_same_batches_as_the_main_process(sources: list[str]) -> None:
    here, there = (list(doubled(sources, num_workers=n).test_dataloader()) for n in (0, 2))
    assert [b["source"] for b in here] == [b["source"] for b in there]
    assert all(torch.equal(a["src"], b["src"]) and torch.equal(a["tgt"], b["tgt"]) for a, b in zip(here, there, strict=True))


def test_lightning_runs_with_a_new_order_in_each_epoch(sources: list[str], tmp_path: Path) -> None:
    data, recorder = doubled(sources), Recorder()
    fitting = trainer(tmp_path, max_epochs=3, enable_checkpointing=False)
    fitting.fit(recorder, datamodule=data)
    orders = []
    for epoch in range(3):
        batches = [batch["src"] for e, batch in recorder.seen["train"] if e == epoch]
        orders.append([data.src_tokenizer.decode(row) for src in batches for row in src])
        assert sorted(orders[-1]) == sorted(sources)
        assert sorted(s for e, batch in recorder.seen["validation"] for s in batch["source"] if e == epoch) == sorted(sources)
    assert orders[0] != orders[1] != orders[2]
    predicted = fitting.predict(recorder, datamodule=data)
    assert predicted is not None
    assert [source for batch in predicted for source in batch] == sources


def test_lightning_overfits_the_same_full_batches_repeatedly(sources: list[str], tmp_path: Path) -> None:
    data, recorder = doubled(sources), Recorder()
    trainer(tmp_path, max_epochs=2, overfit_batches=2, enable_checkpointing=False).fit(recorder, datamodule=data)
    first, second = ([batch["src"].tolist() for e, batch in recorder.seen["train"] if e == epoch] for epoch in (0, 1))
    assert first == second
    assert min(map(len, first)) > 1


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_a_checkpoint_contains_the_tokenizers(sources: list[str], tmp_path: Path) -> None:
    data = doubled(sources)
    fitting = trainer(tmp_path, max_epochs=1)
    fitting.fit(Recorder(), datamodule=data)
    path = tmp_path / "a.ckpt"
    fitting.save_checkpoint(path)
    other = doubled(["xyz"])
    trainer(tmp_path).predict(Recorder(), datamodule=other, ckpt_path=str(path), weights_only=True)
    assert other.src_tokenizer_spec == data.src_tokenizer_spec


def test_lightning_keeps_the_sampler_in_prediction(sources: list[str], tmp_path: Path) -> None:
    predicting = trainer(tmp_path)
    predicting.predict(Recorder(), datamodule=doubled(sources))
    loader = predicting.predict_dataloaders
    assert isinstance(loader, DataLoader)
    assert not isinstance(loader.sampler, SequentialSampler)
    assert loader.batch_size is None
