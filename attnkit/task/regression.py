"""Regression: predicting a number for a text or an image."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, PearsonCorrCoef, SpearmanCorrCoef
from typing_extensions import override

from attnkit.registry import ConfigurationError, keywords_of, tasks
from attnkit.task.labelling import PooledConfig, PooledTask, shortened
from attnkit.task.loss import Sums
from attnkit.task.texts import one_line


class Estimate(NamedTuple):
    """A text (or the name of an image) and its number. As a string: both, separated by a tab, with the digits that float32 needs."""

    text: str
    value: float

    def __str__(self) -> str:
        return f"{one_line(self.text)}\t{np.float32(self.value)!s}"


@dataclass(frozen=True, kw_only=True)
class RegressionConfig(PooledConfig):
    """The options of `regression`.

    Args:
        metrics: `mse`, `mae`, `pearson` and `spearman` (correlations from -1 to 1). The first one selects the best checkpoint.
    """

    metrics: Sequence[str] = ("mse", "mae", "pearson")


@tasks.register("regression")
class Regression(PooledTask):
    """One number for a whole text or image: a rating, an age, a similarity.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B] (float32), and for
    evaluation and prediction `text`, the texts or the names of the images.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the squared error per
    example, in the square of the labels' unit. Labels are not rescaled: if they are far from 0, rescale them to the order of 1
    (the framing warns about them). In `bf16-true` and `16-true`, Lightning rounds labels too.

    Example:
        >>> import attnkit
        >>> task = Regression(
        ...     stack={"name": "recurrent_encoder", "d_model": 16, "num_layers": 1},
        ...     tokenizer=attnkit.tokenizers.build("word").train(["not so good"]).spec)
        >>> len(task.predict_texts(["good", "not good"]))
        2
        >>> print(Estimate("so good", 1.2345678))
        so good	1.2345678
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec", "image_shape": "image_shape"}
    metric_kinds: ClassVar = {
        "mse": lambda _: MeanSquaredError(),
        "mae": lambda _: MeanAbsoluteError(),
        "pearson": lambda _: PearsonCorrCoef(),
        "spearman": lambda _: SpearmanCorrCoef(),
    }
    config: RegressionConfig

    @keywords_of(RegressionConfig)
    def __init__(self, config: RegressionConfig) -> None:
        super().__init__(config)

    @property
    @override
    def outputs(self) -> int:
        return 1

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the numbers [B] for tokens [B, T], padded with `pad_id`, or images [B, C, H, W]."""
        return super().forward(inputs)[:, 0]

    @override
    def sums(self, outputs: Tensor, batch: Mapping[str, Any]) -> Sums:
        label: Tensor = batch["label"]
        if not label.is_floating_point():
            raise ConfigurationError("the labels of these data are classes, not numbers; use task classification, or data.labels number")
        error = (outputs.float() - label).square().sum()
        return Sums(loss=error, nll=error.detach(), targets=torch.tensor(len(label), device=label.device))

    @override
    def new_metrics(self) -> dict[str, Metric]:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*will save all targets", category=UserWarning)  # ranks need all values
            return super().new_metrics()

    @override
    def updates(self, outputs: Tensor, batch: Mapping[str, Any]) -> Mapping[str, Sequence[Any] | None]:
        answers = (outputs, batch["label"].float())
        # gathering a metric's stored values needs a tensor of the right dtype on each rank, even an empty one
        keeping = [name for name, metric in self.metrics("val").items() if any(isinstance(s, list) for s in metric.metric_state.values())]
        return {name: answers if len(outputs) > 0 or name in keeping else None for name in self.config.metrics}

    @override
    def answer(self, text: str, outputs: Tensor) -> Estimate:
        return Estimate(text, float(outputs))

    @override
    def sample_line(self, prediction: Any, label: Any) -> str:
        return f"{shortened(prediction.text)} -> {prediction.value:.2f}  ({label:.2f})"
