"""The same run on any number of processes: examples, losses, weights and metrics, for every task, data option and strategy."""

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.strategy.conftest import largest_difference

pytestmark = pytest.mark.slow

# Everything is computed in float64 but the sums of metrics. A few steps of AdamW lose some digits of 16, and these tests leave them seven.
ROUNDING = 1e-9
METRICS = 2e-6  # 32 additions in fp32, each with an error of 2^-24 of the sum

SIZE = {"d_model": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.2, "attention_dropout": 0.1}
ENCODER, DECODER, BOTH = ({"name": name, **SIZE} for name in ("encoder", "decoder", "encoder_decoder"))
COMMON = {"optimizer": {"name": "adamw", "lr": 0.01}, "schedule": {"name": "constant"}}
SEQ2SEQ = {"name": "seq2seq", "stack": BOTH, "max_length": 4, "metrics": ["sequence_error_rate", "token_error_rate", "bleu", "chrf"]}
PAIRS = {"name": "text_pairs", "corpus": {"train": "pairs.tsv", "validation": "pairs.tsv"}, "batch_tokens": 24}
LABELS = {"name": "labelled_text", "tokenizer": "character", "batch_tokens": 30}
METRIC_NAMES = {
    "classification": ["accuracy", "f1", "weighted_f1", "precision", "recall"],
    "regression": ["mse", "mae", "pearson", "spearman"],
}
TEXT = {"name": "text", "corpus": {"train": "text.tsv", "validation": "valid.tsv"}, "context": 8, "batch_tokens": 16}
MASKS = {"name": "character", "extra_tokens": ["<mask>"]}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "seq2seq": (SEQ2SEQ, {**PAIRS, "predict": "pairs.tsv"}),
    "recurrent seq2seq": (
        {**SEQ2SEQ, "stack": {"name": "recurrent_encoder_decoder", "d_model": 8, "num_layers": 2, "dropout": 0.2}, "metrics": []},
        PAIRS,
    ),
    "span_corruption": (
        {**SEQ2SEQ, "metrics": []},
        {"name": "span_corruption", "corpus": TEXT["corpus"], "src_tokenizer": "character",
         "context": 8, "batch_tokens": 27},
    ),
    "causal_lm": ({"name": "causal_lm", "stack": DECODER, "prompts": []}, {**TEXT, "tokenizer": "character", "stride": 5}),
    "causal_lm documents": (
        {"name": "causal_lm", "stack": DECODER, "prompts": []},
        {**TEXT, "tokenizer": "character", "document_mask": True},
    ),
    "masked_lm token": ({"name": "masked_lm", "stack": ENCODER, "mask_probability": 0.4}, {**TEXT, "tokenizer": MASKS}),
    "masked_lm whole_word": (
        {"name": "masked_lm", "stack": ENCODER, "mask_probability": 0.8, "masking": "whole_word"},
        {**TEXT, "tokenizer": {"name": "bpe", "vocab_size": 280, "extra_tokens": ["<mask>"]}, "batch_tokens": 8},
    ),
    "word_vectors": ({"name": "word_vectors", "d_model": 8, "subsample": 0.1}, {**TEXT, "tokenizer": "character", "batch_tokens": 8}),
    "classification": (
        {"name": "classification", "stack": ENCODER, "metrics": METRIC_NAMES["classification"]},
        {**LABELS, "corpus": {"train": "classes.tsv", "validation": "classes.tsv"}, "predict": "classes.tsv"},
    ),
    "question_answering": (
        {"name": "question_answering", "stack": ENCODER, "embedding": {"name": "token", "num_segments": 2}},
        {"name": "questions", "tokenizer": "character", "batch_tokens": 60,
         "corpus": {"train": "questions.tsv", "validation": "questions.tsv"}, "predict": "questions.tsv"},
    ),
    "regression": (
        {"name": "regression", "stack": ENCODER, "metrics": METRIC_NAMES["regression"]},
        {**LABELS, "labels": "number", "corpus": {"train": "numbers.tsv", "validation": "numbers.tsv"}, "predict": "numbers.tsv"},
    ),
    "images": (
        {"name": "classification", "stack": ENCODER, "embedding": {"name": "patch", "patch_size": 4}, "metrics": ["accuracy", "f1"]},
        {"name": "labelled_images", "corpus": {"train": "images.npz", "validation": "images.npz"},
         "batch_size": 2, "shift": 1, "flip": True},
    ),
}  # fmt: skip
PREDICTED = [name for name, (_, data) in CASES.items() if "predict" in data]
TWO_EPOCHS = {"max_epochs": 2}
ACCUMULATED = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
MATRIX = [  # all that data modules know of a strategy is `data_share`
    *((name, "ddp", 2) for name in CASES),
    ("seq2seq", "fsdp2", 1),
    ("seq2seq", "fsdp2", 2),
    ("regression", "fsdp2", 2),
    ("regression", "ddp", 4),
    ("masked_lm token", "fsdp2_tp2", 4),
]
RESUMED = [("seq2seq", 2, 1), ("masked_lm token", 1, 2), ("masked_lm token", 2, 4)]
"""Of a case, the number of processes that wrote a checkpoint, and of those that go on."""
AT = 4
"""Steps before the checkpoint: in the middle of an epoch."""


