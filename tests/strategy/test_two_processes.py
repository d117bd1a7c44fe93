"""ddp, fsdp2 and tensor parallelism give the parameters of one process, and read each other's checkpoints."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from lightning.pytorch import Trainer

from attnkit.checkpoint import export, load_checkpoint, load_exported
from attnkit.checkpoint.shards import name_parameters
from attnkit.task import Task
from tests.strategy.conftest import TASK, TOKENIZER, fit_alone, largest_difference, make_batch, make_task, make_words

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")]

STRATEGIES: dict[str, Any] = {
    "ddp": "ddp",
    "fsdp2": "fsdp2",
    "fsdp2_tp2": "fsdp2_tp2",
    "sharded": {"save_distributed_checkpoint": True},
    "sharded_tp2": {"save_distributed_checkpoint": True, "tensor_parallel_size": 2},
}
RESUMED = [  # who wrote the checkpoint after one epoch, and who goes on
    ("alone", "ddp"), ("sharded_tp2", "fsdp2"),
    ("first_edition", "fsdp2"), ("sharded_first_edition", "fsdp2_tp2"), ("sharded_first_edition", "ddp"),
]  # fmt: skip
WRITTEN = ["ddp", "fsdp2", "fsdp2_tp2", "sharded", "sharded_tp2", "first_edition", "sharded_first_edition"]
SETTINGS = {"gradient_clip_val": 0.2}


def write_as_first_edition(trainer: Trainer, folder: Path) -> None:
    """Write the checkpoint `alone.ckpt` as attnkit ddc1e21 did: with its names of weights, as a file, and as a folder."""

    def old(name: str) -> str:
        return name.replace(".cross_mixer", ".cross_attention").replace(".mixer", ".self_attention")

    names = {parameter: old(name) for name, parameter in trainer.lightning_module.named_parameters()}
    checkpoint = torch.load(folder / "alone.ckpt", weights_only=True)
    checkpoint["state_dict"] = {old(name): weight for name, weight in checkpoint["state_dict"].items()}
    assert "model.stack.decoder.layers.0.self_attention.query.weight" in checkpoint["state_dict"]
    torch.save(checkpoint, folder / "first_edition.ckpt")
    state = {"state_dict": checkpoint.pop("state_dict")}
    for i, (optimizer, stored) in enumerate(zip(trainer.optimizers, checkpoint.pop("optimizer_states"), strict=True)):
        state[f"optimizer_{i}"] = name_parameters(stored, [names[p] for group in optimizer.param_groups for p in group["params"]])
    dcp.save(state, checkpoint_id=folder / "sharded_first_edition.ckpt", no_dist=True)
    torch.save(checkpoint, folder / "sharded_first_edition.ckpt/meta.pt")


@pytest.fixture(scope="module")
def given(run_processes: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process, and all runs of two processes: each step is two ragged micro-batches on two ranks, or one batch."""
    folder = tmp_path_factory.mktemp("checkpoints")
    sizes = [[[3, 1], [5, 2]], [[1, 4], [1, 1]]]  # [step][rank][micro-batch]
    micro = [[[make_words(n) for n in rank] for rank in step] for step in sizes]
    whole = [make_batch([w for rank in step for words in rank for w in words]) for step in micro]
    ranks = [[make_batch(words) for step in micro for words in step[rank]] for rank in range(2)]
    halves = [make_batch([w for rank in step for w in rank[i]]) for step in micro for i in range(2)]  # as micro-batches of one rank
    words = make_words(7)
    alone = make_task()
    start = {name: weight.clone() for name, weight in alone.state_dict().items()}
    trainer = fit_alone(alone, whole, val=[make_batch(words)], max_epochs=1, **SETTINGS)
    trainer.save_checkpoint(folder / "alone.ckpt")
    write_as_first_edition(trainer, folder)
    first = {name: weight.clone() for name, weight in alone.state_dict().items()}
    resumed = make_task()
    fit_alone(resumed, whole, load=folder / "alone.ckpt", max_epochs=2, **SETTINGS)

    def run(strategy: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
        split = strategy.endswith("tp2")
        settings = SETTINGS | {"accumulate_grad_batches": 2} | arguments.pop("trainer", {})
        data = {"train": [halves] if split else ranks}
        return "fit", {"task": TASK, "weights": start, "strategy": STRATEGIES[strategy], "trainer": settings} | data | arguments

    val = {"fsdp2": [[make_batch(words[:2])], [make_batch(words[2:])]], "fsdp2_tp2": [[make_batch(words)]]}
    payload: dict[str, Any] = {}
    for name in STRATEGIES:
        more = {"val": val[name], "predict": True} if name in val else {}
        payload[name] = run(name, save=str(folder / f"{name}.ckpt"), **more)
    for writer, reader in RESUMED:
        payload[f"{writer} {reader}"] = run(reader, load=str(folder / f"{writer}.ckpt"), trainer={"max_epochs": 2})
    recurrent = {"name": "recurrent_encoder_decoder", "d_model": 8, "num_layers": 1}
    payload["recurrent split"] = run("fsdp2_tp2", task=TASK | {"stack": recurrent}, weights=None)
    payload["one"] = *run("fsdp2", train=[whole], trainer={"accumulate_grad_batches": 1}), 1
    payload["too many"] = "fit", run("fsdp2")[1] | {"strategy": {"tensor_parallel_size": 3}}
    return {
        "folder": folder, "start": start, "first": first, "second": dict(resumed.state_dict()), "whole": whole, "words": words,
        "logged": dict(trainer.callback_metrics), "alone": alone, "runs": run_processes(2, payload),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["ddp", "fsdp2", "fsdp2_tp2"])
def test_two_processes_reach_the_weights_of_one(given: dict[str, Any], name: str) -> None:
    assert largest_difference(given["start"], given["first"]) > 1e-3
    assert given["runs"][name]["steps"] == 2
    assert largest_difference(given["runs"][name]["weights"], given["first"]) < 1e-9


@pytest.mark.parametrize("name", ["fsdp2", "fsdp2_tp2"])
def test_logs_and_predictions_equal_those_of_one_process(given: dict[str, Any], name: str) -> None:
    logged, expected = given["runs"][name]["logged"], given["logged"]
    assert set(logged) == set(expected) >= {"train/loss", "val/loss", "val/sequence_error_rate"}
    for key, value in expected.items():
        torch.testing.assert_close(logged[key], value, rtol=1e-6, atol=1e-6, msg=lambda m, key=key: f"{key}: {m}")
    predictions = given["runs"][name]["predictions"]
    everything = [line for rank in predictions for line in rank] if name == "fsdp2" else predictions[0]
    assert everything == [f"{w}\t{h}" for w, h in zip(given["words"], given["alone"].generate(given["words"]), strict=True)]


@pytest.mark.parametrize(("writer", "reader"), RESUMED)
def test_a_run_resumes_under_another_strategy(given: dict[str, Any], writer: str, reader: str) -> None:
    run = given["runs"][f"{writer} {reader}"]
    assert run["steps"] == 4
    assert largest_difference(run["weights"], given["second"]) < 1e-9


@pytest.mark.parametrize("writer", WRITTEN)
def test_a_run_resumes_in_one_process(given: dict[str, Any], writer: str) -> None:
    task = make_task()
    fit_alone(task, given["whole"], load=given["folder"] / f"{writer}.ckpt", max_epochs=2, **SETTINGS)
    assert largest_difference(dict(task.state_dict()), given["second"]) < 1e-9


@pytest.mark.parametrize("writer", WRITTEN)
def test_a_checkpoint_is_exported(given: dict[str, Any], tmp_path: Path, writer: str) -> None:
    path = given["folder"] / f"{writer}.ckpt"
    assert path.is_dir() == writer.startswith("sharded")
    assert [p.name for p in given["folder"].iterdir() if p.name.startswith(".")] == []
    export(path, tmp_path / "model.safetensors")
    for task in (load_exported(tmp_path / "model.safetensors"), Task.load(path)):
        assert largest_difference(dict(task.state_dict()), given["first"]) < 1e-9
    assert load_checkpoint(path)["epoch"] == 1


def test_one_process_can_shard(given: dict[str, Any]) -> None:
    assert largest_difference(given["runs"]["one"]["weights"], given["first"]) < 1e-9


def test_compiled_layers_reach_the_same_weights(run_processes: Callable[..., dict[str, Any]]) -> None:
    stack = {"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2}
    task = {"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec, "optimizer": {"name": "adamw", "lr": 0.01}}
    batches = [{"tokens": torch.randint(5, 10, size)} for size in ((3, 6), (5, 4))]
    alone = make_task(**task)
    start = {name: weight.clone() for name, weight in alone.state_dict().items()}
    fit_alone(alone, batches, max_epochs=1)
    compiled = task | {"compile": True, "activation_checkpointing": "layer"}
    arguments = {"task": compiled, "weights": start, "train": [batches], "trainer": {}}
    runs = run_processes(2, {name: ("fit", arguments | {"strategy": name}) for name in ("fsdp2", "fsdp2_tp2")})
    assert largest_difference(start, dict(alone.state_dict())) > 1e-3
    assert largest_difference(runs["fsdp2"]["weights"], dict(alone.state_dict())) < 1e-9
    assert "does not support compiled layers" in runs["fsdp2_tp2"]["error"]


def test_unsplittable_models_are_rejected(given: dict[str, Any]) -> None:
    assert "needs the whole previous recurrent state" in given["runs"]["recurrent split"]["error"]
    assert "tensor_parallel_size 3 does not divide the number of processes: 1 nodes x 2 devices" in given["runs"]["too many"]["error"]
