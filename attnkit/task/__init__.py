"""Tasks: LightningModules that are rebuilt from their checkpoints."""

from attnkit.task.base import Task
from attnkit.task.loss import Sums, cross_entropy

__all__ = ["Sums", "Task", "cross_entropy"]
