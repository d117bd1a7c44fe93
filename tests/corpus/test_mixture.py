"""Mixtures of corpora: shares, prefixes, and metrics for each."""

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import Trainer

from attnkit import ConfigurationError, corpora, datasets, tasks

ROWS = {"train_rows": 20, "validation_rows": 6, "test_rows": 6, "length": 6}
PARTS = [{"name": "copy", **ROWS}, {"name": "reverse", **ROWS}]
PREFIXES = ["copy: ", "turn round: "]


def mixture(**arguments: Any) -> dict[str, Any]:
    return {"name": "mixture", "corpora": PARTS, "prefixes": PREFIXES, **arguments}


def of(prefix: str, corpus: Any, part: Any = "train") -> list[tuple[str, str]]:
    return [(source.removeprefix(prefix), target) for source, target in corpus.pairs(part) if source.startswith(prefix)]


def test_without_weights_each_row_appears_once_with_its_prefix() -> None:
    mixed = corpora.build(mixture())
    for part in ("train", "validation", "test"):
        for prefix, spec in zip(PREFIXES, PARTS, strict=True):
            assert of(prefix, mixed, part) == list(corpora.build(spec).pairs(part))
    assert mixed.origins["train"] == "20 'copy:', 20 'turn round:'"


def test_weights_apply_to_training_rows_only() -> None:
    mixed = corpora.build(mixture(weights=[1, 3], train_rows=60))
    few, many = (of(prefix, mixed) for prefix in PREFIXES)
    whole = [list(corpora.build(spec).pairs("train")) for spec in PARTS]
    assert (len(few), len(many)) == (15, 45)
    assert len(set(few)) == 15
    assert set(few) < set(whole[0])
    assert all(2 <= many.count(row) <= 3 for row in whole[1])
    assert len(of(PREFIXES[0], mixed, "validation")) == 6
    assert mixed.pairs("train") == corpora.build(mixture(weights=[1, 3], train_rows=60)).pairs("train")
    assert mixed.pairs("train") != corpora.build(mixture(weights=[1, 3], train_rows=60), seed=1).pairs("train")


@pytest.mark.filterwarnings("ignore")
def test_the_overall_metric_is_the_mean_over_corpora() -> None:
    data = datasets.build({"name": "text_pairs", "corpus": mixture(), "src_tokenizer": "word", "tgt_tokenizer": "word", "batch_tokens": 60})
    stack = {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    task = tasks.build({"name": "seq2seq", "stack": stack, "metrics": ["token_error_rate", "rouge1"], "max_length": 9, "samples": 0})
    trainer = Trainer(logger=False, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False)
    found = trainer.validate(task, data, verbose=False)[0]
    names = ("copy", "turn_round")
    assert {f"val/{name}/{metric}" for name in names for metric in ("loss", "token_error_rate", "rouge1")} <= set(found)
    # all rows have equally many targets
    assert found["val/loss"] == pytest.approx(sum(found[f"val/{name}/loss"] for name in names) / 2, rel=1e-5)
    assert found["val/copy/loss"] != found["val/turn_round/loss"]


def test_rows_that_a_corpus_skips_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (path := tmp_path / "pairs.tsv").write_text("1\t2\n3\n4\t5\n")
    parts = [{"name": "files", "train": str(path), "on_bad_rows": "skip"}, PARTS[1]]
    inner = {"name": "mixture", "corpora": parts, "prefixes": PREFIXES}
    outer = {"name": "mixture", "corpora": [inner, "copy"], "prefixes": ["inner: ", "outer: "]}
    for corpus in (inner, outer):
        with caplog.at_level("INFO"):
            datasets.build({"name": "text_pairs", "corpus": corpus}).train_dataloader()
        assert f"; 1 bad row skipped, first: {path}:2: 1 cell" in caplog.messages[-1]


@pytest.mark.filterwarnings("ignore")
def test_a_corpus_without_a_split_logs_no_metrics_for_it(tmp_path: Path) -> None:
    """They would be NaN, and a BLEU of nothing 0."""
    path = tmp_path / "pairs.tsv"
    path.write_text("1 2\t2 1\n2\t2\n")
    parts = [PARTS[0], {"name": "files", "train": str(path), "test": str(path)}]
    corpus = mixture(corpora=parts)
    data = datasets.build({"name": "text_pairs", "corpus": corpus, "src_tokenizer": "word", "tgt_tokenizer": "word", "batch_tokens": 60})
    stack = {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    task = tasks.build({"name": "seq2seq", "stack": stack, "metrics": ["bleu"], "max_length": 9, "samples": 0})
    trainer = Trainer(logger=False, accelerator="cpu", enable_progress_bar=False, enable_checkpointing=False)
    found = {part: evaluate(task, data, verbose=False)[0] for part, evaluate in (("val", trainer.validate), ("test", trainer.test))}
    named = {part: {name.split("/")[1] for name in logged if name.count("/") == 2} for part, logged in found.items()}
    assert named == {"val": {"copy"}, "test": {"copy", "turn_round"}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prefixes": ["a: "]}, "2 corpora, 1 prefixes and 2 weights"),
        ({"weights": [1, 0]}, "weights must be positive"),
        ({"prefixes": ["a", "ab"]}, "none may be a prefix of another"),
        ({"prefixes": ["a:", "a "]}, "must differ in their words"),
        ({"corpora": ["copy", "kjv"]}, "'kjv' holds running text"),
        ({"train_rows": 0}, "train_rows must be at least 1"),
    ],
)
def test_mistakes_are_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        corpora.build(mixture(**arguments))
