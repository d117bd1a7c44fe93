import os
import pickle
import random
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from samples.framed import framed
from torch import Tensor

from attnkit import ConfigurationError, tokenizers
from attnkit.data.cache import cache_folder
from attnkit.data.packing import PIECE, PackedText, WindowSampler, pieces
from attnkit.data.text import Text
from attnkit.strategy.sharing import DataShare
from attnkit.tokenizer.unknown import UnknownTokens

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # lightning 2.6 with torch 2.13


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))


def build(**arguments: Any) -> Text:
    settings = {"tokenizer": "character", "context": 16, "batch_tokens": 64}
    data: Text = framed("text", **{**settings, **arguments})
    return data


def random_text(rng: np.random.Generator, characters: int) -> str:
    return "".join(rng.choice(list("abcdefgh  \n"), size=characters)).strip() + "!"


def write(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return str(path)


def numbered(tmp_path: Path, words: int) -> str:
    """Write a text whose every word is another one, so that tokens are places."""
    return write(tmp_path / "numbers.txt", " ".join(f"{i:05}" for i in range(words)))


def places(batches: list[Any], data: Text) -> list[int]:
    """Return the places that are scored, in the order of the batches; the end is -1."""
    labels = data.tokenizer.tokens(int(i) for batch in batches for i in batch["targets"].flatten() if i != 0)
    return [-1 if label == "<eos>" else int(label) for label in labels]


def test_targets_are_next_tokens_of_documents_framed_by_bos_and_eos(tmp_path: Path, rng: np.random.Generator) -> None:
    documents = [random_text(rng, int(n)) for n in rng.integers(3, 40, size=20)]
    data = build(train=write(tmp_path / "a.txt", "|".join(documents)), separator="|", context=9)
    ids = [i for text in documents for i in [*data.tokenizer.encode(text), 2]]
    assert data.packed("train").ids.tolist() == [2, *ids]
    for batch in data.train_dataloader():
        assert set(batch) == {"example", "tokens", "targets"}
        assert batch["tokens"].dtype == batch["targets"].dtype == torch.int64
        assert batch["tokens"].shape[1] == 9
        ends = batch["targets"][:, :-1] == 2
        assert torch.equal(batch["tokens"][:, 1:] == 1, ends)
        assert torch.equal(batch["tokens"][:, 1:][~ends], batch["targets"][:, :-1][~ends])
        assert not (batch["tokens"] == 2).any()
        for tokens, targets in zip(batch["tokens"].tolist(), batch["targets"].tolist(), strict=True):
            assert is_inside(targets, ids + ids), "no window of the text as a ring"
            assert tokens[0] == 1 or is_inside([tokens[0], *targets], ids + ids)


def is_inside(part: list[int], whole: list[int]) -> bool:
    return any(whole[i : i + len(part)] == part for i in range(len(whole)))


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_training_epoch_scores_each_token_at_most_once(tmp_path: Path, processes: int) -> None:
    words = random.randint(500, 900)
    data = build(train=numbered(tmp_path, words), tokenizer="word", context=16)
    seen = set()
    for epoch in range(3):
        shares = [list(sampler_of(data, processes, rank, epoch)) for rank in range(processes)]
        assert len({len(share) for share in shares}) == 1
        windows = data.train_dataloader().dataset
        batches = [windows[index] for share in shares for index in share]
        assert max(len(batch["tokens"]) for batch in batches) <= 4
        scored = places(batches, data)
        assert len(scored) == len(set(scored)) == (words + 1) // 16 * 16
        seen.add(tuple(scored))
    assert len(seen) == 3, "epochs are alike"


def sampler_of(data: Text, processes: int, rank: int, epoch: int) -> WindowSampler:
    windows: Any = data.train_dataloader().dataset
    sampler = WindowSampler(windows, batch_size=4, stride=None, seed=data.seed, share=DataShare(processes, rank))
    sampler.set_epoch(epoch)
    return sampler


def test_cuts_and_order_are_a_pure_function_of_seed_and_epoch(tmp_path: Path) -> None:
    path = numbered(tmp_path, 400)

    def epoch(number: int, seed: int = 0) -> list[list[int]]:
        torch.manual_seed(random.randrange(100))
        np.random.seed(random.randrange(100))
        loader = build(train=path, tokenizer="word", seed=seed).train_dataloader()
        loader.sampler.set_epoch(number)  # type: ignore[attr-defined]
        return [batch["targets"].flatten().tolist() for batch in loader]

    first = epoch(0)
    assert epoch(0) == first
    assert first != epoch(1) != epoch(0, seed=1) != first


@pytest.mark.parametrize("stride", [None, 1, 5, 16])
@pytest.mark.parametrize("words", [3, 15, 16, 17, 150])
def test_evaluation_scores_every_token_exactly_once(tmp_path: Path, stride: int | None, words: int) -> None:
    path = numbered(tmp_path, words)
    data = build(train=path, test=path, tokenizer="word", stride=stride)
    for processes in (1, 3, 5):
        windows = data.test_dataloader().dataset
        samplers = [
            WindowSampler(windows, batch_size=4, stride=stride or 16, share=DataShare(processes, rank))  # type: ignore[arg-type]
            for rank in range(processes)
        ]
        batches: list[Any] = [windows[index] for sampler in samplers for index in sampler]
        assert sorted(places(batches, data)) == [-1, *range(words)]
        assert sum(int(batch["characters"]) for batch in batches) == 6 * words - 1
        for batch in batches:  # the context before what is scored is all that fits
            assert batch["tokens"].shape[1] == min(16, words + 1)
            unscored = (batch["targets"] == 0).sum(1)
            if batch["example"].tolist() == [-1]:
                assert unscored.tolist() == [batch["tokens"].shape[1]]
            else:
                assert int(unscored.max()) <= 16 - (stride or 16) + 15


class Numbers:
    """45 tokens in windows of 6."""

    text = range(45)
    context = 6

    def __len__(self) -> int:
        return 7


@pytest.mark.parametrize(
    ("stride", "epoch", "expected"),
    [  # as one process had them before batches were shared
        (None, 0, [[[27, 0], [36, 0], [3, 0]], [[42, 0], [15, 0]], [[21, 0], [9, 0]]]),
        (None, 1, [[[11, 0], [5, 0], [23, 0]], [[44, 0], [29, 0]], [[17, 0], [35, 0]]]),
        (4, 1, [[[36, 2], [28, 2], [0, 0]], [[8, 2], [4, 2], [16, 2]], [[24, 2], [39, 3], [20, 2]], [[12, 2], [32, 2]]]),
    ],
)
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_window_batches_do_not_depend_on_the_number_of_processes(stride: Any, epoch: int, expected: Any, processes: int) -> None:
    for rank in range(processes):
        sampler = WindowSampler(Numbers(), batch_size=3, stride=stride, seed=3, share=DataShare(processes, rank))  # type: ignore[arg-type]
        sampler.set_epoch(epoch)
        shares = [share.rows.tolist() for share in sampler]
        assert shares == [batch[rank::processes] or batch[:1] for batch in expected]


def test_a_stride_gives_every_token_but_the_first_ones_more_context(tmp_path: Path) -> None:
    path = numbered(tmp_path, 200)
    data = build(train=path, test=path, tokenizer="word", stride=4)
    for batch in data.test_dataloader():
        for tokens, targets in zip(batch["tokens"], batch["targets"], strict=True):
            assert int((targets != 0).sum()) <= 4 or tokens[0] == 1
            assert not (targets[targets.nonzero()[0] :] == 0).any(), "scored targets are the last ones"


def test_documents_number_the_inputs_of_each_document(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "ab\n\ncde\n\nf\n\ngh")
    data = build(train=path, test=path, separator="\n\n", document_mask=True)
    (batch,) = data.test_dataloader()
    assert batch["documents"].tolist() == [[1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 4, 4]]
    assert data.tokenizer.decode([t for t in batch["tokens"][0].tolist() if t != 1]) == "abcdefgh"
    training = next(iter(build(train=path, document_mask=True, context=4).train_dataloader()))
    assert set(training) == {"example", "tokens", "targets", "documents"}


def test_character_counts_refer_to_composed_text_for_any_normalisation(tmp_path: Path) -> None:
    composed = "한국 각하 ﬁ " * 20
    paths = [write(tmp_path / f"{form}.txt", unicodedata.normalize(form, composed)) for form in ("NFC", "NFD")]
    for path in paths:
        for form in ("NFC", "NFD", "NFKC", "none"):
            data = build(train=paths[0], test=path, tokenizer={"name": "bpe", "vocab_size": 262, "normalization": form})
            assert sum(int(batch["characters"]) for batch in data.test_dataloader()) == len(composed)


def test_character_counts_are_exact_for_any_tokenizer_and_text(tmp_path: Path, rng: np.random.Generator) -> None:
    text = "".join(rng.choice(list("ab é안녕≤\n"), size=3 * PIECE))
    path = write(tmp_path / "a.txt", text)
    for tokenizer in ("character", "word", {"name": "bpe", "vocab_size": 270}):
        data = build(train=path, test=path, tokenizer=tokenizer, context=50, batch_tokens=500)
        counts = [int(batch["characters"]) for batch in data.test_dataloader()]
        assert sum(counts) == len(text)
        assert min(counts) > 0


def test_encoding_a_long_document_in_pieces_gives_the_same_tokens(rng: np.random.Generator) -> None:
    text = "".join(rng.choice(["ab", "c ", "  ", "\n\n", "don't ", "!", "_\n", "x" * 30], size=20_000))
    specs = ("character", "word", {"name": "bpe", "vocab_size": 300}, {"name": "bpe", "vocab_size": 300, "split": "llama3"})
    encoded = [(tokenizer, tokenizer.encode(text)) for tokenizer in (tokenizers.build(spec).train([text]) for spec in specs)]
    for chunk in (10, 1000, len(text)):
        cut = list(pieces(text[i : i + chunk] for i in range(0, len(text), chunk)))
        assert "".join(piece.text for piece in cut) == text
        assert [piece.ends for piece in cut] == [False] * (len(cut) - 1) + [True]
        assert max(len(piece.text) for piece in cut) <= PIECE
        for tokenizer, ids in encoded:
            assert [i for piece in cut for i in tokenizer.encode(piece.text)] == ids
    assert [len(piece.text) for piece in pieces(["y" * (PIECE + 5)])] == [PIECE, 5]
    assert {piece.text[0] for piece in pieces(["!!\n" * PIECE])} == {"!", "\n"}
    assert list(pieces(["", " \n", ""])) == []


def test_locations_may_be_paths_patterns_or_lists(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        write(tmp_path / f"{name}.txt", name)
    write(tmp_path / "d.jsonl", '{"text": "d", "other": "x"}\n{"text": "e", "other": "y"}\n')
    for locations, expected in (
        (str(tmp_path / "*.txt"), "abc"),
        ([str(tmp_path / "c.txt"), str(tmp_path / "[ab].txt")], "cab"),
        ([str(tmp_path / "d.jsonl"), str(tmp_path / "a.txt")], "dea"),
    ):
        assert [piece.text for piece in build(train=locations).pieces("train")] == list(expected)
    assert [piece.text for piece in build(train=str(tmp_path / "d.jsonl"), columns=["other"]).pieces("train")] == ["x", "y"]


@pytest.mark.parametrize("words", [40, 30_000])
def test_fractions_are_contiguous_ends_of_the_text(tmp_path: Path, words: int) -> None:
    text = "\n".join(f"{i:06}" for i in range(words))
    data = build(train=write(tmp_path / "a.txt", text), validation_fraction=0.2, test_fraction=0.1)
    parts = ["".join(piece.text for piece in data.pieces(part)) for part in ("train", "validation", "test")]
    assert "".join(parts) == text
    assert [len(part) / len(text) for part in parts] == [pytest.approx(share, abs=1 / len(text)) for share in (0.7, 0.2, 0.1)]
    assert all(data.packed(part).ids[-1] == 2 for part in ("train", "validation"))
    assert build(train=str(tmp_path / "a.txt")).val_dataloader() == []


def test_the_text_is_encoded_once_until_an_input_changes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "one|two|three|four")

    def count() -> int:
        return len(list((cache_folder() / "packed").iterdir()))

    for _ in range(2):
        assert len(build(train=path).packed("train")) == 19
        assert count() == 1
    assert len(build(train=path, separator="|").packed("train")) == 19
    assert count() == 2
    build(train=path, tokenizer="word").packed("train")
    assert count() == 3
    write(tmp_path / "a.txt", "one|two|three|five")
    build(train=path).packed("train")
    assert count() == 4


def test_a_damaged_array_is_rebuilt(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "some text " * 50)
    whole = build(train=path).packed("train").ids.tolist()
    (entry,) = (cache_folder() / "packed").iterdir()
    with (entry / "ids.bin").open("rb+") as file:
        file.truncate(100)
    with pytest.warns(UserWarning, match="is damaged"):
        assert build(train=path).packed("train").ids.tolist() == whole


def test_ids_are_compact_and_reopened_in_another_process(tmp_path: Path) -> None:
    text = build(train=write(tmp_path / "a.txt", "abc" * 10_000)).packed("train")
    assert text.ids.dtype == np.uint16
    assert len(pickle.dumps(text)) < 1000
    other = pickle.loads(pickle.dumps(text))
    assert isinstance(other, PackedText)
    assert np.array_equal(other.ids, text.ids)
    large = build(train=write(tmp_path / "b.txt", " ".join(map(str, range(70_000)))), tokenizer="word")
    assert large.packed("train").ids.dtype == np.uint32
    assert len(set(large.packed("train").ids.tolist())) == 70_001


def test_unknown_tokens_in_evaluation_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"), pytest.warns(UnknownTokens, match="test: 40 % of the tokens are unknown to the tokenizer"):
        build(train=write(tmp_path / "a.txt", "abc" * 9), test=write(tmp_path / "b.txt", "abXYc")).test_dataloader()
    hidden = "40 % unknown tokens, which cost no bits, so bits per character are underestimated"
    assert f"test: 5 tokens in 1 document; {hidden}" in caplog.messages


@pytest.mark.parametrize(("text", "told"), [("two|six|one", "2 also in the training data, no"), ("tw", "no")])
def test_validation_documents_also_in_the_training_text_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str, told: str
) -> None:
    train, validation = write(tmp_path / "a.txt", "one|two|three|six six"), write(tmp_path / "b.txt", text)
    data = build(train=train, validation=validation, separator="|")
    with caplog.at_level("INFO"):
        data.packed("train")
        data.packed("validation")
    assert f"; {told} unknown tokens" in caplog.messages[-1]


