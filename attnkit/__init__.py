"""attnkit: interchangeable attention components for PyTorch Lightning, composed by name."""

import os
from importlib import import_module
from time import time_ns
from typing import TYPE_CHECKING, Any

from attnkit import registry
from attnkit.registry import (
    ConfigurationError,
    attentions,
    backends,
    corpora,
    datasets,
    embeddings,
    feed_forwards,
    heads,
    inits,
    layer_kinds,
    mixers,
    multi_tokens,
    normalizers,
    norms,
    optimizers,
    positions,
    probes,
    residuals,
    rotary_scalings,
    schedules,
    stacks,
    tasks,
    tokenizers,
)

if TYPE_CHECKING:
    from attnkit.models.compose import compose
    from attnkit.recording import attention_maps, record_attention

# oneDNN and torch each cache the compiled primitives of the last 1,024 shapes: gigabytes if batches differ in length. We lower the limit
# to 32 (docs/explanation/memory.md) unless the user has set it. Both libraries read it when they create their first primitive.
for _variable in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(_variable, "32")
os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")  # pyarrow's own allocator cannot be bounded: see attnkit.parquet

__version__ = "0.1.0"

_BEGAN = time_ns()  # files that have changed since may not be the code that runs

__all__ = [
    "ConfigurationError", "attention_maps", "attentions", "backends", "compose", "corpora", "datasets", "embeddings", "feed_forwards",
    "heads", "inits", "layer_kinds", "mixers", "multi_tokens", "normalizers", "norms", "optimizers", "positions", "probes",
    "record_attention", "residuals", "rotary_scalings", "schedules", "stacks", "tasks", "tokenizers",
]  # fmt: skip

_LAZY = {  # these import torch
    "attention_maps": "attnkit.recording",
    "compose": "attnkit.models.compose",
    "record_attention": "attnkit.recording",
}


if not TYPE_CHECKING:  # type checkers would take every name to exist

    def __getattr__(name: str) -> Any:
        if name in _LAZY:
            return getattr(import_module(_LAZY[name]), name)
        hint = "; import it from attnkit.registry" if hasattr(registry, name) else ""
        raise AttributeError(f"module 'attnkit' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
