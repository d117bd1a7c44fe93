"""Two processes are watched as one is: they skip and stop together, and log the same. Also short windows, and shares of a validation."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import DoublePrecision

import attnkit
from attnkit.callback import AttentionMaps, FiniteCheck, Throughput
from attnkit.lightning_internals import read_rows
from attnkit.profile.memory import step_memory
from attnkit.profile.partition import Mesh, memory_parts, split
from tests.strategy.breaking import Break
from tests.strategy.conftest import TASK, TOKENIZER, fit_alone, largest_difference, make_batch, make_task, make_words

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # hints of Lightning; what is skipped is a warning too

PATH = "model.stack.encoder.layers.0.feed_forward"
ROWS = 2  # that the first micro-batch of the first process has
MAPS = {"every_n_steps": 1, "rows": ROWS, "figures": False}
STRATEGIES = ["ddp", "fsdp2", "fsdp2_tp2"]
EVALUATED = ["fsdp2", "fsdp2_tp2"]
MESHES = [(2, 1), (1, 2)]
JOB: dict[str, Any] = {  # parameters and what belongs to them are about half of its memory
    "model": {
        "name": "causal_lm", "tokenizer": TOKENIZER.spec, "optimizer": {"name": "adamw", "lr": 0.001},
        "stack": {"name": "decoder", "d_model": 96, "num_layers": 3, "num_heads": 2, "feed_forward": {"name": "mlp", "ffn_dim": 384}},
    },
    "batch": {"tokens": torch.full((4, 40), 5)},
    "precision": "32-true",
}  # fmt: skip


@pytest.fixture(scope="module")
def given(run_processes: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One process, and two with two micro-batches in each step but the last, which has one."""
    folder = tmp_path_factory.mktemp("health")
    sizes = [[[ROWS, 1], [5, 2]], [[1, 1], [2, 7]], [[4], [3]]]  # [step][rank][micro-batch]
    micro = [[[make_words(n) for n in rank] for rank in step] for step in sizes]
    whole = [make_batch([w for rank in step for words in rank for w in words]) for step in micro]
    ranks = [[make_batch(words) for step in micro for words in step[rank]] for rank in range(2)]
    halves = [make_batch([w for rank in step for w in rank[i]]) for step in micro for i in range(len(step[0]))]
    start = {name: weight.clone() for name, weight in make_task().state_dict().items()}

    def alone(name: str, *callbacks: Callback) -> dict[str, Any]:
        task = make_task()
        task.load_state_dict(start)
        trainer = fit_alone(
            task, whole, max_epochs=1, callbacks=[*callbacks], logger=CSVLogger(folder, name, version=""), log_every_n_steps=1
        )
        return {"weights": dict(task.state_dict()), "logged": dict(trainer.callback_metrics)}

    def run(strategy: str, name: str, **callbacks: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        fit = {"task": TASK, "weights": start, "strategy": strategy, "train": [halves] if strategy == "fsdp2_tp2" else ranks}
        trainer = {"accumulate_grad_batches": 2, "log_every_n_steps": 1}
        return "fit", fit | {"trainer": trainer, "callbacks": callbacks, "logs": str(folder / name)}

    broken = {"process": 1, "batch": 2, "path": PATH}  # the first micro-batch of the second step
    payload: dict[str, Any] = {}
    for name in STRATEGIES:
        payload[name] = run(name, name, FiniteCheck={}, Throughput={}, AttentionMaps=MAPS)
    payload["fsdp2 skip"] = run("fsdp2", "fsdp2 skip", FiniteCheck={"policy": "skip"}, Break=broken)
    payload["fsdp2 stop"] = run("fsdp2", "fsdp2 stop", FiniteCheck={}, Break=broken)
    payload["ddp stop"] = run("ddp", "ddp stop", FiniteCheck={}, Break=broken | {"backward": True})
    payload["ddp average"] = run("ddp", "ddp average", EMAWeightAveraging={"decay": 0.6})
    pairs = folder / "pairs.tsv"
    words = make_words(11)
    pairs.write_text("source\ttarget\n" + "".join(f"{w}\t{w[::-1]}\n" for w in words))
    data = {"name": "text_pairs", "corpus": {"name": "files", "validation": str(pairs)}, "batch_tokens": 60} | {
        k: TASK[k] for k in ("src_tokenizer", "tgt_tokenizer")
    }
    validation = {"task": TASK, "weights": start, "data": data}
    for name in EVALUATED:
        payload[f"{name} validation"] = "validate", validation | {"strategy": name}
    for mesh in MESHES:
        payload[f"memory {mesh}"] = "measure", {"job": JOB | {"mesh": mesh, "strategy": "fsdp2"}}
    task = make_task()
    task.load_state_dict(start)
    (validated,) = Trainer(
        accelerator="cpu", plugins=[DoublePrecision()], logger=False, enable_checkpointing=False, enable_progress_bar=False
    ).validate(task, datamodule=attnkit.datasets.build(data), verbose=False)
    expected = {
        "watched": alone("alone", FiniteCheck(), Throughput(), AttentionMaps(**MAPS)),
        "skip": alone("alone skip", FiniteCheck(policy="skip"), Break(process=0, batch=1, path=PATH)),
        "average": alone("alone average", EMAWeightAveraging(decay=0.6)),
        "validation": validated,
    }
    return {"folder": folder, "ranks": ranks, "words": words, "alone": expected, "runs": run_processes(2, payload)}


def logged(folder: Path) -> list[dict[str, float]]:
    """Return what is logged at each step; of speeds, how much a step has."""
    steps: dict[str, dict[str, float]] = {}
    for row in read_rows(folder / "metrics.csv")[1]:
        steps.setdefault(row["step"], {}).update({k: float(v) for k, v in row.items() if v and k not in ("step", "epoch")})
    for values in steps.values():
        speeds = {k.removesuffix("_per_second"): v for k, v in values.items() if k.startswith("speed/")}
        for name in [k for k in values if k.startswith("speed/")]:
            del values[name]
        for name in speeds.keys() & {"speed/tokens", "speed/examples", "speed/model_tflops"}:
            values[f"{name} of a step"] = speeds[name] / speeds["speed/steps"]
    return list(steps.values())


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_short_last_window_logs_and_learns_like_one_process(given: dict[str, Any], name: str) -> None:
    run = given["runs"][name]
    assert run["steps"] == 3
    assert largest_difference(run["weights"], given["alone"]["watched"]["weights"]) < 1e-9
    found, expected = logged(given["folder"] / name), logged(given["folder"] / "alone")
    assert {key.partition("/")[0] for values in expected for key in values} == {"train", "speed", "entropy", "largest_logit"}
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, rel=1e-5, abs=1e-5)


