"""The base class of tasks whose model is one of `attnkit.compose`."""

import inspect
from dataclasses import dataclass
from typing import Any

from torch import nn
from typing_extensions import override

import attnkit
from attnkit.registry import EmbeddingSpec, InitSpec, StackSpec
from attnkit.task.config import TaskConfig
from attnkit.task.evaluation import EvaluatedTask
from attnkit.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ComposedConfig(TaskConfig):
    """The options of tasks whose model is one of `attnkit.compose`: those that `compose` takes are passed to it.

    Args:
        stack: The stack.
        embedding: The embedding.
        init: How the parameters of a new model are drawn.
    """

    stack: StackSpec
    embedding: EmbeddingSpec = "token"
    init: InitSpec = "default"


class ComposedTask(EvaluatedTask):
    """A task whose model is one of `attnkit.compose`, from its options and its `sizes`."""

    config: ComposedConfig
    tokenizer: Tokenizer | None

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of `attnkit.compose` that are not options: by default, for a model that reads the tokens of `tokenizer`."""
        return {"vocab_size": None if self.tokenizer is None else len(self.tokenizer)}

    @override
    def build_model(self) -> nn.Module:
        known = inspect.signature(attnkit.compose).parameters
        options = {name: value for name, value in vars(self.config).items() if name in known}
        model: nn.Module = attnkit.compose(**(self.sizes | options | {"stack": attnkit.stacks.resolve(self.config.stack)}))
        return model
