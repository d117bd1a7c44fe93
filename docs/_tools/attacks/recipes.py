"""Recipes and data of the attacked runs: small, but with everything that a checkpoint has to store."""

import json
from pathlib import Path
from random import Random
from typing import Any

SHARDED = {"class_path": "attnkit.strategy.FSDP2", "init_args": {"save_distributed_checkpoint": True}}


def write_recipe(folder: Path, *, strategy: str | None = None, saving: bool = False) -> None:
    """Write `tiny.yaml` and its data: dropout, averaged weights, accumulated gradients and two validations per epoch.

    Args:
        folder: Where to write.
        strategy: `ddp` or `fsdp2` with two processes; None: one process.
        saving: Use a model that takes a while to write, and save it after every step; with `fsdp2`, sharded.
    """
    random = Random(0)
    words = ["".join(random.choices("abcdef", k=random.randint(1, 6))) for _ in range(32 if saving else 100)]
    pairs = "".join(f"{word}\t{word[::-1].upper()}\n" for word in words)
    (folder / "words.tsv").write_text(f"source\ttarget\n{pairs}", encoding="utf-8")
    last = {"class_path": "attnkit.callback.LastCheckpoint", "init_args": {"every_n_steps": 1 if saving else 3}}
    best = {"class_path": "ModelCheckpoint", "init_args": {"filename": "best", "monitor": "val/loss"}}
    average = {"class_path": "lightning.pytorch.callbacks.EMAWeightAveraging", "init_args": {"decay": 0.9}}
    trainer: dict[str, Any] = {
        "accelerator": "cpu",
        "max_epochs": 3,
        "val_check_interval": 0.5,
        "limit_val_batches": 2,
        "num_sanity_val_steps": 0,
        "accumulate_grad_batches": 1 if saving else 2,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "callbacks": [last] if saving else [best, last] if strategy == "fsdp2" else [average, best, last],
    }
    if strategy is not None:
        trainer |= {"devices": 2, "strategy": SHARDED if saving else strategy}
    stack = {"name": "encoder_decoder", "d_model": 96 if saving else 16, "num_layers": 1, "num_heads": 2, "dropout": 0.2}
    recipe = {
        "model": {"name": "seq2seq", "stack": stack, "metrics": [], "max_length": 6, "optimizer": {"name": "adamw", "lr": 0.005}},
        "data": {"name": "text_pairs", "corpus": {"name": "words.tsv", "validation": "words.tsv"}, "batch_tokens": 64},
        "trainer": trainer,
    }
    (folder / "tiny.yaml").write_text(json.dumps(recipe, indent=1), encoding="utf-8")  # JSON is YAML


def write_study(folder: Path, *, epochs: int) -> None:
    """Write `study.yaml`, two variants with two seeds, and its recipe and data."""
    words = "".join(f"{a}{b}{c}\t{c} {b} {a}\n" for a in "abcd" for b in "abcd" for c in "ab")
    (folder / "words.tsv").write_text(f"source\ttarget\n{words}", encoding="utf-8")
    stack = {"name": "encoder_decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "dropout": 0.1}
    save = {"class_path": "attnkit.callback.LastCheckpoint", "init_args": {"every_n_steps": 5}}
    best = {"class_path": "ModelCheckpoint", "init_args": {"filename": "best", "monitor": "val/loss"}}
    recipe = {
        "model": {
            "name": "seq2seq",
            "stack": stack,
            "metrics": [],
            "max_length": 6,
            "optimizer": {"name": "adamw", "lr": 0.005},
            "schedule": "constant",
        },
        "data": {"name": "text_pairs", "corpus": {"name": "words.tsv", "validation": "words.tsv"}, "batch_tokens": 64},
        "trainer": {"max_epochs": epochs, "accelerator": "cpu", "num_sanity_val_steps": 0, "callbacks": [best, save]},
    }
    study = {"recipe": "tiny.yaml", "seeds": 2, "factors": {"model.stack.position": ["none"]}, "retries": {"killed": 1000}}
    (folder / "tiny.yaml").write_text(json.dumps(recipe, indent=1), encoding="utf-8")
    (folder / "study.yaml").write_text(json.dumps(study, indent=1), encoding="utf-8")
