"""Runs the jobs of a payload in N processes, one after another; the first process writes the results.

A job is `(function, arguments)`, or `(function, arguments, number)` for a different number of processes.

The processes are forks of this one with the environment that torchrun would set. Each job has its own forks, since a process normally has
one mesh. If a gloo thread crashes, the job is repeated: with torch 2.13, such threads died of SIGSEGV in malloc twice in some hundred runs,
both with tensor parallelism, which runs collectives concurrently; none of our code runs there.

Usage: python -m tests.strategy.processes N PAYLOAD OUT
"""

import copy
import functools
import gc
import logging
import os
import signal
import socket
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import EMAWeightAveraging
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.plugins import DoublePrecision
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader

import attnkit
from attnkit import callback
from attnkit.callback import throughput
from attnkit.checkpoint import AtomicCheckpointIO
from attnkit.profile.measurement import measure
from attnkit.registry import FAMILIES, ConfigurationError
from attnkit.strategy import FSDP2, data_share, gathered, parallelize, prepare
from attnkit.train.inheritance import values_from_data
from tests.counted import forward_flops
from tests.strategy.breaking import Break

RANK, PROCESSES = 0, int(sys.argv[1])
CALLBACKS: dict[str, Any] = {"Break": Break, "EMAWeightAveraging": EMAWeightAveraging, **vars(callback)}
torch.compile = functools.partial(torch.compile, backend="aot_eager")  # the generated code is not under test


