"""The summary of each split."""

import json
import re
import unicodedata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.utilities import rank_zero_only
from samples.framed import framed

from attnkit.data.summary import LabelScale, Summaries, Summary
from attnkit.registry import corpora
from attnkit.tokenizer.unknown import UnknownTokens

Write = Callable[[str, str], str]


@pytest.fixture(autouse=True)
def own_cache(caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    caplog.set_level("INFO")


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to(name: str, text: str) -> str:
        (tmp_path / name).write_text(text, encoding="utf-8")
        return str(tmp_path / name)

    return to


def said(caplog: pytest.LogCaptureFixture, do: Callable[[], object]) -> list[str]:
    caplog.clear()
    do()
    return list(caplog.messages)


def pairs(**arguments: Any) -> Any:
    return framed("text_pairs", **arguments)


def test_the_summary_of_pairs_counts_skipped_omitted_merged_and_unknown(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    train = write("train.csv", "source,target\nHello, world,Bonjour\n" + "abc,ABC\n" * 60 + "abcabcabc,ABC\nab\n")
    test = write("test.csv", "source,target\na,A\nb,B\na,B\na,A\n" + "".join(f"{'abc' * i},C\n" for i in range(1, 20)) + "x,C\n")
    data = pairs(train=train, test=test, max_length=6, on_bad_rows="skip")
    assert said(caplog, data.train_dataloader) == [
        f"train: 60 pairs; 1 omitted (longer than max_length=6), no unknown tokens; 2 bad rows skipped, first: {train}:2: 3 cells, "
        "but the header has 2: 'Hello', ' world', 'Bonjour' (a cell with a comma in it must be in \"quotes\")"
    ]
    merged = "2 merged (rows with the same source are one example with several references)"
    assert said(caplog, data.test_dataloader) == [f"test: 22 examples; {merged}, 0.17 % unknown tokens: 'x' (U+0078)"]
    assert said(caplog, data.test_dataloader) == said(caplog, data.train_dataloader) == []  # once, however often a loader is made


def test_bad_rows_in_any_split_stop_the_run_by_default(write: Write) -> None:
    path = write("a.csv", "source,target\nabc,ABC\nHello, world,Bonjour\n")
    bad = r"a.csv:3: 3 cells, .* on_bad_rows: skip"
    data = pairs(train=path, validation=path, test=path, predict=path, src_tokenizer={"name": "character", "tokens": ["a"]})
    for loader in ("train", "val", "test", "predict"):
        with pytest.raises(ValueError, match=bad):
            getattr(data, f"{loader}_dataloader")()
    for name, columns in (("text", ["source"]), ("labelled_text", ["source", "target"])):
        with pytest.raises(ValueError, match=bad):
            framed(name, columns=columns, train=path).train_dataloader()


def test_the_summary_of_labelled_texts_counts_skipped_and_truncated(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"text": "so good", "label": "praise"}, {"text": "not so good at all", "label": "blame"}, {"text": None, "label": "blame"}]
    path = write("a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    data = framed("labelled_text", tokenizer="word", max_length=6, on_bad_rows="skip", train=path, predict=path)
    skipped = f"1 bad row skipped, first: {path}:3: column 'text' must be text, but is None (NoneType)"
    truncated = "1 truncated (longer than max_length=6), no unknown tokens"
    assert said(caplog, data.train_dataloader) == [f"train: 2 texts; {truncated}; {skipped}"]
    assert said(caplog, data.predict_dataloader) == [f"predict: 2 texts; {truncated}; {skipped}"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_running_text_counts_a_bad_row_once_despite_several_reads(wrapped: bool, write: Write, caplog: pytest.LogCaptureFixture) -> None:
    path = write("a.csv", "text\n" + "one fish two fish\n" * 9 + "red, fish\n")
    files: dict[str, Any] = {"train": path, "validation_fraction": 0.2, "on_bad_rows": "skip"}
    for _ in range(2):  # the second time, the text is in the cache
        name, tokenizer = ("span_corruption", "src_tokenizer") if wrapped else ("text", "tokenizer")
        data = framed(name, context=6, **{tokenizer: "word"}, **files)
        skipped = f"1 bad row skipped, first: {path}:11: 2 cells"
        (line,) = said(caplog, data.train_dataloader)
        assert line.startswith(f"train: 29 tokens in 8 documents; no unknown tokens; {skipped}")
        assert said(caplog, data.train_dataloader) == []


def test_mostly_unknown_texts_warn(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    train, other = write("a.tsv", "한국\tA\n"), write("b.tsv", f"{unicodedata.normalize('NFD', '한국')}\tA\n")
    spec = {"name": "character", "normalization": "none"}
    data = pairs(train=train, validation=other, predict=other, src_tokenizer=spec)
    for loader, split, percent in (("val", "validation", 86), ("predict", "predict", 100)):  # the target A is known
        with pytest.warns(UnknownTokens, match=rf"^{split}: {percent} % of the tokens are unknown to the tokenizer: 'ᄒ' \(U\+1112\)"):
            (line,) = said(caplog, getattr(data, f"{loader}_dataloader"))
        assert f"; {percent} % unknown tokens: 'ᄒ' (U+1112), " in line
    data = pairs(train=train, validation=other)  # in NFC it is the same text
    assert said(caplog, data.val_dataloader) == ["validation: 1 example; no unknown tokens"]


def test_an_unknown_token_rate_up_to_the_bound_does_not_warn() -> None:
    summary = Summary("test", "1 text")
    summary.tokens, summary.unknown = 100, 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Summaries(corpora.build("scan")).say(summary)
    summary.unknown = 2
    with pytest.warns(UnknownTokens, match="^test: 2 % of the tokens"):
        Summaries(corpora.build("scan")).say(summary)


def test_only_the_first_process_prints_the_summary(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    summary = Summary("test", "1 text")
    summary.tokens = summary.unknown = 1
    monkeypatch.setattr(rank_zero_only, "rank", 1, raising=False)
    assert said(caplog, lambda: Summaries(corpora.build("scan")).say(summary)) == []


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ([0.0, 1.0, 0.5], None),
        ([1.0, 2.0, 3.0, 4.0, 5.0], None),
        ([3.0, 3.0], None),
        ([-20.0, 5.0], "mean -7.5 and standard deviation 12.5, .*Subtract -7.5 from each label, and divide by 12.5, in the data"),
        ([1012.0, 1125.0], "mean 1068.5 and standard deviation 56.5, .*Subtract 1068.5 from each label, and divide by 56.5, in"),
        ([0.001, 0.002], "mean 0.0015 and standard deviation 0.0005, "),
        ([1012.0, 1012.0], "mean 1012 and standard deviation 0, .*Subtract 1012 from each label, in the data of every split"),
    ],
)
def test_training_labels_far_from_initial_predictions_warn(write: Write, labels: list[float], said: str | None) -> None:
    path = write("a.tsv", "".join(f"text {i}\t{label}\n" for i, label in enumerate(labels)))
    for kind in ("number", "class"):
        data = framed("labelled_text", train=path, validation=path, test=path, tokenizer="word", labels=kind)
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            for loader in (data.train_dataloader, data.val_dataloader, data.test_dataloader, data.train_dataloader):
                loader()
        messages = [str(warning.message) for warning in found if warning.category is LabelScale]
        assert len(messages) == (said is not None and kind == "number")
        assert not messages or re.match(f"train: the labels have {said}", messages[0])


def test_unreachable_targets_are_counted(write: Write, caplog: pytest.LogCaptureFixture) -> None:
    train = write("train.csv", "source,target\na,So good\nb,so bad\n")
    test = write("test.csv", "source,target\na,so good\na,So good\nb,So  bad\nb,Unknown\n")
    data = pairs(train=train, test=test, tgt_tokenizer={"name": "word", "lowercase": True})
    assert said(caplog, data.train_dataloader) == ["train: 2 pairs; no unknown tokens"]
    (line,) = said(caplog, data.test_dataloader)
    assert "2 targets that no output can equal, as the tokenizer writes 'so good' for 'So good'" in line
    data = pairs(train=train, test=test, tgt_tokenizer="word")
    (line,) = said(caplog, data.test_dataloader)
    assert "no output can equal" not in line
