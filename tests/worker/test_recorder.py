"""The record of a training: batches of any kind are hashed, whole, or the record says what is not."""

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule

import attnkit
from attnkit.profile.flops import evaluate, forward_flops
from attnkit.worker.budget import Budget
from attnkit.worker.limit import Limit
from attnkit.worker.recorder import Recorder
from tests.ablation.conftest import SEEDS


@dataclass
class Batch:
    x: Any


def recorded(batch: Any) -> Recorder:
    recorder, trainer = Recorder(SEEDS), SimpleNamespace(world_size=1)
    recorder.on_train_batch_end(trainer, SimpleNamespace(), None, batch, 0)  # type: ignore[arg-type]
    return recorder


def test_batches_that_differ_in_any_way_have_different_hashes() -> None:
    batches = [
        torch.tensor([1, 2]),
        torch.tensor([1.0, 2.0]),
        torch.tensor([1, 2]).to_sparse(),
        torch.tensor([1.0, 2.0], dtype=torch.bfloat16),
        np.array([1, 3]),
        np.array([1, 2]),
        ["a", "b"],
        ["a", "c"],
        {"x": 1},
        {"y": 1},
        Batch(torch.ones(2)),
        Batch(torch.zeros(2)),
    ]
    assert recorded(batches[2]).digest == recorded(batches[0]).digest, "the same numbers"
    digests = [recorded(batch).digest for batch in batches[:2] + batches[3:]]
    assert len(set(digests)) == len(digests)
    assert not any(recorded(batch).unhashed for batch in batches)


def test_a_value_that_cannot_be_hashed_is_named() -> None:
    assert recorded([torch.ones(1), {1, 2}, object()]).unhashed == ["set", "object"]


def test_example_numbers_are_not_counted_as_tokens() -> None:
    assert recorded({"example": torch.tensor([7, 8]), "tokens": torch.tensor([[5, 0], [4, 3]])}).tokens == 3


def test_a_strided_single_element_is_hashed_by_value() -> None:
    """As the targets of one example are, if a process gets a single token; torch calls it contiguous whatever its stride."""
    [row] = torch.tensor([[1, 2]]).unbind()
    assert recorded(row[::2]).digest == recorded(torch.tensor([1])).digest != recorded(torch.tensor([2])).digest


def test_non_finite_final_parameters_count_as_divergence() -> None:
    recorder, model = Recorder(SEEDS), LightningModule()
    model.layer = torch.nn.Linear(2, 2)
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(reduce_boolean_decision=bool))
    recorder.on_train_end(trainer, model)
    assert not recorder.diverged
    model.layer.weight.data[0, 1] = math.nan
    recorder.on_exception(trainer, model, KeyboardInterrupt())
    assert not recorder.diverged, "other ranks may not answer"
    recorder.on_train_end(trainer, model)
    assert recorder.diverged


def test_tokens_and_flops_are_summed_over_processes() -> None:
    def reduce(number: torch.Tensor, *, reduce_op: str) -> torch.Tensor:  # the other three processes have counted as much
        assert reduce_op == "sum"
        return 4 * number

    strategy = SimpleNamespace(reduce=reduce, root_device=torch.device("cpu"))
    tokenizer = attnkit.tokenizers.build("character").train(["ab"]).spec
    stack = {"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    task = attnkit.tasks.build({"name": "causal_lm", "stack": stack, "tokenizer": tokenizer})
    filler = {
        "example": torch.tensor([3, -1]),
        "tokens": torch.tensor([[1, 4, 5], [1, 4, 5]]),
        "targets": torch.tensor([[4, 5, 2], [0, 0, 0]]),
    }
    for shares in (4, 2):  # in the second case, pairs of processes share a batch
        trainer: Any = SimpleNamespace(
            world_size=4, strategy=strategy, distributed_sampler_kwargs={"num_replicas": shares, "rank": 0}, should_stop=False,
            fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace(_should_accumulate=lambda: False)), global_step=1,
        )  # fmt: skip
        recorder = Recorder(SEEDS)
        recorder.on_train_batch_end(trainer, task, None, filler, 0)
        assert recorder.tokens == 3 * shares
        for on, spent in (
            ("tokens", 3 * shares),
            ("flops", shares * 3 * evaluate(forward_flops(task), torch.tensor([3]), torch.tensor([0]))),
        ):
            limit = Limit(Budget(on=on, limit=1e9), tokens=lambda recorder=recorder: recorder.tokens, seconds=lambda: 0.0)  # type: ignore[arg-type]
            limit.on_train_start(trainer, task)
            limit.on_train_batch_end(trainer, task, None, filler, 0)
            assert limit.spent == spent