def write_data(folder: Path) -> None:
    rng = random.Random(3)
    words = ["".join(rng.choices("abcd", k=rng.choice([1, 2, 3, 4, 9]))) + "xyzuv"[i % 5] for i in range(9)]
    (folder / "pairs.tsv").write_text("source\ttarget\n" + "".join(f"{w}\t{w[::-1]}\n" for w in dict.fromkeys(words)))
    (folder / "classes.tsv").write_text("text\tlabel\n" + "".join(f"{w}\t{'xyz'[i % 3]}\n" for i, w in enumerate(words)))
    (folder / "numbers.tsv").write_text("text\tlabel\n" + "".join(f"{w}\t{len(w) + i / 7}\n" for i, w in enumerate(words)))
    asked = "".join(f"{w[::-1]}\tx {w} y\t{w}\t2\n" for w in words)
    (folder / "questions.tsv").write_text(f"question\tpassage\tanswer\tstart\n{asked}")
    documents = [" ".join("".join(rng.choices("abcd", k=rng.randint(1, 5))) for _ in range(rng.randint(1, 4))) for _ in range(14)]
    (folder / "text.tsv").write_text("text\n" + "".join(f"{document}\n" for document in documents))
    (folder / "valid.tsv").write_text("text\n" + "".join(f"{document}\n" for document in documents[:9]))
    pixels = np.random.default_rng(3).integers(256, size=(7, 8, 8), dtype=np.uint8)
    np.savez(folder / "images.npz", images=pixels, labels=np.arange(7) % 3)


def located(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a spec with the files where they are."""
    corpus = {"name": "files", **{part: str(folder / file) for part, file in data["corpus"].items()}}
    return {**data, "corpus": corpus, **({"predict": str(folder / data["predict"])} if "predict" in data else {})}


@pytest.fixture(scope="module")
def runs(run_processes: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All runs, by name, strategy and number of processes; those that are resumed by who wrote the checkpoint too."""
    folder = tmp_path_factory.mktemp("data")
    write_data(folder)

    def job(name: str, strategy: str, n: int, **more: Any) -> tuple[str, dict[str, Any], int]:
        task, data = CASES[name]
        return "fit_data", {"task": COMMON | task, "data": located(data, folder), "strategy": strategy, **more}, n

    payload: dict[str, Any] = {}
    for name in CASES:
        payload[f"{name} alone"] = job(name, "auto", 1, predict=name in PREDICTED)
    for name, strategy, n in MATRIX:
        payload[f"{name} {strategy} {n}"] = job(name, strategy, n, predict=name in PREDICTED)
    for n in (1, 2):
        payload[f"accumulated {n}"] = job("causal_lm documents", "ddp", n, trainer=ACCUMULATED)
    for name in dict.fromkeys(name for name, _, _ in RESUMED):
        for n in (1, 2):
            path = str(folder / f"{name} {n}.ckpt")
            payload[f"{name} wrote {n}"] = job(name, "ddp", n, save_at=AT, save=path, trainer=TWO_EPOCHS)
    for name, writer, reader in RESUMED:
        path = str(folder / f"{name} {writer}.ckpt")
        payload[f"{name} {writer} to {reader}"] = job(name, "fsdp2" if reader == 2 else "ddp", reader, load=path, trainer=TWO_EPOCHS)
    return run_processes(1, payload)


def check(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert [sorted(batch) for batch in found["batches"]] == [sorted(batch) for batch in expected["batches"]]
    assert found["planned"] == expected["planned"]
    assert found["steps"] == expected["steps"]
    assert found["losses"] == pytest.approx(expected["losses"], rel=ROUNDING)
    assert largest_difference(found["weights"], expected["weights"]) < ROUNDING
    assert found["logged"] == pytest.approx(expected["logged"], rel=METRICS, abs=METRICS, nan_ok=True)


@pytest.mark.parametrize("name", CASES)
def test_one_process_sees_every_example_once(runs: dict[str, Any], name: str) -> None:
    alone = runs[f"{name} alone"]
    assert len(alone["losses"]) == len(alone["batches"]) == alone["steps"] > 3
    assert all(map(math.isfinite, alone["losses"]))
    seen = [i for batch in alone["batches"] for i in batch]
    assert len(seen) == len(set(seen)) >= 7
    assert alone["fillers"] == 0


@pytest.mark.parametrize(("name", "strategy", "n"), MATRIX)
def test_a_run_on_any_number_of_processes_equals_one_process(runs: dict[str, Any], name: str, strategy: str, n: int) -> None:
    found, alone = runs[f"{name} {strategy} {n}"], runs[f"{name} alone"]
    check(found, alone)
    assert (found["fillers"] > 0) == (n > 1), "no batch has fewer rows than there are processes, so fillers are not tested"
    if name in PREDICTED:
        assert sorted(found["predictions"]) == sorted(alone["predictions"])
        assert len(found["predictions"]) == 9


def test_accumulated_steps_equal_those_of_one_process(runs: dict[str, Any]) -> None:
    check(runs["accumulated 2"], runs["accumulated 1"])
    assert runs["accumulated 1"]["steps"] == math.ceil(runs["causal_lm documents alone"]["steps"] / 2)


@pytest.mark.parametrize(("name", "writer", "reader"), RESUMED)
def test_a_run_resumes_mid_epoch_on_another_number_of_processes(runs: dict[str, Any], name: str, writer: int, reader: int) -> None:
    whole, rest = runs[f"{name} wrote 1"], runs[f"{name} {writer} to {reader}"]
    epoch = len(whole["batches"]) // 2
    assert 0 < AT < epoch, "the checkpoint is not from the middle of an epoch"
    assert [sorted(b) for b in rest["batches"]] == [sorted(b) for b in whole["batches"][AT:]]
    for start in (0, epoch):
        seen = [i for batch in [*whole["batches"][:AT], *rest["batches"]][start : start + epoch] for i in batch]
        assert len(seen) == len(set(seen))
    assert rest["losses"] == pytest.approx(whole["losses"][AT:], rel=ROUNDING)
    assert rest["steps"] == whole["steps"]
    assert largest_difference(rest["weights"], whole["weights"]) < ROUNDING
