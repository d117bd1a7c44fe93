import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Trainer
from lightning.pytorch.plugins import DoublePrecision
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import attnkit
from attnkit.checkpoint import AtomicCheckpointIO
from attnkit.task import Task
from tests import commands

collect_ignore = ["processes.py"]  # a script

TOKENIZER = attnkit.tokenizers.build("character").train(["abcdef"])
TASK = {
    "name": "seq2seq",
    "stack": {
        "name": "encoder_decoder", "d_model": 16, "num_layers": 1, "num_heads": 4, "num_kv_heads": 2, "dropout": 0.0,
        "attention": "additive", "position": "relative",
    },
    "src_tokenizer": TOKENIZER.spec,
    "tgt_tokenizer": TOKENIZER.spec,
    "tie": "all",
    "label_smoothing": 0.1,
    "optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1},
    "schedule": {"name": "constant", "warmup_steps": 2},
    "max_length": 5,
}  # fmt: skip


@pytest.fixture(scope="session")
def run_processes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., dict[str, Any]]:
    """Runs `processes.py` with a payload, and returns the results."""

    def run(number: int, payload: dict[str, Any]) -> dict[str, Any]:
        folder = tmp_path_factory.mktemp("processes")
        torch.save(payload, folder / "payload")
        finished = commands.run("tests.strategy.processes", str(number), folder / "payload", folder / "out", cwd=Path(__file__).parents[2])
        assert finished.returncode == 0, finished.stdout + finished.stderr
        results: dict[str, Any] = torch.load(folder / "out", weights_only=True)
        return results

    return run


def make_words(number: int) -> list[str]:
    """Return distinct words of random lengths, from torch's generator."""
    rng = random.Random(int(torch.randint(2**31, ())))
    found: dict[str, None] = {}
    while len(found) < number:
        found["".join(rng.choices("abcdef", k=rng.randint(1, 7)))] = None
    return list(found)


def make_batch(words: list[str]) -> dict[str, Any]:
    """Return a batch with reversed words as targets."""
    src = [torch.tensor([*TOKENIZER.encode(w), 2]) for w in words]
    tgt = [torch.tensor([1, *TOKENIZER.encode(w[::-1]), 2]) for w in words]
    padded = {"src": pad_sequence(src, batch_first=True), "tgt": pad_sequence(tgt, batch_first=True)}
    return padded | {"source": words, "references": [[w[::-1]] for w in words]}


def make_task(**arguments: Any) -> Task:
    """Return the task in float64, with its model; with a `name`, another task."""
    task: Task = attnkit.tasks.build(arguments if "name" in arguments else TASK | arguments)
    task.configure_model()
    return task.double()


def fit_alone(task: Task, batches: list[Any], *, load: str | Path | None = None, val: list[Any] | None = None, **settings: Any) -> Trainer:
    """Train in this process, in float64."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu", "devices": 1, "plugins": [DoublePrecision(), AtomicCheckpointIO()], "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "num_sanity_val_steps": 0,
    }  # fmt: skip
    trainer = Trainer(**(defaults | settings))
    loaders = [DataLoader(b, batch_size=None) if b else None for b in (batches, val)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # hints of Lightning
        trainer.fit(task, *loaders, ckpt_path=load, weights_only=True if load else None)
    return trainer


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the largest difference between weights of the same names."""
    assert set(a) == set(b)
    return max(float((a[name] - b[name]).abs().max()) for name in a)
