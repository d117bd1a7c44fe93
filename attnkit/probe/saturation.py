# https://arxiv.org/abs/1706.03762
"""How large the logits of attention are, and how sharp its weights."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import Batch, batches_of, loss
from attnkit.recording import record_attention, relative_entropy
from attnkit.registry import ConfigurationError, probes, tasks
from attnkit.task import Task
from attnkit.task.attending import read_batch
from attnkit.tokenizer import Tokenizer


@probes.register("saturation")
class Saturation(Probe):
    r"""The variance of the attention logits, and the entropy and the largest of the weights, by width.

    Limits: It shows how sharp attention is on these data, with untrained weights if `widths` are given; only training can show whether
    sharpness helps or hurts.

    Each number covers the keys that a query may attend to, and is averaged over heads and over the queries, other than padding, with at
    least two of them: the variance of the logits of a query; the entropy of its weights, as shares of their sum, divided by the largest
    possible one (1: no preference); the largest weight (1: saturated, so that a softmax has a vanishing gradient). For a layer that is used
    several times, the last use counts.

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
            read: dict[str, list[Tensor]] = {}
            for batch in batches:
                with record_attention(model.model, logits=True) as logits, record_attention(model.model) as weights:
                    loss(model, [batch])
                for path, values in logits.items():
                    read.setdefault(path, []).append(statistics(values, weights[path], _real_queries(model, batch, path)))
            if not read:
                raise ConfigurationError("this model has no attention whose logits could be read")
            for path, parts in read.items():
                variance, entropy, largest = torch.cat(parts).mean(0).tolist()
                found.append({"width": width, "layer": path, "variance": variance, "entropy": entropy, "largest_weight": largest})
        return found


def _real_queries(task: Task, batch: Batch, path: str) -> Tensor | None:
    """Return which queries of an attention are not padding, [B, Q]; None for images, all of whose patches are real."""
    if "image" in batch:
        return None
    reading = read_batch(task, batch, len(next(iter(batch.values()))))
    return reading.queries(path) != Tokenizer.pad_id


def statistics(logits: Tensor, weights: Tensor, real: Tensor | None = None) -> Tensor:
    """Return the variance of logits [B, H, Q, K] (-inf = masked), the relative entropy of the weights, and the largest of them.

    There is a row for each head of each of the N queries that is `real` [B, Q] (default: all) and has at least two keys, [H N, 3].

    Example:
        >>> inf = float("inf")
        >>> logits = torch.tensor([[[[1.0, -inf, -inf], [1.0, -1.0, -inf], [0.0, 0.0, -inf]]]])
        >>> statistics(logits, logits.softmax(-1)).mean(0)
        tensor([0.5000, 0.7635, 0.6904], dtype=torch.float64)
    """
    logits, weights = logits.double(), weights.double()
    allowed = logits.isfinite()
    counts = allowed.sum(-1)
    chosen = counts > 1 if real is None else (counts > 1) & real[:, None, : counts.shape[-1]]
    kept = logits.where(allowed, 0.0)
    mean = kept.sum(-1) / counts.clamp(min=1)
    variance = ((kept - mean[..., None]) ** 2).where(allowed, 0.0).sum(-1) / counts.clamp(min=1)
    return torch.stack([variance[chosen], relative_entropy(weights, counts)[chosen], weights.amax(-1)[chosen]], -1)
