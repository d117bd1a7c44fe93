# https://arxiv.org/abs/2312.04927
"""Recall as a function of the distance between a fact and the question about it."""

from collections.abc import Sequence
from copy import copy
from typing import Any

from lightning.fabric.utilities import move_data_to_device
from typing_extensions import override

from attnkit.corpus.synthetic import Synthetic
from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import answered
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task


@probes.register("recall")
class Recall(Probe):
    """The accuracy and the loss of a synthetic task by its distance.

    Limits: It shows how far this model carries this kind of information; a failure may come from the architecture or from distances that
    were not trained, and success says nothing about natural text.

    The corpus of the data is regenerated for each distance, with the same other arguments; its test rows are read.

    Paper: Arora et al. 2023, https://arxiv.org/abs/2312.04927

    Args:
        distances: The distances.

    Raises:
        ConfigurationError: On use, the corpus has no `distance`, or does not support all of these.
    """

    x = "distance"
    y = ("exact_match", "token_accuracy", "loss")

    def __init__(self, *, distances: Sequence[int] = (2, 4, 8, 16, 32, 64)) -> None:
        self.distances = list(distances)

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        corpus = getattr(data, "corpus", None)
        if not isinstance(corpus, Synthetic) or not hasattr(corpus, "distance"):
            raise ConfigurationError("the probe 'recall' needs the data of a synthetic task with a distance, such as copy or induction")
        _ = [getattr(data, name, None) for name in ("tokenizer", "src_tokenizer", "tgt_tokenizer")]  # trained on the original distance
        found = []
        for distance in self.distances:
            other = copy(data)
            other.corpus, other.trainer = corpus.at_distance(distance), None
            exact = rows = right = scored = 0
            nll = 0.0
            for batch in other.test_dataloader():
                answer = answered(task, move_data_to_device(batch, task.device))
                real = answer.scored.any(1)
                exact += int(((answer.right | ~answer.scored).all(1) & real).sum())
                rows += int(real.sum())
                right += int(answer.right.sum())
                scored += int(answer.scored.sum())
                log_probabilities = answer.logits.double().log_softmax(-1).gather(-1, answer.targets[..., None])[..., 0]
                nll -= float(log_probabilities[answer.scored].sum())
            found.append({"distance": distance, "exact_match": exact / rows, "token_accuracy": right / scored, "loss": nll / scored})
        return found
