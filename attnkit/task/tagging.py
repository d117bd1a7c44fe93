"""Tagging: predicting a class for each word."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

from torch import Tensor
from typing_extensions import override

from attnkit.registry import keywords_of, tasks
from attnkit.task.classes import ClassConfig, ClassTask
from attnkit.task.labelling import shortened


class Tags(NamedTuple):
    """Words and their tags. As a string: both, separated by a tab."""

    text: str
    tags: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.text}\t{' '.join(self.tags)}"


@tasks.register("tagging")
class Tagging(ClassTask):
    """Predicts a class for each word: parts of speech, names, missing punctuation.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding), `words` [B, T], the number of the word that begins at a token (from
    1; 0 elsewhere), `label` [B, T], the class of a word at its first token (-1 elsewhere), and for evaluation and prediction `text`, the
    words of each row with spaces between them.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the negative
    log-likelihood per word in nats. Metrics are from 0 to 1.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, the tokenizer is not trained, or there are fewer than two tags.

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

    @keywords_of(ClassConfig)
    def __init__(self, config: ClassConfig) -> None:
        super().__init__(config)

    @override
    def scored(self, outputs: Tensor, batch: Mapping[str, Any]) -> tuple[Tensor, Tensor]:
        given = batch["label"] >= 0
        return outputs[given], batch["label"][given]

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
