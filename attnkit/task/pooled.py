"""The base class of tasks with one answer for a whole text or image."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor
from typing_extensions import override

from attnkit.models.base import generating
from attnkit.registry import ConfigurationError
from attnkit.task.labelling import LabellingConfig, LabellingTask
from attnkit.task.texts import batches
from attnkit.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class PooledConfig(LabellingConfig):
    """The options of tasks with one answer for a whole text or image.

    Args:
        image_shape: Channels, height and width of images, or None for texts (default: the data module's).
        pooling: Which vector represents the whole: `class_token`, the first one (bos is BERT's [CLS]); `mean` over all; `last`.
        pooler: Whether BERT's dense layer with tanh comes before the output map.
    """

    image_shape: list[int] | None = None
    pooling: Literal["class_token", "mean", "last"] = "mean"
    pooler: bool = False


class PooledTask(LabellingTask):
    """A task with one answer for a whole text or image, which a subclass defines in `answer`.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained.
    """

    config: PooledConfig

    @override
    def trained_tokenizer(self) -> Tokenizer | None:
        return None if self.config.tokenizer is None else super().trained_tokenizer()

    @abstractmethod
    def answer(self, text: str, outputs: Tensor) -> Any:
        """Return the prediction for an input of that name, from its row of the outputs, on the CPU."""

    @override
    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> list[Any]:
        return [self.answer(text, row) for text, row in zip(batch["text"], outputs.float().cpu(), strict=False)]

    @override
    def truths(self, batch: Mapping[str, Any]) -> list[Any]:
        truths: list[Any] = batch["label"].tolist()
        return truths

    def predict_texts(self, texts: Sequence[str]) -> list[Any]:
        """Return the prediction for each text; it does not depend on how texts are batched.

        Raises:
            TypeError: `texts` is a single string.
            ConfigurationError: The model reads images.
        """
        self.configure_model()
        if self.tokenizer is None:
            raise ConfigurationError("this model reads images: call the task with a batch of them, or use `attnkit predict`")
        found: dict[int, Any] = {}
        for rows, tokens in batches(self, self.tokenizer, texts, self.tokenizer.between_ends):
            with generating(self):
                found.update(zip(rows, self.answers(self(tokens), {"text": [texts[i] for i in rows]}), strict=True))
        return [found[i] for i in range(len(texts))]