def test_prompts_keep_their_order_and_begin_with_bos(tmp_path: Path) -> None:
    prompts = ["ab", "", "cab", "b"] * 20
    data = build(train=write(tmp_path / "a.txt", "abc" * 9), predict=write(tmp_path / "p.txt", "\n".join(prompts) + "\n"))
    batches = list(data.predict_dataloader())
    assert [text for batch in batches for text in batch["text"]] == prompts
    for batch in batches:
        assert set(batch) == {"example", "tokens", "text"}
        for row, text in zip(batch["tokens"].tolist(), batch["text"], strict=True):
            assert row[: len(text) + 1] == [1, *data.tokenizer.encode(text)]
            assert not any(row[len(text) + 1 :])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 0}, "context must be at least 1"),
        ({"stride": 17}, "stride must be from 1 to context=16, but is 17"),
        ({"stride": 0}, "stride must be from 1"),
        ({"batch_tokens": 15}, "batch_tokens=15 must be at least context=16"),
        ({"seed": -1}, "seed must be at least 0"),
        ({"separator": ""}, "separator must not be empty"),
        ({"validation_fraction": 0.6, "test_fraction": 0.4}, "together below 1"),
        ({"test": "a.txt", "test_fraction": 0.1}, "test and test_fraction are mutually exclusive"),
    ],
)
def test_invalid_settings_are_rejected(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        build(**arguments)


def test_unusable_texts_are_rejected(tmp_path: Path) -> None:
    short, empty = write(tmp_path / "short.txt", "abc"), write(tmp_path / "empty.txt", " \n")
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1"))
    (tmp_path / "latest.txt").symlink_to(short)
    (tmp_path / "hard.txt").hardlink_to(short)
    for part, arguments, message in (
        ("train", {}, "there is no training data: set data.corpus.train"),
        ("test", {"train": short}, "there is no test data: set data.corpus.test"),
        ("train", {"train": str(tmp_path / "shrt.txt")}, "Did you mean 'short.txt'"),
        ("train", {"train": str(tmp_path / "*.text")}, "no file matches"),
        ("train", {"train": [str(tmp_path / "sh*.txt"), short]}, "short.txt is listed twice"),
        ("train", {"train": [short, os.path.relpath(short)]}, "short.txt is the same file as"),
        ("train", {"train": [short, str(tmp_path / "latest.txt")]}, "latest.txt is the same file as .*short.txt"),
        ("train", {"train": [short, str(tmp_path / "hard.txt")]}, "hard.txt is the same file as .*short.txt"),
        ("train", {"train": empty}, "the training text is empty"),
        ("test", {"train": short, "test": empty}, "the test text is empty"),
        ("train", {"train": str(tmp_path / "latin.txt")}, "latin.txt: not UTF-8 .*iconv"),
        ("train", {"train": short, "separator": r"\n\n"}, r"separator '.*' does not occur in .*short.txt: correct it"),
        ("train", {"train": short}, "has 4 tokens, too few for a window of context=16"),
        ("predict", {"train": short}, "there are no inputs for prediction"),
    ):
        with pytest.raises(ConfigurationError, match=message):
            getattr(build(**arguments), f"{part}_dataloader")()


class Recorder(LightningModule):
    """Keeps what is scored in each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.seen: dict[tuple[str, int], list[Tensor]] = {}

    def training_step(self, batch: Any) -> Tensor:
        self.seen.setdefault(("train", self.current_epoch), []).append(batch["targets"])
        return self.weight.sum()

    def validation_step(self, batch: Any) -> None:
        if not self.trainer.sanity_checking:
            self.seen.setdefault(("validation", self.current_epoch), []).append(batch["targets"])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.0)


def trainer(tmp_path: Path, **options: Any) -> Trainer:
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return Trainer(accelerator="cpu", default_root_dir=tmp_path, max_epochs=2, **quiet, **options)


def test_lightning_cuts_differently_in_each_epoch_but_validates_identically(tmp_path: Path) -> None:
    path = numbered(tmp_path, 300)
    data, recorder = build(train=path, validation=path, tokenizer="word"), Recorder()
    trainer(tmp_path).fit(recorder, datamodule=data)
    scored = {key: torch.cat(targets).tolist() for key, targets in recorder.seen.items()}
    assert scored["train", 0] != scored["train", 1]
    assert scored["validation", 0] == scored["validation", 1]


def test_lightning_overfits_the_same_full_batches(tmp_path: Path) -> None:
    path = numbered(tmp_path, 300)
    data, recorder = build(train=path, validation=path, tokenizer="word"), Recorder()
    trainer(tmp_path, overfit_batches=2).fit(recorder, datamodule=data)
    first, second = (torch.cat(recorder.seen["train", epoch]).tolist() for epoch in (0, 1))
    assert first == second
    assert len(first) == 8


@pytest.mark.filterwarnings("ignore::attnkit.tokenizer.unknown.UnknownTokens")
def test_a_checkpoints_tokenizer_replaces_that_of_the_data(tmp_path: Path) -> None:
    data, other = (build(train=write(tmp_path / f"{name}.txt", text * 9)) for name, text in (("a", "abc"), ("b", "xyz")))
    other.packed("train")
    other.load_state_dict(data.state_dict())
    assert other.tokenizer_spec == data.tokenizer_spec
    assert set(other.packed("train").ids.tolist()) == {2, 3}
