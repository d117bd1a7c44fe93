"""Tasks: LightningModules that are rebuilt from their checkpoints."""

from attnkit.task.base import Task
from attnkit.task.checkpoint import AtomicCheckpointIO, CheckpointError, export, load_checkpoint, load_exported
from attnkit.task.loss import Sums, cross_entropy

__all__ = ["AtomicCheckpointIO", "CheckpointError", "Sums", "Task", "cross_entropy", "export", "load_checkpoint", "load_exported"]
