"""Tasks: LightningModules that are rebuilt from their checkpoints."""

from typing import Any

from attnkit.registry import tasks
from attnkit.task.base import Task
from attnkit.task.config import TaskConfig
from attnkit.task.loss import Sums, cross_entropy

__all__ = ["Sums", "Task", "TaskConfig", "cross_entropy"]


def __getattr__(name: str) -> Any:  # Seq2Seq and the other tasks are imported on first use
    return tasks.by_class_name(name)
