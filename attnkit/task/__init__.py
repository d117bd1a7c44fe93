"""Tasks: LightningModules that are rebuilt from their checkpoints."""

from typing import TYPE_CHECKING, Any

from attnkit.registry import tasks
from attnkit.task.base import Task
from attnkit.task.config import TaskConfig
from attnkit.task.loss import Sums, cross_entropy

__all__ = ["Sums", "Task", "TaskConfig", "cross_entropy"]

if TYPE_CHECKING:
    from attnkit.task.causal_lm import CausalLM as CausalLM
    from attnkit.task.classification import Classification as Classification
    from attnkit.task.masked_lm import MaskedLM as MaskedLM
    from attnkit.task.question_answering import QuestionAnswering as QuestionAnswering
    from attnkit.task.regression import Regression as Regression
    from attnkit.task.seq2seq import Seq2Seq as Seq2Seq
    from attnkit.task.tagging import Tagging as Tagging
    from attnkit.task.word_vectors import WordVectors as WordVectors
else:

    def __getattr__(name: str) -> Any:  # imported on first use
        return tasks.by_class_name(name)
