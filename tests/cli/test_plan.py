"""`attnkit plan`: memory, communication and data of each process."""

import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from attnkit.profile.memory import step_memory
from attnkit.profile.partition import Mesh, communication, split
from attnkit.registry import tasks
from attnkit.strategy.preparation import parallelize
from tests.task.conftest import TOKENIZER


def numbers(text: str) -> dict[str, float]:
    return {name.strip(): float(value.replace(",", "")) for name, value in re.findall(r"^  (\S.*?)  +([\d,.]+)", text, re.MULTILINE)}


def planned(attnkit: Any, tiny: str, *flags: object) -> dict[str, float]:
    size = ("--model.stack.d_model", 64, "--model.stack.attention", "scaled_dot_product", "--model.optimizer", "adamw")
    outcome = attnkit("plan", tiny, *size, *flags)
    assert outcome.status == 0, outcome.err
    return numbers(outcome.out)


def test_strategies_shard_memory_as_promised(attnkit: Any, tiny: str) -> None:
    alone = planned(attnkit, tiny)
    ddp = planned(attnkit, tiny, "--mesh", 4)
    fsdp2 = planned(attnkit, tiny, "--mesh", "4x1", "--strategy", "fsdp2")
    assert alone["optimizer"] == ddp["optimizer"] == pytest.approx(4 * fsdp2["optimizer"], abs=0.3)
    assert ddp["gradient buckets (ddp)"] == alone["gradients"] == alone["parameters"]
    assert ddp["gradients: all-reduce"] == pytest.approx(1.5 * alone["gradients"], abs=0.2)  # 2 * 3 / 4
    assert fsdp2["gradients: reduce-scatter"] == pytest.approx(0.75 * alone["gradients"], abs=0.2)
    assert "total" not in alone
    assert ddp["tokens per step, at most"] == alone["tokens per step, at most"]  # the processes share a batch
    split = planned(attnkit, tiny, "--mesh", "1x2")
    assert split["parameters"] < alone["parameters"]
    assert split["activations: all-reduce (tensor parallel)"] >= 0


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--mesh", "2x1", "--gpus", "2"], "not allowed with argument"),
        (["--gpus", "0"], "must be a whole number of at least 1, but is '0'"),
        (["--efficiency", "40"], "above 0 and at most 1, but is '40'"),
        (["--memory", "80"], "needs a unit, as in 80GB"),
        (["--bandwidth", "nan"], "must be a positive number"),
        (["--machine", "nowhere.json"], "nowhere.json"),
        (["--trainer.devices", "3", "--trainer.strategy", "fsdp2_tp2"], "which do not divide 3"),
        (["--mesh", "8by1"], "as in 8x1, but is '8by1'"),
        (["--mesh", "1x2", "--strategy", "ddp"], "ddp does not split layers"),
        (["--mesh", "1x3"], "num_heads 2 cannot be split over 3 processes"),
        (["--mesh", "1x2", "--model.stack", "recurrent_encoder_decoder"], "this stack has none; use a mesh such as 8x1"),
        (["--mesh", "9999x1", "--measure"], "--measure starts all 9999 processes of the mesh on this machine"),
        (["--precision", "8-mixed"], "no estimate for the precision '8-mixed'"),
    ],
)
def test_an_impossible_plan_is_reported(attnkit: Any, tiny: str, flags: list[str], message: str) -> None:
    outcome = attnkit("plan", tiny, *flags)
    assert outcome.status == (1 if "nowhere.json" in flags else 2)  # a file that is not there
    assert message in outcome.err


def test_plan_accepts_a_recipe_like_every_other_command(attnkit: Any, tiny: str) -> None:
    plain = attnkit("plan", tiny)
    assert "to estimate times, add --peak" in plain.out
    assert attnkit("plan", "--config", tiny).out == plain.out
    flags = ("--trainer.devices", 4, "--trainer.strategy=fsdp2_tp2", "--trainer.precision", "bf16-mixed", "--trainer.max_steps=5")
    merged = attnkit("plan", "--config", tiny, "--config", tiny, "--trainer.accumulate_grad_batches", 3, *flags)
    assert numbers(merged.out)["tokens per step, at most"] == 3 * numbers(plain.out)["tokens per step, at most"]
    assert "2 x 2 processes, fsdp2, bf16-mixed" in merged.out
    assert "takes no --ckpt_path" in attnkit("plan", tiny, "--ckpt_path", "x").err