def fit(
    *,
    task: dict[str, Any],
    weights: dict[str, Any] | None,
    train: list[Any],
    strategy: str | dict[str, Any],
    val: list[Any] | None = None,
    save: str | None = None,
    load: str | None = None,
    predict: bool = False,
    trainer: dict[str, Any] | None = None,
    callbacks: dict[str, dict[str, Any]] | None = None,
    logs: str | None = None,
) -> dict[str, Any]:
    """Train on this process's part of the batches (`train[i]` is data-parallel rank i's); `logs` is a folder for `metrics.csv`."""
    module = attnkit.tasks.build(task)
    module.configure_model()
    module.double()  # before Lightning restores a checkpoint
    if weights:
        module.load_state_dict(weights)
    run = quiet(strategy, callbacks=callbacks, logs=logs, **(trainer or {}))
    loaders = [DataLoader(parts[RANK * len(parts) // PROCESSES], batch_size=None) if parts else None for parts in (train, val)]
    torch.manual_seed(1)
    try:
        run.fit(module, *loaders, ckpt_path=load, weights_only=True if load else None)
    except (ConfigurationError, callback.UnhealthyError) as error:
        return {"error": str(error), "everywhere": gather(str(error)) if dist.is_initialized() else []}
    if save is not None:
        run.save_checkpoint(save)
    sharded = getattr(run.strategy, "_save_distributed_checkpoint", False)
    result = {
        "weights": None if sharded else run.strategy.lightning_module_state_dict(),
        "logged": dict(run.callback_metrics),
        "steps": run.global_step,
    }
    if predict and loaders[1] is not None:
        result["predictions"] = gather([str(p) for batch in run.predict(module, loaders[1]) or [] for p in batch])
    return result


def fit_data(
    *,
    task: dict[str, Any],
    data: dict[str, Any],
    strategy: str,
    predict: bool = False,
    save_at: int | None = None,
    save: str | None = None,
    load: str | None = None,
    trainer: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Train on a data module: the loss of each step, the examples that each batch had in all processes, metrics, predictions and weights.

    After `save_at` steps a checkpoint is written to `save`.
    """
    torch.manual_seed(1)
    module = attnkit.datasets.build(data)
    built = attnkit.tasks.build(task | values_from_data(task["name"], data["name"], module))
    built.configure_model()
    built.double()
    losses: list[float] = []
    batches: list[list[int]] = []

    class Watch(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            batches.append(batch["example"].tolist())

        def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
            if pl_module._nll is not None:
                losses.append(float(pl_module._nll))
                if trainer.global_step == save_at:
                    trainer.save_checkpoint(save)

    run = quiet(strategy, **(trainer or {}))
    run.callbacks.append(Watch())  # type: ignore[attr-defined]
    run.fit(built, datamodule=module, ckpt_path=load, weights_only=True if load else None)
    shares = gather(batches) if dist.is_initialized() else [batches]
    shares = shares[:: run.world_size // data_share(run).num_replicas]  # processes of a tensor-parallel group have the same
    result = {
        "losses": losses,
        "batches": [[i for share in parts for i in share if i >= 0] for parts in zip(*shares, strict=True)],
        "fillers": sum(i < 0 for share in shares for batch in share for i in batch),
        "logged": {name: float(value) for name, value in run.callback_metrics.items()},
        "weights": run.strategy.lightning_module_state_dict(),
        "steps": run.global_step,
        "planned": (run.num_training_batches, run.estimated_stepping_batches),
    }
    if predict:
        own = [str(p) for batch in run.predict(built, datamodule=module) or [] for p in batch]
        result["predictions"] = [p for share in (gather(own) if dist.is_initialized() else [own]) for p in share]
    return result


def validate(*, task: dict[str, Any], weights: dict[str, Any], data: dict[str, Any], strategy: str) -> dict[str, Any]:
    """Validate on a data module, which shares out its batches: what is logged, and which sources each process had."""
    module = attnkit.tasks.build(task)
    module.configure_model()
    module.double()
    module.load_state_dict(weights)
    sources: list[str] = []

    class Collect(Callback):
        def on_validation_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0) -> None:
            sources.extend(batch["source"])

    run = quiet(strategy)
    run.callbacks.append(Collect())  # type: ignore[attr-defined]
    (logged,) = run.validate(module, datamodule=attnkit.datasets.build(data), verbose=False)
    return {"logged": logged, "sources": gather(sources)}


def quiet(
    strategy: str | dict[str, Any], *, callbacks: dict[str, dict[str, Any]] | None = None, logs: str | None = None, **settings: Any
) -> Trainer:
    """Return a silent trainer in float64."""
    defaults: dict[str, Any] = {
        "accelerator": "cpu", "devices": PROCESSES, "max_epochs": 1, "plugins": [DoublePrecision(), AtomicCheckpointIO()],
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False, "use_distributed_sampler": False,
        "num_sanity_val_steps": 0,
    }  # fmt: skip
    return Trainer(
        **(defaults | settings),
        strategy=FSDP2(**strategy) if isinstance(strategy, dict) else strategy,
        callbacks=[CALLBACKS[name](**arguments) for name, arguments in (callbacks or {}).items()],
        logger=logs is not None and CSVLogger(Path(logs).parent, Path(logs).name, version=""),
    )


def gather(what: Any) -> list[Any]:
    """Gather a value from all processes."""
    found: list[Any] = [None] * PROCESSES
    dist.all_gather_object(found, what)
    return found


def gradients(
    *, model: dict[str, Any], inputs: list[dict[str, Any]], tensor_parallel: int, policy: str = "none", compile: bool = False
) -> dict[str, Any]:
    """Compare a parallel model with the same one in this process alone: outputs, gradients and generated tokens.

    `inputs[i]` is the input of data-parallel rank i.
    """
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (PROCESSES // tensor_parallel, tensor_parallel), mesh_dim_names=("data_parallel", "tensor_parallel"))
    torch.manual_seed(RANK)  # overwritten by the first process's parameters
    one = attnkit.compose(**model).double()
    many = copy.deepcopy(one)
    prepare(many, activation_checkpointing=policy, compile=compile)
    parallelize(many, mesh)
    for p in one.parameters():
        dist.broadcast(p.data, 0)
    start = {n: p.clone() for n, p in full(many, lambda p: p).items()}
    here = inputs[RANK // tensor_parallel]
    expected = sum(one(**given).square().mean() for given in inputs) / len(inputs)
    expected.backward()
    output = many(**here)
    output.square().mean().backward()
    found = full(many, lambda p: p.grad)
    result: dict[str, Any] = {
        "start": max(float((start[n] - p).abs().max()) for n, p in one.named_parameters()),
        "output": float((output - one(**here)).abs().max()),
        "gradients": {n: float((found[n] - p.grad).abs().max()) for n, p in one.named_parameters()},
        "zero": [n for n, p in one.named_parameters() if not p.grad.any()],
        "sharded": all(isinstance(p, DTensor) for p in many.parameters()),
        "meshes": len({p.device_mesh for p in many.parameters() if isinstance(p, DTensor)}),
        "smaller": sum(p.to_local().numel() for p in many.parameters()) / sum(p.numel() for p in one.parameters()),
    }
    if hasattr(one, "generate") and tensor_parallel == 1:
        first = next(iter(here.values()))[:, : 2 + RANK]
        length = {"max_length": 3 + 4 * RANK}  # no process may wait for another
        with gathered(many):
            result["generated"] = torch.equal(many.generate(first, **length), one.generate(first, **length))
        many(**here).square().mean().backward()  # sharded again
        result["again"] = all(p.to_local().numel() <= p.numel() for p in many.parameters())
    return result


def full(model: torch.nn.Module, what: Callable[[Any], Any]) -> dict[str, Any]:
    """Return full tensors by parameter name."""
    return {n: what(p).detach().full_tensor() for n, p in model.named_parameters()}


def work(name: str, what: str, arguments: dict[str, Any], out: Path) -> None:
    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    try:
        result = {"fit": fit, "fit_data": fit_data, "validate": validate, "gradients": gradients, "measure": measure}[what](**arguments)
    except Exception:
        print(f"rank {RANK}, {name}:", flush=True)
        raise
    if dist.is_initialized():
        dist.barrier()  # the first process hosts the store, and must not end before the others
    if RANK == 0:
        before = torch.load(out, weights_only=True) if out.exists() else {}
        torch.save({**before, name: result}, out)


def fork(*job: Any) -> list[int]:
    """Run a job in N processes, and kill all if one fails; return their exit codes, -N for signal N."""
    global RANK
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(PROCESSES):
        child = os.fork()
        if child == 0:
            RANK = rank
            os.environ |= {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": str(PROCESSES),
                "LOCAL_WORLD_SIZE": str(PROCESSES), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "tests",
            }  # fmt: skip
            try:
                work(*job)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        children.append(child)
    codes: dict[int, int] = {}
    while len(codes) < PROCESSES:
        child, status = os.wait()
        codes[child] = os.waitstatus_to_exitcode(status)
        if status:  # the others would wait forever
            for other in set(children) - set(codes):
                os.kill(other, signal.SIGKILL)
    return [codes[child] for child in children]


if __name__ == "__main__":
    throughput.forward_flops = forward_flops
    for family in FAMILIES:  # import once: forks that import components take twice as long
        for component in family.built_in():
            family.get(component)
    gc.freeze()  # forks inherit this and the threshold: looking for garbage rarely saves a tenth of their time
    gc.set_threshold(20_000, 10, 10)
    for name, (what, arguments, *number) in torch.load(sys.argv[2], weights_only=True).items():
        PROCESSES = number[0] if number else int(sys.argv[1])
        if "Throughput" in arguments.get("callbacks", {}):
            forward_flops(attnkit.tasks.build(arguments["task"]))  # before processes are forked
        job = name, what, arguments, Path(sys.argv[3])
        codes = fork(*job)
        if -signal.SIGSEGV in codes:
            print(f"{name}: exit codes {codes}, repeating the job", flush=True)
            codes = fork(*job)
        if any(codes):
            sys.exit(f"{name}: exit codes {codes}")
