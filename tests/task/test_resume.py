"""A run that is killed and resumed equals the uninterrupted one, bit for bit."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers.logger import DummyLogger

import attnkit
from attnkit.callback import LastCheckpoint
from attnkit.checkpoint import load_checkpoint
from attnkit.train.inheritance import values_from_data
from attnkit.train.runs import newest_checkpoint

pytestmark = [
    pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec, LeafSpec\)`:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*Checkpoint directory .* exists and is not empty:UserWarning"),
    pytest.mark.filterwarnings("ignore:You're using the WeightAveraging callback:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*smaller than the logging interval:UserWarning"),
]

SIZE = {"d_model": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.3}
PAIRS = {"name": "text_pairs", "corpus": {"name": "pairs.tsv", "validation": "pairs.tsv"}, "batch_tokens": 64}
TEXTS = {"name": "text.txt", "validation": "text.txt"}
TEXT = {"name": "text", "corpus": TEXTS, "tokenizer": "character", "context": 8, "batch_tokens": 64}
SEQ2SEQ = {"name": "seq2seq", "stack": {"name": "encoder_decoder", **SIZE}, "metrics": [], "max_length": 4}
CAUSAL = {"name": "causal_lm", "stack": {"name": "decoder", **SIZE}}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {  # task, data, trainer
    "text_pairs": (SEQ2SEQ, PAIRS, {"val_check_interval": 0.5, "accumulate_grad_batches": 2}),
    "recurrent": (
        {**SEQ2SEQ, "stack": {"name": "recurrent_encoder_decoder", "d_model": 8, "num_layers": 2, "num_heads": 1, "dropout": 0.3}},
        PAIRS,
        {"limit_train_batches": 5, "check_val_every_n_epoch": 2},
    ),
    "labelled_text": (
        {"name": "classification", "stack": {"name": "encoder", **SIZE}},
        {
            "name": "labelled_text",
            "corpus": {"name": "labels.tsv", "validation": "labels.tsv"},
            "tokenizer": "character",
            "batch_tokens": 64,
        },
        {"accumulate_grad_batches": 3},
    ),
    "text": (CAUSAL, TEXT, {"max_epochs": -1, "max_steps": 13, "val_check_interval": 4}),
    "masked": (
        {"name": "masked_lm", "stack": {"name": "encoder", **SIZE}},
        {**TEXT, "tokenizer": {"name": "character", "extra_tokens": ["<mask>"]}},
        {"val_check_interval": 7, "check_val_every_n_epoch": None},
    ),
    "span_corruption": (
        SEQ2SEQ,
        {
            "name": "span_corruption",
            "corpus": TEXTS,
            "src_tokenizer": "character",
            "context": 8,
            "batch_tokens": 64,
        },
        {"limit_val_batches": 0},
    ),
    "images": (
        {"name": "classification", "stack": {"name": "encoder", **SIZE}, "embedding": {"name": "patch", "patch_size": 4}},
        {
            "name": "labelled_images",
            "corpus": {"name": "images.npz", "validation": "images.npz"},
            "batch_size": 6,
            "shift": 1,
            "flip": True,
        },
        {"precision": "bf16-mixed"},
    ),
}


class Curve(DummyLogger):
    """Holds all that is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[tuple[int, str], float] = {}

    def log_metrics(self, metrics: Any, step: Any = None) -> None:
        self.values |= {(step, name): value for name, value in metrics.items()}


class Killed(BaseException):
    """Raised only by a kill."""


class Kill(Callback):
    """Ends a run at one of the moments of a step."""

    MOMENTS = (
        "on_train_batch_start",
        "on_before_optimizer_step",
        "on_before_zero_grad",
        "on_train_batch_end",
        "on_validation_start",
        "on_validation_end",
        "on_train_epoch_end",
    )

    def __init__(self, step: int, moment: str) -> None:
        self.step, self.moment = step, moment
        for name in self.MOMENTS:
            setattr(self, name, self._hook(name))

    def _hook(self, name: str) -> Callable[..., None]:
        def hook(trainer: Trainer, *_: Any, **__: Any) -> None:
            if trainer.global_step > self.step or (trainer.global_step == self.step and name == self.moment):
                raise Killed

        return hook


