"""Regression: predicting a number for a text or an image."""

import warnings
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.regression import MeanAbsoluteError, MeanSquaredError, PearsonCorrCoef, SpearmanCorrCoef
from typing_extensions import override

from attnkit.registry import ConfigurationError, EmbeddingSpec, OptimizerSpec, ScheduleSpec, StackSpec, TokenizerSpec, tasks
from attnkit.strategy import ActivationCheckpointing
from attnkit.task.loss import Sums
from attnkit.task.pooled import Direction, PooledTask, one_line, shortened

_METRICS: dict[str, tuple[type[Metric], Direction]] = {
    "mse": (MeanSquaredError, "min"),
    "mae": (MeanAbsoluteError, "min"),
    "pearson": (PearsonCorrCoef, "max"),
    "spearman": (SpearmanCorrCoef, "max"),
}


class Estimate(NamedTuple):
    """The number of a text, or of the image of that name. As a string: both, separated by a tab."""

    text: str
    value: float

    def __str__(self) -> str:
        return f"{one_line(self.text)}\t{self.value:.4f}"


@tasks.register("regression")
class Regression(PooledTask):
    """One number for a whole text or image: a rating, an age, a similarity.

    A batch is a mapping of `tokens` [B, T] (bos, tokens, eos, padding) or `image` [B, C, H, W], `label` [B] (float32), and for
    evaluation and prediction `text`, what the inputs are called.

    Logged: `train/loss`; in validation (`val/...`) and test (`test/...`) `loss` and the chosen `metrics`. Loss is the squared error per
    example, in the square of the labels' unit. Labels are used as they are: bring those far from 0 to a scale around 1.

    Args:
        stack: An encoder or a decoder stack.
        tokenizer: Spec of the trained tokenizer of texts (a tokenizer's `.spec`), or None for images.
        image_shape: Channels, height and width of images, or None for texts.
        embedding: The embedding: one that reads tokens, or `patch` for images.
        pooling: Which vector represents the whole: `class_token`, the first one (bos is BERT's [CLS]); `mean` over all; `last`.
        pooler: Whether BERT's dense layer with tanh comes before the output map.
        optimizer: The optimizer.
        schedule: The learning rate over the optimizer's steps.
        metrics: `mse`, `mae`, `pearson` and `spearman` (correlations from -1 to 1). The first one selects the best checkpoint.
        init_from: A checkpoint whose embedding and stack initialise the model, such as a pretrained encoder; what does not fit is new.
        samples: Predictions printed after a validation.
        activation_checkpointing: What the backward pass recomputes to save memory: `none`, each `layer`, `mixer` (the part that grows
            with the square of the length), or `feed_forward`. Results are the same.
        compile: Whether torch.compile translates each layer for training. Results are the same up to rounding.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or the tokenizer is not trained.

    Example:
        >>> import attnkit
        >>> task = Regression(
        ...     stack={"name": "recurrent_encoder", "d_model": 16, "num_layers": 1},
        ...     tokenizer=attnkit.tokenizers.build("word").train(["not so good"]).spec)
        >>> len(task.predict_texts(["good", "not good"]))
        2
        >>> print(Estimate("so good", 1.23456))
        so good	1.2346
    """

    from_data: ClassVar = {"tokenizer": "tokenizer_spec", "image_shape": "image_shape"}
    metric_directions: ClassVar = {name: direction for name, (_, direction) in _METRICS.items()}

    def __init__(
        self,
        *,
        stack: StackSpec,
        tokenizer: TokenizerSpec | None = None,
        image_shape: list[int] | None = None,
        embedding: EmbeddingSpec = "token",
        pooling: Literal["class_token", "mean", "last"] = "mean",
        pooler: bool = False,
        optimizer: OptimizerSpec = {"name": "adamw", "lr": 1e-3, "weight_decay": 0.01},  # noqa: B006
        schedule: ScheduleSpec = {"name": "linear", "warmup_steps": 0.1},  # noqa: B006
        metrics: Sequence[str] = ("mse", "mae", "pearson"),
        init_from: str | None = None,
        samples: int = 8,
        activation_checkpointing: ActivationCheckpointing = "none",
        compile: bool = False,
    ) -> None:
        super().__init__(locals())
        self.evaluation = self.evaluation_metrics()
        self.require_buildable()

    @property
    @override
    def outputs(self) -> int:
        return 1

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        """Return the numbers [B] for tokens [B, T], padded with `pad_id`, or images [B, C, H, W]."""
        return super().forward(inputs)[:, 0]

    @override
    def sums(self, outputs: Tensor, label: Tensor, *, smooth: bool) -> Sums:
        if not label.is_floating_point():
            raise ConfigurationError("the labels of these data are classes, not numbers; use task classification, or data.labels number")
        error = (outputs.float() - label).square().sum()
        return Sums(loss=error, nll=error.detach(), targets=torch.tensor(len(label), device=label.device))

    @override
    def metric(self, name: str) -> Metric:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*will save all targets", category=UserWarning)  # ranks need all numbers at once
            return _METRICS[name][0]()

    @override
    def answer(self, text: str, outputs: Tensor) -> Estimate:
        return Estimate(text, float(outputs))

    @override
    def sample_line(self, prediction: Any, label: Any) -> str:
        return f"{shortened(prediction.text)} -> {prediction.value:.2f}  ({label:.2f})"
