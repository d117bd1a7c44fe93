"""Small models that pronounce English words, which several claims examine."""

from functools import cache
from typing import Any

import torch

import attnkit
from attnkit.task import Task
from story_pages.base import train

STEPS = 500
STACKS: dict[str, dict[str, Any]] = {
    "GRU": {"name": "recurrent_encoder_decoder", "cell": "gru", "attention": None, "num_layers": 1},
    "Transformer": {"name": "encoder_decoder", "num_layers": 2, "num_heads": 2, "residual": "pre_norm"},
}


@cache
def data() -> Any:
    """Return the CMU dictionary."""
    tokenizers = {"src_tokenizer": {"name": "character", "lowercase": True}, "tgt_tokenizer": "word"}
    return attnkit.datasets.build(
        {"name": "text_pairs", "corpus": "cmudict", **tokenizers, "batch_tokens": 1024, "max_validation_sources": 400}
    )


@cache
def trained(label: str, seed: int) -> Task:
    """Return a model of width 64 after some steps."""
    torch.manual_seed(seed)
    tokenizers = {"src_tokenizer": data().src_tokenizer_spec, "tgt_tokenizer": data().tgt_tokenizer_spec}
    training = {"optimizer": {"name": "adamw", "lr": 4e-3}, "schedule": {"name": "linear", "warmup_steps": 0.1}, "metrics": []}
    stack = {**STACKS[label], "d_model": 64, "dropout": 0.0}
    task: Task = attnkit.tasks.build({"name": "seq2seq", "stack": stack, **tokenizers, **training})
    train(task, data(), steps=STEPS)
    return task
