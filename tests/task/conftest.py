import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from lightning.fabric.utilities.warnings import PossibleUserWarning
from lightning.pytorch import Trainer
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import attnkit
from attnkit.task import Task
from attnkit.task.seq2seq import Seq2Seq

TOKENIZER = attnkit.tokenizers.build("character").train(["abcdef"])
TINY = {
    "stack": {"name": "encoder_decoder", "d_model": 16, "num_layers": 1, "num_heads": 2, "dropout": 0.0, "position": "rotary"},
    "src_tokenizer": TOKENIZER.spec,
    "tgt_tokenizer": TOKENIZER.spec,
    "optimizer": {"name": "adam", "lr": 0.01},
    "schedule": {"name": "constant", "warmup_steps": 2},
    "max_length": 12,
}


def is_plain(value: Any) -> bool:
    """Return whether a value is made of numbers, texts, `None`, lists and mappings."""
    if isinstance(value, dict | list):
        return all(map(is_plain, value.values() if isinstance(value, dict) else value))
    return type(value) in (type(None), bool, int, float, str)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: models this small gain nothing from more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)


@pytest.fixture
def words(rng: random.Random) -> Callable[..., list[str]]:
    """Makes distinct random words."""

    def make(number: int, longest: int = 6) -> list[str]:
        found: dict[str, None] = {}
        while len(found) < number:
            found["".join(rng.choices("abcdef", k=rng.randint(1, longest)))] = None
        return list(found)

    return make


@pytest.fixture
def make_batch() -> Callable[..., dict[str, Any]]:
    """Makes a batch with reversed words as targets."""

    def make(words: list[str]) -> dict[str, Any]:
        src = [torch.tensor([*TOKENIZER.encode(w), 2]) for w in words]
        tgt = [torch.tensor([1, *TOKENIZER.encode(w[::-1]), 2]) for w in words]
        return {
            "src": pad_sequence(src, batch_first=True),
            "tgt": pad_sequence(tgt, batch_first=True),
            "source": words,
            "references": [[w[::-1]] for w in words],
        }

    return make


@pytest.fixture
def make_task() -> Callable[..., Any]:
    """Makes a tiny task; arguments override its own."""

    def make(**arguments: Any) -> Any:
        return Seq2Seq(**(TINY | arguments))

    return make


@pytest.fixture
def fit(tmp_path) -> Callable[..., Trainer]:
    """Trains on batches without output."""

    def run(task: Task, batches: Iterable[Any], *, val: Iterable[Any] | None = None, ckpt_path: Any = None, **arguments: Any) -> Trainer:
        settings = {
            "accelerator": "cpu", "max_epochs": 1, "logger": False, "enable_checkpointing": False, "enable_progress_bar": False,
            "enable_model_summary": False, "default_root_dir": tmp_path, "num_sanity_val_steps": 0, "use_distributed_sampler": False,
        }  # fmt: skip
        trainer = Trainer(**(settings | arguments))
        loaders = [DataLoader(list(b), batch_size=None) if b is not None else None for b in (batches, val)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", PossibleUserWarning)  # hints of Lightning
            warnings.filterwarnings("ignore", r"`isinstance\(treespec, LeafSpec\)`", FutureWarning)  # Lightning on torch 2.13
            trainer.fit(task, *loaders, ckpt_path=ckpt_path, weights_only=True if ckpt_path else None)
        return trainer

    return run
