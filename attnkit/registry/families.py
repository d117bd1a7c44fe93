"""The registries of attnkit, and the annotations of the slots for their components."""

import importlib
import importlib.util
import re
from functools import cached_property
from pathlib import Path
from typing import Annotated

from attnkit.registry.base import Registry, Spec


class TorchOptimizers(Registry):
    """Ours, and every optimizer of `torch.optim` by its class name in lower case: `adamw`, `sgd`, `adafactor`, ..."""

    def built_in(self) -> set[str]:
        """Return our names, and those in `torch.optim.__all__`, read without importing torch."""
        return self._built_in | set(self._class_names)

    def _import(self, name: str) -> None:
        if name in self._built_in:
            super()._import(name)
        else:
            self._classes[name] = getattr(importlib.import_module("torch.optim"), self._class_names[name])

    @cached_property
    def _class_names(self) -> dict[str, str]:
        torch = importlib.util.find_spec("torch")
        assert torch is not None
        assert torch.origin is not None
        source = Path(torch.origin).with_name("optim").joinpath("__init__.py").read_text(encoding="utf-8")
        exported = re.search(r"__all__ = \[(.*?)\]", source, re.S)
        assert exported is not None
        classes = re.findall(r'"([A-Z]\w*)"', exported[1])
        return {c.lower(): c for c in classes if c != "Optimizer"}


attentions = Registry("attentions", family="attention", package="attnkit.attention", given=("head_dim", "num_heads", "num_kv_heads"))
positions = Registry(
    "positions", family="position", package="attnkit.position", given=("d_model", "head_dim", "num_heads", "bidirectional")
)
norms = Registry("norms", family="norm", package="attnkit.norm", given=("d_model",))
feed_forwards = Registry("feed_forwards", family="feed_forward", package="attnkit.feed_forward", given=("d_model",))
residuals = Registry("residuals", family="residual", package="attnkit.residual", given=("make_norm", "dropout"))
embeddings = Registry("embeddings", family="embedding", package="attnkit.embedding", given=("vocab_size", "d_model", "image_shape"))
tokenizers = Registry("tokenizers", family="tokenizer", package="attnkit.tokenizer")
stacks = Registry("stacks", family="stack", package="attnkit.stack")
optimizers = TorchOptimizers("optimizers", family="optimizer", package="attnkit.optimizer", given=("params",))
schedules = Registry("schedules", family="schedule", package="attnkit.schedule", given=("total_steps",))
tasks = Registry("tasks", family="task", package="attnkit.task")
datasets = Registry("datasets", family="dataset", package="attnkit.data")

FAMILIES: tuple[Registry, ...] = (
    attentions, positions, norms, feed_forwards, residuals, embeddings, tokenizers, stacks, optimizers, schedules, tasks, datasets,
)  # fmt: skip

# What a component slot is annotated with: plain data for mypy, and the registry for whoever reads the signature.
AttentionSpec = Annotated[Spec, attentions]
PositionSpec = Annotated[Spec, positions]
NormSpec = Annotated[Spec, norms]
FeedForwardSpec = Annotated[Spec, feed_forwards]
ResidualSpec = Annotated[Spec, residuals]
EmbeddingSpec = Annotated[Spec, embeddings]
TokenizerSpec = Annotated[Spec, tokenizers]
StackSpec = Annotated[Spec, stacks]
OptimizerSpec = Annotated[Spec, optimizers]
ScheduleSpec = Annotated[Spec, schedules]
