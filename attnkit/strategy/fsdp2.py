"""The strategy `fsdp2`: parameters, gradients and optimizer states are sharded over processes; optionally, layers are split too."""

from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.strategies import ModelParallelStrategy, StrategyRegistry
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.optim import Optimizer
from typing_extensions import override

from attnkit.checkpoint.archive import read_archive
from attnkit.checkpoint.description import ARGUMENTS
from attnkit.checkpoint.errors import ArchiveError
from attnkit.checkpoint.outdated import rename_weights, reorder_optimizer_state
from attnkit.checkpoint.shards import is_sharded_checkpoint, load_into, name_parameters, number_parameters, read_rest, write_sharded
from attnkit.files import remove
from attnkit.lightning_internals import set_data_parallel_size
from attnkit.registry import ConfigurationError, check_positive
from attnkit.strategy.preparation import gather, release

PRECISIONS = ("32-true", "bf16-mixed", "bf16-true", "16-true", "64-true")  # a loss scaler would skip steps on only some ranks


class FSDP2(ModelParallelStrategy):
    """Fully sharded data parallelism, alone or with tensor parallelism, on any number of nodes.

    In a recipe: `strategy: fsdp2`, or with tensor parallelism over 2, 4 or 8 processes `fsdp2_tp2`, `fsdp2_tp4`, `fsdp2_tp8`. Processes of
    a tensor-parallel group are neighbours and get the same batches. With a single group, nothing is sharded.

    In evaluation every process gathers all parameters once and then works alone, so texts may have any length.

    Args:
        tensor_parallel_size: The number of processes over which each layer is split. It divides the numbers of heads and of hidden units.
        save_distributed_checkpoint: Whether a checkpoint is a folder with a file from each process, for models that exceed the memory of
            one (`attnkit export` makes it one file), or a single file like that of every other strategy.
        process_group_backend: The backend of torch.distributed (default: `nccl` on GPUs, `gloo` on CPUs).
        timeout: How long a process waits for the others.

    Raises:
        ConfigurationError: `tensor_parallel_size` is not positive. At the start of a run: it does not divide the number of processes,
            FSDP2 lacks the precision, the module has no `configure_model`, or a callback averages weights.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(strategy=FSDP2(tensor_parallel_size=2), accelerator="cpu", devices=4, logger=False)
    """

    def __init__(
        self,
        *,
        tensor_parallel_size: int = 1,
        save_distributed_checkpoint: bool = False,
        process_group_backend: str | None = None,
        timeout: timedelta | None = timedelta(minutes=30),
    ) -> None:
        check_positive(tensor_parallel_size=tensor_parallel_size)
        super().__init__(
            tensor_parallel_size=tensor_parallel_size,
            save_distributed_checkpoint=save_distributed_checkpoint,
            process_group_backend=process_group_backend,
            timeout=timeout,
        )
        self.tensor_parallel_size = tensor_parallel_size
        self.is_sharded = save_distributed_checkpoint

    @override
    def setup_environment(self) -> None:
        processes = self.num_nodes * self.num_processes
        if processes % self.tensor_parallel_size:
            raise ConfigurationError(
                f"tensor_parallel_size {self.tensor_parallel_size} does not divide the number of processes: "
                f"{self.num_nodes} nodes x {self.num_processes} devices"
            )
        if (precision := self.precision_plugin.precision) not in PRECISIONS:
            raise ConfigurationError(f"strategy fsdp2 does not support precision {precision}; use one of {', '.join(PRECISIONS)}")
        if self.lightning_module is not None and not is_overridden("configure_model", self.lightning_module):
            raise ConfigurationError(
                f"strategy fsdp2 needs a module that shards itself: override `configure_model` in {type(self.lightning_module).__name__}, "
                f"and call torch's `fully_shard` on its layers with `self.device_mesh['data_parallel']`; or use strategy ddp"
            )
        if self.lightning_module is not None and (averaging := _averaging(self.lightning_module.trainer)) is not None:
            raise ConfigurationError(f"{averaging} cannot average sharded weights; remove it, or use strategy ddp")
        set_data_parallel_size(self, processes // self.tensor_parallel_size)
        super().setup_environment()
        # each process keeps a part of the model it builds, and split layers need the same dropout on all processes
        torch.set_rng_state(self.broadcast(torch.get_rng_state()))
        if self.root_device.type == "cuda":
            torch.cuda.set_rng_state(self.broadcast(torch.cuda.get_rng_state(self.root_device)), self.root_device)

    def _gather(self) -> None:
        assert self.model is not None
        gather(self.model)

    def _release(self) -> None:
        assert self.model is not None
        release(self.model)

    on_validation_start = on_test_start = on_predict_start = _gather
    on_validation_end = on_test_end = on_predict_end = _release

    @override
    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """Return the full state as a single process would save it (on the first process), or the shards."""
        inner = optimizer.optimizer if isinstance(optimizer, LightningOptimizer) else optimizer
        assert self.model is not None
        options = StateDictOptions(full_state_dict=not self.is_sharded, cpu_offload=True)
        state = get_optimizer_state_dict(self.model, inner, options=options)
        return state if self.is_sharded or not state else number_parameters(state)

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], filepath: str | Path, storage_options: Any | None = None) -> None:
        path = Path(self.broadcast(filepath))
        if not self.is_sharded:
            if self.is_global_zero and is_sharded_checkpoint(path):
                remove(path)
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        draft, old = path.with_name(f".{path.name}.tmp"), path.with_name(f".{path.name}.old")
        if self.is_global_zero:
            remove(draft)
        self.barrier()
        state = {"state_dict": checkpoint.pop("state_dict")}
        state |= {f"optimizer_{i}": optimizer for i, optimizer in enumerate(checkpoint.pop("optimizer_states", []))}
        write_sharded(state, checkpoint, draft)
        self.barrier()
        if self.is_global_zero:  # rename the folder only once it is complete
            remove(old)
            with suppress(FileNotFoundError):
                path.rename(old)
            draft.rename(path)
            remove(old)
        self.barrier()

    @override
    def load_checkpoint(self, checkpoint_path: str | Path, weights_only: bool | None = None) -> dict[str, Any]:
        path = Path(self.broadcast(checkpoint_path))
        assert self.model is not None
        assert self.lightning_module is not None
        if path.is_dir():
            return self._load_sharded(path)
        try:
            checkpoint: dict[str, Any] = read_archive(path, mmap=True)
        except ArchiveError as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
        saved = list(checkpoint["state_dict"])
        rename_weights(checkpoint["state_dict"], checkpoint.get(ARGUMENTS))
        options = StateDictOptions(full_state_dict=True, strict=self.lightning_module.strict_loading)
        set_model_state_dict(self.model, checkpoint["state_dict"], options=options)
        for optimizer, state in zip(self.optimizers, checkpoint.get("optimizer_states", ()), strict=False):
            groups = self._parameter_names(optimizer)
            reorder_optimizer_state(state, saved, groups)
            named = name_parameters(state, list(chain(*groups)))
            set_optimizer_state_dict(self.model, optimizer, named, options=options)
        return checkpoint

    def _load_sharded(self, path: Path) -> dict[str, Any]:
        """Load this process's part, as plain data only, unlike Lightning's method."""
        assert self.model is not None
        assert self.lightning_module is not None
        weights = {"state_dict": get_model_state_dict(self.model)}
        load_into(weights, path)
        self.model.load_state_dict(weights["state_dict"], strict=self.lightning_module.strict_loading)
        for i, optimizer in enumerate(self.optimizers):
            state = {f"optimizer_{i}": get_optimizer_state_dict(self.model, optimizer)}
            load_into(state, path)
            options = StateDictOptions(cpu_offload=True)
            set_optimizer_state_dict(self.model, optimizer, state[f"optimizer_{i}"], options=options)
        return read_rest(path)

    def _parameter_names(self, optimizer: Optimizer) -> list[list[str]]:
        """Return the parameter names of each optimizer group."""
        assert self.model is not None
        names: Mapping[torch.Tensor, str] = {parameter: name for name, parameter in self.model.named_parameters()}
        return [[names[parameter] for parameter in group["params"]] for group in optimizer.param_groups]


def _averaging(trainer: Trainer) -> str | None:
    """Return the name of a weight-averaging callback, if any: it copies the model, but no process has all of it."""
    return next((type(c).__name__ for c in trainer.callbacks if isinstance(c, WeightAveraging)), None)  # type: ignore[attr-defined]


for _size in (1, 2, 4, 8):
    _name, _also = ("fsdp2", "") if _size == 1 else (f"fsdp2_tp{_size}", f" x tensor parallelism over {_size} processes")
    if _name not in StrategyRegistry:
        StrategyRegistry.register(_name, FSDP2, description=f"FSDP2{_also}", tensor_parallel_size=_size)
