# https://arxiv.org/abs/1610.01644
"""Linear probes: what a linear classifier can read from each layer."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import batches_of, depths
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task


@probes.register("linear")
class LinearProbes(Probe):
    r"""The accuracy of linear classifiers of the token, the token before it, and the position, on the vectors of each layer.

    Limits: It shows what a linear map can read from the vectors, not that the model uses it; information that it cannot read may be there
    in another form, and wide vectors are easier to read than narrow ones.

    A ridge regression onto one-hot classes is fitted on the even rows of the batches and scored on the odd ones. Only the most frequent
    classes take part; `majority` is the accuracy of always answering the most frequent one. Layer 0 is the embedding.

    Equation:
        $$W = (X^\top X + \lambda I)^{-1} X^\top Y$$

    Paper: Alain and Bengio 2016, https://arxiv.org/abs/1610.01644; Hewitt and Liang 2019, https://arxiv.org/abs/1909.03368 (their limits)

    Args:
        classes: Number of the most frequent classes that take part.
        penalty: The penalty lambda, relative to the mean square of the vectors.
        batches: Batches of data that are read.
    """

    x = "layer"
    y = ("accuracy", "majority")
    lines = "label"

    def __init__(self, *, classes: int = 32, penalty: float = 0.01, batches: int = 4) -> None:
        if classes < 2 or penalty <= 0:
            raise ConfigurationError(f"classes must be at least 2 and penalty above 0, but they are {classes} and {penalty}")
        self.classes, self.penalty, self.batches = classes, penalty, batches

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        read = [depths(task, batch) for batch in batches_of(data, self.batches, task.device)]
        found: list[Row] = []
        for same in zip(*read, strict=True):
            vectors = torch.cat([depth.vectors for depth in same])
            is_test = torch.cat([depth.rows for depth in same]) % 2 == 1
            for label in ("tokens", "before", "positions"):
                accuracy, majority = self._accuracy(vectors, torch.cat([getattr(depth, label) for depth in same]), is_test)
                place = {"label": f"{same[0].part}: {label}", "layer": same[0].layer}
                found.append({**place, "accuracy": accuracy, "majority": majority})
        return found

    def _accuracy(self, x: Tensor, labels: Tensor, is_test: Tensor) -> tuple[float | None, float | None]:
        counts = labels.bincount()
        frequent = counts.topk(min(self.classes, len(counts))).indices
        matches = labels[:, None] == frequent  # [N, C]
        chosen = matches.any(1)
        train, test = chosen & ~is_test, chosen & is_test
        if not train.any() or not test.any():
            return None, None
        answers = matches.int().argmax(1)
        weights = ridge(x[train], matches[train].double(), self.penalty)
        x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
        majority = answers[train].bincount().argmax()
        right = (x[test] @ weights).argmax(1) == answers[test]
        return float(right.double().mean()), float((answers[test] == majority).double().mean())


def ridge(x: Tensor, y: Tensor, penalty: float) -> Tensor:
    """Return the weights [D + 1, C] of a ridge regression of `y` [N, C] on `x` [N, D] with an intercept.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.float64)
        >>> ridge(x, 2 * x + 1, 1e-9).round(decimals=3)
        tensor([[2.],
                [1.]], dtype=torch.float64)
    """
    x = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    square = x.T @ x
    scale = penalty * square.diagonal().mean()
    weights: Tensor = torch.linalg.solve(square + scale * torch.eye(len(square), dtype=x.dtype, device=x.device), x.T @ y)
    return weights
