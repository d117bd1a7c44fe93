# https://arxiv.org/abs/1706.03762
"""How large the logits of attention are, and how sharp its weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import batches_of, loss
from attnkit.recording import record_attention
from attnkit.registry import ConfigurationError, probes, tasks
from attnkit.task import Task


@probes.register("saturation")
class Saturation(Probe):
    r"""The variance of the attention logits, and the entropy and the largest of the weights, by width.

    Limits: It shows how sharp attention is on these data, with untrained weights if `widths` are given; only training can show whether
    sharpness helps or hurts.

    Each number covers the keys that a query may attend to, and is averaged over queries with at least two of them: the variance of the
    logits of a query; the entropy of its weights, as shares of their sum, divided by the largest possible one (1: no preference); the
    largest weight (1: saturated, so that a softmax has a vanishing gradient).

    Equation:
        $$\operatorname{Var}(q \cdot k) = d \quad \text{for independent entries of variance 1, hence the scale } 1 / \sqrt{d}$$

    Paper: Vaswani et al. 2017, https://arxiv.org/abs/1706.03762, section 3.2.1

    Args:
        widths: Values of `d_model`: new models with the spec of the task, but of these widths (default: the task's model alone).
        seed: Seed of their weights.
        batches: Batches of data that are read.

    Raises:
        ConfigurationError: On use, the model has no attention.
    """

    x = "width"
    y = ("variance", "entropy", "largest_weight")
    lines = "layer"
    log = "x"

    def __init__(self, *, widths: Sequence[int] | None = None, seed: int = 0, batches: int = 1) -> None:
        self.widths, self.seed, self.batches = widths, seed, batches

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        batches = batches_of(data, self.batches, task.device)
        spec = dict(task.hparams)
        own = spec["stack"]["d_model"]
        found = []
        for width in [own] if self.widths is None else self.widths:
            model = task
            if self.widths is not None:
                with torch.random.fork_rng():
                    torch.manual_seed(self.seed)
                    model = tasks.build({"name": task.registered_name, **spec, "stack": {**spec["stack"], "d_model": width}})
                    model.configure_model()
                    model.to(task.device)
            with record_attention(model.model, logits=True) as logits, record_attention(model.model) as weights:
                loss(model, batches[-1:])
            if not logits:
                raise ConfigurationError("this model has no attention whose logits could be read")
            for path, values in logits.items():
                variance, entropy, largest = statistics(values, weights[path])
                found.append({"width": width, "layer": path, "variance": variance, "entropy": entropy, "largest_weight": largest})
        return found


def statistics(logits: Tensor, weights: Tensor) -> tuple[float, float, float]:
    """Return the mean variance of logits [B, H, Q, K] (-inf = masked), the relative entropy of the weights, and the largest of them.

    Example:
        >>> inf = float("inf")
        >>> logits = torch.tensor([[[[1.0, -inf, -inf], [1.0, -1.0, -inf], [0.0, 0.0, -inf]]]])
        >>> statistics(logits, logits.softmax(-1))  # doctest: +ELLIPSIS
        (0.5, 0.76..., 0.69...)
    """
    logits, weights = logits.double(), weights.double()
    allowed = logits.isfinite()
    counts = allowed.sum(-1)
    chosen = counts > 1
    kept = logits.where(allowed, 0.0)
    mean = kept.sum(-1) / counts.clamp(min=1)
    variance = ((kept - mean[..., None]) ** 2).where(allowed, 0.0).sum(-1) / counts.clamp(min=1)
    shares = weights / weights.sum(-1, keepdim=True).clamp(min=torch.finfo(torch.double).tiny)  # of a sigmoid, weights have any sum
    entropy = torch.special.entr(shares).sum(-1) / counts.clamp(min=2).log()
    return float(variance[chosen].mean()), float(entropy[chosen].mean()), float(weights.amax(-1)[chosen].mean())