@pytest.fixture
def files(tmp_path: Path, words: Callable[..., list[str]], rng: Random, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write the data of all kinds into the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    chosen = words(30)
    Path("pairs.tsv").write_text("source\ttarget\n" + "".join(f"{w}\t{w[::-1]}\n" for w in chosen))
    Path("labels.tsv").write_text("text\tlabel\n" + "".join(f"{w}\t{w[0]}\n" for w in chosen))
    Path("text.txt").write_text(" ".join(words(60)))
    pixels = np.random.default_rng(rng.randrange(2**32)).integers(256, size=(25, 8, 8), dtype=np.uint8)
    np.savez("images.npz", images=pixels, labels=np.arange(25) % 3)


def train(kind: str, *callbacks: Any, curve: Curve, ckpt_path: Path | None = None, **changes: Any) -> dict[str, Any]:
    """Train as the command line does, and return the weights."""
    model, data, trainer = KINDS[kind]
    seed_everything(7, verbose=False)
    module = attnkit.datasets.build(data | changes.pop("data", {}))
    task = attnkit.tasks.build(model | values_from_data(model["name"], data["name"], module))
    settings: dict[str, Any] = {
        "accelerator": "cpu", "max_epochs": 3, "logger": curve, "enable_progress_bar": False, "enable_model_summary": False,
        "log_every_n_steps": 1, "num_sanity_val_steps": 1, "callbacks": list(callbacks), "enable_checkpointing": bool(callbacks),
    }  # fmt: skip
    Trainer(**(settings | trainer | changes)).fit(task, datamodule=module, ckpt_path=ckpt_path, weights_only=ckpt_path and True)
    return {name: weight.clone() for name, weight in task.state_dict().items()}


def kill_and_resume(kind: str, rng: Random, make_callbacks: Callable[[], list[Any]], *, kills: int = 1, **changes: Any) -> None:
    """Compare the run that is killed some times with the one that is not."""
    whole = Curve()
    expected = train(kind, *make_callbacks(), curve=whole, **changes)
    steps = max(step for step, _ in whole.values) + 1
    for path in Path("checkpoints").glob("*"):
        path.unlink()
    curve = Curve()
    moments = [(rng.randrange(steps), rng.choice(Kill.MOMENTS)) for _ in range(kills)]
    print(kind, moments)
    for step, moment in sorted(moments):
        with pytest.raises(Killed):
            train(kind, *make_callbacks(), Kill(step, moment), curve=curve, ckpt_path=newest_checkpoint(Path("checkpoints")), **changes)
    weights = train(kind, *make_callbacks(), curve=curve, ckpt_path=newest_checkpoint(Path("checkpoints")), **changes)
    assert curve.values == whole.values
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_run_resumes_exactly(kind: str, rng: Random) -> None:
    every = rng.randint(1, 4)
    kill_and_resume(kind, rng, lambda: [LastCheckpoint(every_n_steps=every)], kills=2 if kind == "text_pairs" else 1)


@pytest.mark.usefixtures("files")
def test_averaged_weights_resume_exactly(rng: Random) -> None:
    kill_and_resume("text_pairs", rng, lambda: [EMAWeightAveraging(decay=0.9), LastCheckpoint(every_n_steps=2)])


@pytest.mark.usefixtures("files")
def test_lightnings_own_checkpoints_resume_exactly(rng: Random) -> None:
    kill_and_resume("text_pairs", rng, lambda: [ModelCheckpoint(save_last=True)], accumulate_grad_batches=1)  # after validations
    kill_and_resume("text", rng, lambda: [ModelCheckpoint(save_last=True)], val_check_interval=1.0)  # at the end of epochs


@pytest.mark.usefixtures("files")
def test_an_overfitting_run_resumes_exactly() -> None:
    whole, curve, changes = Curve(), Curve(), {"overfit_batches": 3}
    expected = train("span_corruption", LastCheckpoint(every_n_steps=1), curve=whole, **changes)
    with pytest.raises(Killed):
        train("span_corruption", LastCheckpoint(every_n_steps=1), Kill(5, "on_train_batch_end"), curve=curve, **changes)
    weights = train("span_corruption", LastCheckpoint(), curve=curve, ckpt_path=Path("checkpoints/last.ckpt"), **changes)
    assert curve.values == whole.values
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


class Counter(Callback):
    """Counts the examples of each batch of training."""

    def __init__(self) -> None:
        self.counts: list[int] = []

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.counts.append(len(batch["example"]))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize("kind", ["recurrent", "text", "images"])
def test_a_checkpoint_records_the_examples_seen_in_the_epoch(kind: str) -> None:
    counter = Counter()
    with pytest.raises(Killed):
        train(kind, counter, LastCheckpoint(every_n_steps=3), Kill(4, "on_train_batch_end"), curve=Curve())
    position = load_checkpoint(Path("checkpoints/last.ckpt"))["data_position"]
    assert (position["epoch"], position["batches"], position["examples"]) == (0, 3, sum(counter.counts[:3]))


@pytest.mark.usefixtures("files")
def test_resuming_with_different_batches_warns() -> None:
    with pytest.raises(Killed):
        train("recurrent", LastCheckpoint(every_n_steps=3), Kill(4, "on_train_batch_end"), curve=Curve())
    kept = Path("checkpoints/last.ckpt").rename("kept.ckpt")
    for change in ({"batch_tokens": 90}, {"seed": 1}):
        with pytest.warns(UserWarning, match="some examples are repeated and others are skipped"):
            train("recurrent", LastCheckpoint(), curve=Curve(), ckpt_path=kept, data=change, max_epochs=1)
    pairs = Path("pairs.tsv")
    header, *rows = pairs.read_text().splitlines()
    pairs.write_text("\n".join([header, *(row.translate(str.maketrans("ab", "ba")) for row in rows)]))  # of the same lengths
    with pytest.warns(UserWarning, match="The training data have changed since this checkpoint"):
        train("recurrent", LastCheckpoint(), curve=Curve(), ckpt_path=kept, max_epochs=1)


@pytest.mark.usefixtures("files")
def test_resuming_between_micro_batches_warns_of_inexactness(tmp_path: Path) -> None:
    changes: dict[str, Any] = {"val_check_interval": 2, "data": {"batch_tokens": 32}}
    with pytest.raises(Killed):
        train("labelled_text", ModelCheckpoint(save_last=True), Kill(1, "on_before_optimizer_step"), curve=Curve(), **changes)
    with pytest.warns(UserWarning, match="between two micro-batches of a step"):
        train("labelled_text", ModelCheckpoint(), curve=Curve(), ckpt_path=Path("checkpoints/last.ckpt"), **changes)


@pytest.mark.usefixtures("files")
def test_an_exact_checkpoint_takes_precedence_over_a_newer_mid_step_one(capsys: pytest.CaptureFixture[str]) -> None:
    whole, curve = Curve(), Curve()
    # steps have three micro-batches, and an epoch more than four, so that a validation follows the first step, within the second
    changes: dict[str, Any] = {"val_check_interval": 2, "data": {"batch_tokens": 24}}
    expected = train("labelled_text", LastCheckpoint(every_n_steps=1), ModelCheckpoint(filename="best"), curve=whole, **changes)
    for path in Path("checkpoints").glob("*"):
        path.unlink()
    callbacks = (LastCheckpoint(every_n_steps=1), ModelCheckpoint(filename="best"))
    with pytest.raises(Killed):
        train("labelled_text", *callbacks, Kill(1, "on_before_optimizer_step"), curve=curve, **changes)
    assert Path("checkpoints/best.ckpt").stat().st_mtime_ns > Path("checkpoints/last.ckpt").stat().st_mtime_ns
    path = newest_checkpoint(Path("checkpoints"))
    assert path == Path("checkpoints/last.ckpt")
    assert "best.ckpt was saved within a step: renamed it to best.ckpt.within_step" in capsys.readouterr().err
    callbacks = (LastCheckpoint(every_n_steps=1), ModelCheckpoint(filename="best"))
    weights = train("labelled_text", *callbacks, curve=curve, ckpt_path=path, **changes)
    assert curve.values == whole.values
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


@pytest.mark.slow
@pytest.mark.usefixtures("files")
def test_workers_resume_in_the_right_epoch(rng: Random) -> None:
    kill_and_resume("images", rng, lambda: [LastCheckpoint(every_n_steps=3)], data={"num_workers": 2})


@pytest.mark.usefixtures("files")
def test_initialisation_does_not_affect_the_dropout_generator(monkeypatch: pytest.MonkeyPatch) -> None:
    states: list[torch.Tensor] = []
    monkeypatch.setattr(LastCheckpoint, "on_train_batch_start", lambda *_: states.append(torch.get_rng_state()))
    for layers in (1, 2):
        task, data, trainer = KINDS["text"]
        monkeypatch.setitem(KINDS, "text", ({**task, "stack": {**task["stack"], "num_layers": layers}}, data, trainer))
        train("text", LastCheckpoint(), curve=Curve(), max_steps=1)
    assert torch.equal(*states)