def test_remedies_for_a_step_that_does_not_fit_are_planned(attnkit: Any, tiny: str) -> None:
    narrow = attnkit("plan", tiny, "--gpus", 2, "--memory", "1KB", "--peak", 100)
    assert narrow.status == 1
    assert re.search(r"^fits: NO", narrow.out, re.MULTILINE)
    assert re.search(r"no +[\d.]+   --model.activation_checkpointing layer", narrow.out)
    assert "none of them fit" in narrow.out


def test_time_is_flops_over_the_stated_share_of_the_peak(attnkit: Any, tiny: str, tmp_path: Path) -> None:
    flags = ("--efficiency", 0.5, "--gpus", 4, "--bandwidth", 0.01)
    outcome = attnkit("plan", tiny, "--peak", 0.000_01, *flags)
    found = numbers(outcome.out)
    assert found["matrix products, ms"] == pytest.approx(
        1e15 * found["TFLOP with padding and recomputation"] / 5e9 / 1000, rel=0.2, abs=100
    )
    assert found["network, ms"] == pytest.approx(1000 * found["total"] * 2**20 / 1e7, abs=6)
    assert re.search("bound by +matrix products", outcome.out)
    (tmp_path / "machine.json").write_text(json.dumps({"tflops": {"fp32": 0.000_01}, "memory": 1e9}), encoding="utf-8")
    from_file = attnkit("plan", tiny, "--machine", "machine.json", *flags)
    assert numbers(from_file.out)["matrix products, ms"] == found["matrix products, ms"]
    assert from_file.status == 0
    assert re.search(r"^fits: yes, 0\.00 GB of 1\.00 GB; 0\.90 GB are free", from_file.out, re.MULTILINE)
    assert "changes that save memory" not in from_file.out


class Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Adds up what a ring would send for the collectives of one process, which thinks that it has others beside it."""

    def __init__(self, mesh: Mesh) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        data, tensor = (mesh.data - 1) / mesh.data, (mesh.tensor - 1) / mesh.tensor
        self.factors = {"_allgather_base_": data, "_reduce_scatter_base_": data, "all_reduce": 2 * tensor}
        self.sent = dict.fromkeys(self.factors, 0.0)

    def __torch_dispatch__(self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__  # type: ignore[attr-defined]
        if name in self.factors:
            whole = max(x.numel() * x.element_size() for x in tree_leaves((args, result)) if isinstance(x, Tensor))
            self.sent[name] += self.factors[name] * whole
        return result


@pytest.fixture
def alone() -> Iterator[None]:
    """One process that takes itself for the first of eight: collectives do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("mesh", "precision", "feed_forward", "policy"),
    [
        ("8x1", "bf16-mixed", "mlp", "none"),
        ("4x2", "bf16-mixed", "mlp", "layer"),
        ("2x4", "bf16-mixed", "glu", "none"),
        ("2x4", "32-true", "mlp", "none"),
    ],
)
def test_planned_communication_matches_the_collective_calls(seed: int, mesh: str, precision: str, feed_forward: str, policy: str) -> None:
    rng, shape = random.Random(seed), Mesh.read(mesh)
    stack = {"name": "decoder", "d_model": 32, "num_layers": 3, "num_heads": 4, "feed_forward": {"name": feed_forward, "ffn_dim": 64}}
    spec = {"name": "causal_lm", "stack": stack, "tokenizer": TOKENIZER.spec, "activation_checkpointing": policy}
    batch = {"tokens": torch.randint(5, 10, (rng.randint(2, 5), rng.randint(9, 33)))}
    task: Any = tasks.build(spec)
    task.configure_model()
    parallelize(task.model, init_device_mesh("cpu", (shape.data, shape.tensor), mesh_dim_names=("data_parallel", "tensor_parallel")))
    with Collectives(shape) as seen:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16-mixed"):
            loss = task.objective(batch).loss
        loss.backward()
    planned = communication(step_memory(tasks.build(split(spec, shape.tensor)), batch, precision=precision), shape, "fsdp2")
    together, *parts = sum(seen.sent.values()), *(sent for sent in seen.sent.values() if sent)
    assert sum(planned.parts.values()) == pytest.approx(together, rel=0.01)  # FSDP2 fills up rows to a multiple of the processes
    assert list(planned.parts.values()) == pytest.approx(parts, rel=0.01)
