"""The base class of tasks whose model is built by `attnkit.compose`."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import nn
from typing_extensions import override

import attnkit
from attnkit.models import ClassifierModel, EncoderModel
from attnkit.position.base import Position
from attnkit.registry import ConfigurationError, EmbeddingSpec, InitSpec, StackSpec
from attnkit.task.config import TaskConfig
from attnkit.task.evaluation import EvaluatedTask
from attnkit.tokenizer import Tokenizer
from attnkit.wording import counted


@dataclass(frozen=True, kw_only=True)
class ComposedConfig(TaskConfig):
    """The options of tasks whose model is built by `attnkit.compose`, which receives those that it takes.

    Args:
        stack: The stack.
        embedding: The embedding.
        init: How the parameters of a new model are initialised.
    """

    stack: StackSpec
    embedding: EmbeddingSpec = "token"
    init: InitSpec = "default"


class ComposedTask(EvaluatedTask):
    """A task whose model `attnkit.compose` builds from the options and `sizes`.

    Attributes:
        num_segments: Number of segments of the tokens in its batches.
    """

    num_segments: ClassVar[int] = 1
    config: ComposedConfig
    tokenizer: Tokenizer | None

    @classmethod
    def unread(cls, arguments: Mapping[str, Any]) -> dict[str, str]:
        """Return the arguments that are set but have no effect, and why; see `ResolvedSpec.unread`."""
        if arguments.get("embedding", {}).get("num_segments", 0) <= cls.num_segments:
            return {}
        others = "; question_answering, which can start from its checkpoint, gives passages the second" if cls.num_segments == 1 else ""
        return {"embedding.num_segments": f"the tokens of this task have only {counted(cls.num_segments, 'segment')}{others}"}

    @property
    def sizes(self) -> dict[str, Any]:
        """Arguments of `attnkit.compose` that are not options; by default those of a model that reads the tokens of `tokenizer`."""
        return {"vocab_size": None if self.tokenizer is None else len(self.tokenizer)}

    @override
    def build_model(self) -> nn.Module:
        known = inspect.signature(attnkit.compose).parameters
        options = {name: value for name, value in vars(self.config).items() if name in known}
        model: nn.Module = attnkit.compose(**(self.sizes | options | {"stack": attnkit.stacks.resolve(self.config.stack)}))
        return model

    @override
    def on_train_start(self) -> None:
        self._require_positions()
        super().on_train_start()

    def _require_positions(self) -> None:
        """For models that read whole texts, raise before the first step if a text is longer than the model's positions."""
        if not isinstance(self.model, EncoderModel | ClassifierModel):
            return
        limits = [part.max_length for part in self.model.modules() if isinstance(part, Position) and part.max_length is not None]
        lengths = getattr(getattr(self.trainer.train_dataloader, "dataset", None), "lengths", None)
        if limits and isinstance(lengths, tuple) and (longest := int(lengths[0].max())) > (most := min(limits)):
            raise ConfigurationError(
                f"the longest text has {longest} tokens, but the model's positions end at {most}: set data.max_length to {most}"
            )