def test_all_processes_skip_a_step_that_fails_on_one(given: dict[str, Any]) -> None:
    run, expected = given["runs"]["fsdp2 skip"], given["alone"]["skip"]
    assert run["logged"]["train/skipped_steps"] == expected["logged"]["train/skipped_steps"] == 1
    assert largest_difference(run["weights"], expected["weights"]) < 1e-9
    assert largest_difference(run["weights"], given["alone"]["watched"]["weights"]) > 1e-4


@pytest.mark.parametrize(("name", "what"), [("fsdp2", "the output of"), ("ddp", "the gradient of the output of")])
def test_all_processes_stop_and_name_the_failing_one(given: dict[str, Any], name: str, what: str) -> None:
    one, other = given["runs"][f"{name} stop"]["everywhere"]
    assert one == other
    assert "step 1 is not finite" in one
    assert f"First non-finite values: {what} {PATH}" in one
    assert "in batch 2 (process 1)." in one
    kept = torch.load(given["folder"] / f"{name} stop" / "not_finite.pt", weights_only=False)
    assert [batch["source"] for batch in kept] == [batch["source"] for batch in given["ranks"][1][2:4]]


def test_averaged_weights_equal_those_of_one_process(given: dict[str, Any]) -> None:
    expected = given["alone"]["average"]["weights"]
    assert largest_difference(given["runs"]["ddp average"]["weights"], expected) < 1e-9
    assert largest_difference(expected, given["alone"]["watched"]["weights"]) > 1e-4


@pytest.mark.parametrize("name", EVALUATED)
def test_each_validation_text_is_in_exactly_one_process(given: dict[str, Any], name: str) -> None:
    run, expected = given["runs"][f"{name} validation"], given["alone"]["validation"]
    shares = run["sources"][:1] if name == "fsdp2_tp2" else run["sources"]  # two processes that split layers are one
    assert all(shares)
    assert sorted(source for share in shares for source in share) == sorted(given["words"])
    assert set(run["logged"]) == set(expected) >= {"val/sequence_error_rate", "val/token_error_rate", "val/loss"}
    for key, value in expected.items():
        exact = key.endswith("_rate")
        assert run["logged"][key] == (value if exact else pytest.approx(value, rel=1e-6))


@pytest.mark.parametrize("mesh", MESHES)
def test_measured_memory_matches_the_plan(given: dict[str, Any], mesh: tuple[int, int]) -> None:
    data, tensor = mesh
    memory = step_memory(attnkit.tasks.build(split(JOB["model"], tensor)), JOB["batch"], precision="32-true")
    estimate = memory_parts(memory, Mesh(data=data, tensor=tensor), "fsdp2")["at the peak"]
    measured = given["runs"][f"memory {mesh}"]["lowest"]  # all steps and processes are alike
    assert estimate == pytest.approx(measured, rel=0.08)
    if tensor == 1:
        assert memory.peak > 1.15 * measured, "one process would need no more, so that nothing is shared out"
