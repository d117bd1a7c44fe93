"""Classification: predicting the class of a text or an image."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from typing_extensions import override

from attnkit.registry import keywords_of, tasks
from attnkit.task.classes import ClassConfig, ClassTask
from attnkit.task.labelling import PooledConfig, PooledTask, shortened
from attnkit.task.texts import marked, one_line


class Prediction(NamedTuple):
    """A text (or the name of an image), its class, and the probability of the class. As a string: all three, separated by tabs."""

    text: str
    label: str
    probability: float

    def __str__(self) -> str:
        return f"{one_line(self.text)}\t{one_line(self.label)}\t{self.probability:.4f}"


@dataclass(frozen=True, kw_only=True)
class ClassificationConfig(ClassConfig, PooledConfig):
    """The options of `classification`."""


@tasks.register("classification")
class Classification(ClassTask, PooledTask):
    """One class for a whole text or image: sentiment, topic, language, digits.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B] (int64), and for evaluation
    and prediction `text`, the texts or the names of the images.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the negative
    log-likelihood per example in nats, without label smoothing. Metrics are from 0 to 1.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, the tokenizer is not trained, or there are fewer than two classes.

    Example:
        >>> import attnkit
        >>> task = Classification(
        ...     stack={"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}, classes=["bad", "good"],
        ...     tokenizer=attnkit.tokenizers.build("word").train(["not so good"]).spec)
        >>> [prediction.label in task.classes for prediction in task.predict_texts(["good", "not good"])]
        [True, True]
        >>> print(Prediction("so good", "good", 0.98765))
        so good	good	0.9877
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec", "image_shape": "image_shape", "classes": "classes"}
    config: ClassificationConfig

    @keywords_of(ClassificationConfig)
    def __init__(self, config: ClassificationConfig) -> None:
        super().__init__(config)

    @override
    def answer(self, text: str, outputs: Tensor) -> Prediction:
        probability, best = outputs.softmax(-1).max(-1)
        return Prediction(text, self.classes[int(best)], float(probability))

    @override
    def sample_line(self, prediction: Any, label: Any) -> str:
        line, truth = f"{shortened(prediction.text)} -> {prediction.label} {prediction.probability:.2f}", self.classes[label]
        return marked(line, right=prediction.label == truth, truth=truth)
