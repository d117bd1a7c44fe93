"""Tagging: predicting a class for each word."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from torchmetrics import Metric
from typing_extensions import override

from attnkit.registry import ConfigurationError, keywords_of, tasks
from attnkit.task.classification import METRICS
from attnkit.task.config import require_smoothing
from attnkit.task.loss import Sums, cross_entropy
from attnkit.task.pooled import shortened
from attnkit.task.wordwise import WordConfig, WordTask


class Tags(NamedTuple):
    """Words and their tags. As a string: both, separated by a tab."""

    text: str
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.text}\t{' '.join(self.tags)}"


@dataclass(frozen=True, kw_only=True)
class TaggingConfig(WordConfig):
    """The options of `tagging`.

    Args:
        classes: The names of the tags, by their ids (default: the data module's).
        label_smoothing: Probability mass that is spread over all tags, at least 0 and below 1.
        metrics: `accuracy`, `f1` (the mean of the tags' F1: macro), `weighted_f1` (their mean by frequency), `precision`, `recall` (both
            macro), all over words. The first one selects the best checkpoint.
    """

    classes: list[str] | None = None
    label_smoothing: float = 0.0
    metrics: Sequence[str] = ("accuracy", "f1")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_smoothing(self.label_smoothing)
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ConfigurationError(f"classes must be at least two, and distinct, but are {list(self.classes)}")


@tasks.register("tagging")
class Tagging(WordTask):
    """A class for each word: parts of speech, names, punctuation that was left out.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding), `words` [B, T], the number of the word that begins at a token (from
    1; 0 elsewhere), `label` [B, T], the class of a word at its first token (-1 elsewhere), and for evaluation and prediction `text`, the
    words of each row with spaces between them.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the negative
    log-likelihood per word in nats. Metrics are from 0 to 1.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained, or there are fewer than two tags.

    Example:
        >>> import torch
        >>> import attnkit
        >>> task = Tagging(
        ...     stack={"name": "encoder", "d_model": 16, "num_layers": 1, "num_heads": 2}, classes=["N", "V"],
        ...     tokenizer=attnkit.tokenizers.build("word").train(["cats sleep"]).spec)
        >>> task.configure_model()
        >>> batch = {"tokens": torch.tensor([[1, 4, 5, 2]]), "words": torch.tensor([[0, 1, 2, 0]]), "text": ["cats sleep"]}
        >>> len(task.predict_step(batch, 0)[0].tags)
        2
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec", "classes": "classes"}
    metric_names: ClassVar = tuple(METRICS)

    config: TaggingConfig

    @keywords_of(TaggingConfig)
    def __init__(self, config: TaggingConfig) -> None:
        super().__init__(config)

    @property
    def classes(self) -> list[str]:
        """The names of the tags, by their ids."""
        if self.config.classes is None:
            raise ConfigurationError("there are no classes: pass their names")
        return self.config.classes

    @property
    @override
    def outputs(self) -> int:
        return len(self.classes)

    @override
    def sums(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sums:
        given = batch["label"] >= 0
        smoothing = self.config.label_smoothing if self.training else 0.0
        return cross_entropy(outputs[given], batch["label"][given], label_smoothing=smoothing, pad_id=None)

    @override
    def metric(self, name: str) -> Metric:
        kind, average = METRICS[name]
        return kind(num_classes=self.outputs, average=average)

    @override
    def updates(self, outputs: Tensor, batch: Mapping[str, Any]) -> Mapping[str, Sequence[Any] | None]:
        given = batch["label"] >= 0
        answers = (outputs[given], batch["label"][given])
        return dict.fromkeys(self.config.metrics, answers if given.any() else None)

    @override
    def answers(self, outputs: Tensor, batch: Mapping[str, Any]) -> list[Tags]:
        return [
            Tags(text, tuple(self.classes[i] for i in row.argmax(-1)[words > 0].tolist()))
            for text, row, words in zip(batch["text"], outputs, batch["words"], strict=False)
        ]

    @override
    def truths(self, batch: Mapping[str, Any]) -> list[list[str]]:
        return [[self.classes[i] for i in row[row >= 0].tolist()] for row in batch["label"][: len(batch["text"])]]

    @override
    def sample_line(self, prediction: Any, truth: Any) -> str:
        rows = zip(prediction.text.split(), prediction.tags, truth, strict=True)
        wrong = [f"{word}/{tag} ({true})" for word, tag, true in rows if tag != true]
        return f"{'wrong' if wrong else 'ok':<5}  {shortened(prediction.text)}" + (f" -> {', '.join(wrong[:4])}" if wrong else "")
