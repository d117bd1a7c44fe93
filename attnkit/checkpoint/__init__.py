"""Checkpoints: plain data and tensors, from which a task is rebuilt.

An attnkit checkpoint is a Lightning checkpoint with the key `attnkit`: `format` (of this layout), `version` (of attnkit), `task` (its
registry name) and `packages` (who provides the components that are not attnkit's own). The task's arguments are in `hyper_parameters`.
An exported file is a safetensors file with these two in its metadata. Tasks and their training are not in this package: it builds a task
through the registry.
"""

from attnkit.checkpoint.errors import CheckpointError, MissingComponentError
from attnkit.checkpoint.exporting import describe_exported, export, export_task, is_exported, load_exported, load_exported_into, load_start
from attnkit.checkpoint.loading import load_checkpoint, require_undamaged
from attnkit.checkpoint.rebuilding import rebuild, require_rebuildable
from attnkit.checkpoint.saving import AtomicCheckpointIO

__all__ = [
    "AtomicCheckpointIO", "CheckpointError", "MissingComponentError", "describe_exported", "export", "export_task", "is_exported",
    "load_checkpoint", "load_exported", "load_exported_into", "load_start", "rebuild", "require_rebuildable", "require_undamaged",
]  # fmt: skip
