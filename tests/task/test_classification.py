"""Classes and numbers for texts and images: learning, metrics, predictions, and checkpoints."""

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics.functional.classification import multiclass_f1_score

import attnkit
from attnkit import ConfigurationError
from attnkit.task import Task
from attnkit.task.classification import Classification, Prediction
from attnkit.task.regression import Estimate, Regression

WORDS = [f"w{i}" for i in range(12)]
TOKENIZER = attnkit.tokenizers.build("word").train([" ".join(WORDS)])
CLASSES = ["low", "middle", "high"]
TINY: dict[str, Any] = {
    "stack": {"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2},
    "tokenizer": TOKENIZER.spec,
    "optimizer": {"name": "adam", "lr": 0.01},
    "schedule": "constant",
}


LEARNING = {"stack": {**TINY["stack"], "num_layers": 2}, "schedule": "linear"}
STEPS = 300
"""In so many steps a task learns, from any of 60 seeds."""


def make(kind: str = "classification", **changed: Any) -> Any:
    own = {"classes": CLASSES} if kind == "classification" else {}
    return attnkit.tasks.build({"name": kind, **TINY, **own, **changed})


def batch(rng: random.Random, size: int = 12, *, numbers: bool = False) -> dict[str, Any]:
    """Texts whose label is the third of the vocabulary that their first word is from, or that word's number over 4."""
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) for _ in range(size)]
    first = torch.tensor([WORDS.index(text.split()[0]) for text in texts])
    ids = [torch.tensor([1, *TOKENIZER.encode(text), 2]) for text in texts]
    tokens = nn.utils.rnn.pad_sequence(ids, batch_first=True)
    return {"tokens": tokens, "label": first.float() / 4 if numbers else first // 4, "text": texts}


@pytest.mark.parametrize(("pooling", "steps"), [("class_token", STEPS), ("mean", 20), ("last", 20)])
def test_a_classifier_learns_and_its_metrics_match_its_predictions(
    pooling: str, steps: int, rng: random.Random, fit: Callable[..., Any]
) -> None:
    task = make(pooling=pooling, metrics=["f1", "weighted_f1", "accuracy"], samples=2, **LEARNING)
    held_out = [batch(rng, n) for n in (20, 7)]
    trainer = fit(task, [batch(rng, 32) for _ in range(steps)], val=held_out)
    logged = trainer.callback_metrics
    assert steps < STEPS or logged["val/accuracy"] > 0.8, logged
    label = torch.cat([b["label"] for b in held_out])
    found = task.predict_texts([text for b in held_out for text in b["text"]])
    guess = torch.tensor([CLASSES.index(p.label) for p in found])
    assert logged["val/accuracy"] == pytest.approx((guess == label).float().mean().item())
    for name, average in (("f1", "macro"), ("weighted_f1", "weighted")):
        assert logged[f"val/{name}"] == pytest.approx(multiclass_f1_score(guess, label, 3, average=average).item())
    assert task.monitor == ("val/f1", "max")
    nll = [-torch.log(task.eval()(b["tokens"]).softmax(-1)[range(len(b["label"])), b["label"]]).sum().item() for b in held_out]
    assert logged["val/loss"].item() == pytest.approx(sum(nll) / 27, rel=1e-4)


def test_a_regression_learns_numbers(rng: random.Random, fit: Callable[..., Any]) -> None:
    task = make("regression", pooling="class_token", metrics=["mae", "mse", "pearson", "spearman"], **LEARNING)
    trainer = fit(task, [batch(rng, 32, numbers=True) for _ in range(STEPS)], val=[batch(rng, n, numbers=True) for n in (30, 9)])
    logged = trainer.callback_metrics
    assert logged["val/pearson"] > 0.8
    assert logged["val/mse"].item() == pytest.approx(logged["val/loss"].item(), rel=1e-4)
    assert task.monitor == ("val/mae", "min")
    task.to(torch.bfloat16)
    states = [state for metric in task.metrics("val").values() for state in metric.metric_state.values()]
    assert {state.dtype for state in states if isinstance(state, torch.Tensor)} == {torch.float32, torch.int64}


def test_samples_are_printed_with_the_truth(rng: random.Random, fit: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    fit(make(samples=3), [batch(rng)], val=[batch(rng, 4), batch(rng, 4)])
    out = capsys.readouterr().out
    assert "Step 1: accuracy " in out
    lines = [line for line in out.splitlines() if " -> " in line]
    assert len(lines) == 3
    assert all(line.startswith(("  ok ", "  wrong ")) and any(f"-> {c} 0." in line for c in CLASSES) for line in lines)
    fit(make("regression", samples=0), [batch(rng, numbers=True)], val=[batch(rng, 4, numbers=True)])
    assert " -> " not in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["classification", "regression"])
@pytest.mark.parametrize("stack", ["encoder", "recurrent_encoder", "recurrent_decoder"])
def test_predictions_do_not_depend_on_batching_or_change_the_mode(kind: str, stack: str, rng: random.Random) -> None:
    task = make(kind, stack={"name": stack, "d_model": 16, "num_layers": 1, **({"num_heads": 2} if stack == "encoder" else {})})
    task.configure_model()
    task.double()
    texts = [*batch(rng, 9)["text"], ""]
    together = task.predict_texts(texts)
    assert [p.text for p in together] == texts
    alone = [task.predict_texts([text])[0] for text in texts]
    assert [p[-1] for p in together] == pytest.approx([p[-1] for p in alone], rel=1e-6)
    assert task.training
    assert all(p.grad is None for p in task.parameters())


def test_line_break_styles_do_not_change_predictions(rng: random.Random) -> None:
    # a word tokenizer would not see the difference
    task = make("classification", tokenizer=attnkit.tokenizers.build("character").train(["w1\r\nw2"]).spec)
    [written], [read] = task.predict_texts(["w1\r\nw2"]), task.predict_texts(["w1\nw2"])
    assert written.probability == read.probability
    assert written.text == "w1\r\nw2"


def test_predictions_print_as_escaped_table_rows() -> None:
    assert str(Prediction("two\nlines\tand", "good", 0.98765)) == "two\\nlines\\tand\tgood\t0.9877"
    for value in (-1.5, 1e-7, 123456.79, 16777216.0, 0.1):
        printed = str(Estimate("a", float(torch.tensor(value)))).removeprefix("a\t")
        assert torch.tensor(float(printed)) == torch.tensor(value)  # nothing is lost
        assert len(printed) <= 13


def test_the_loss_counts_class_0_and_smooths_over_every_class(rng: random.Random) -> None:
    task = make(label_smoothing=0.3)
    task.configure_model()
    b = batch(rng, 30)
    assert (b["label"] == 0).any()
    sums = task.objective(b)
    want = nn.functional.cross_entropy(task(b["tokens"]), b["label"], label_smoothing=0.3, reduction="sum")
    assert sums.targets == 30
    torch.testing.assert_close(sums.loss, want)
    torch.testing.assert_close(sums.nll, nn.functional.cross_entropy(task(b["tokens"]), b["label"], reduction="sum"))


def test_images_are_classified_by_class_name(rng: random.Random, fit: Callable[..., Any]) -> None:
    task = make(
        tokenizer=None, image_shape=[1, 8, 8], embedding={"name": "patch", "patch_size": 4}, pooling="class_token", metrics=["accuracy"]
    )
    label = torch.arange(24) % 3
    images = {
        "image": torch.randn(24, 1, 8, 8) * 0.1 + torch.randn(3, 1, 8, 8)[label],
        "label": label,
        "text": [f"{i}" for i in range(24)],
    }
    trainer = fit(task, [images] * 60, val=[images])
    assert trainer.callback_metrics["val/accuracy"] > 0.8
    with torch.no_grad():
        assert [p.text for p in task.eval().predict_step(images, 0)] == images["text"]
    with pytest.raises(ConfigurationError, match="reads images"):
        task.predict_texts(["a"])


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_predictions_need_only_a_checkpoint(kind: str, rng: random.Random, fit: Callable[..., Any], tmp_path: Any) -> None:
    task = make(kind, pooler=True)
    trainer = fit(task, [batch(rng, numbers=kind == "regression")] * 3)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    texts = batch(rng)["text"]
    assert Task.load(tmp_path / "a.ckpt").predict_texts(texts) == task.predict_texts(texts)


@pytest.mark.parametrize(
    ("kind", "changed", "message"),
    [
        ("classification", {"metrics": ["acuracy"]}, "unknown metric 'acuracy'. Did you mean 'accuracy'"),
        ("classification", {"metrics": "f1"}, r"metrics must be a list of names, as in \[f1\]"),
        ("regression", {"metrics": []}, r"metrics must be a list of names, as in \[mse\]"),
        ("regression", {"metrics": ["accuracy"]}, "Names: mse, mae, pearson, spearman"),
        ("classification", {"classes": ["a"]}, "classes must be at least two and distinct"),
        ("classification", {"classes": ["a", "b", "a"]}, "classes must be at least two and distinct"),
        ("classification", {"label_smoothing": 1.0}, "label_smoothing must be at least 0 and below 1"),
        ("classification", {"pooling": "max"}, "pooling must be"),
        ("classification", {"tokenizer": "word"}, "tokenizer is not trained"),
        ("classification", {"tokenizer": None, "image_shape": [1, 4, 4]}, "embedding 'token' reads tokens"),
        ("regression", {"stack": {**TINY["stack"], "name": "decoder"}, "pooling": "class_token"}, "use pooling last or mean"),
        ("regression", {"samples": -1}, "samples must be at least 0"),
    ],
)
def test_mistakes_are_reported_before_training(kind: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make(kind, **changed).configure_model()


def test_labels_of_the_wrong_kind_are_refused(rng: random.Random) -> None:
    for task, numbers, message in ((make(), True, "use task regression"), (make("regression"), False, "use task classification")):
        task.configure_model()
        with pytest.raises(ConfigurationError, match=message):
            task.objective(batch(rng, numbers=numbers))


def test_predict_texts_requires_a_list() -> None:
    assert isinstance(make(), Classification)
    assert isinstance(make("regression"), Regression)
    with pytest.raises(TypeError, match="texts must be a list"):
        make().predict_texts("w1")


def test_a_printed_prediction_is_one_line_of_three_cells() -> None:
    assert str(Prediction("a\nb", "c\td", 0.5)) == "a\\nb\tc\\td\t0.5000"
