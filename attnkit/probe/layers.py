# https://arxiv.org/abs/1905.00414
"""How much each layer changes its input."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import batches_of, depths
from attnkit.registry import probes
from attnkit.task import Task


@probes.register("layers")
class LayerSimilarity(Probe):
    r"""The similarity of the vectors of each layer to those of the layer below and to the embeddings.

    Limits: It shows how much the vectors of these tokens change from layer to layer, not what the change means; linear CKA ignores
    rotations and scales, and a few directions of large variance can make it high.

    `cosine` is the mean cosine of a token's vectors above and below a layer; `cka` and `cka_embedding` compare all tokens at once, with
    centred columns X and Y. Layer 0 is the embedding.

    Equation:
        $$\mathrm{CKA}(X, Y) = \lVert Y^\top X \rVert_F^2 \, / \, (\lVert X^\top X \rVert_F \, \lVert Y^\top Y \rVert_F)$$

    Paper: Kornblith et al. 2019, https://arxiv.org/abs/1905.00414

    Args:
        batches: Batches of data that are read; the last one counts.
    """

    x = "layer"
    y = ("cosine", "cka", "cka_embedding")
    lines = "part"

    def __init__(self, *, batches: int = 1) -> None:
        self.batches = batches

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        found: list[Row] = []
        first: dict[str, Tensor] = {}
        below: dict[str, Tensor] = {}
        for depth in depths(task, batches_of(data, self.batches, task.device)[-1]):
            x = depth.vectors
            if depth.layer == 0:
                first[depth.part] = x
            else:
                y = below[depth.part]
                cosine = float(torch.cosine_similarity(x, y).mean()) if x.shape == y.shape else None
                row = {"part": depth.part, "layer": depth.layer, "cosine": cosine}
                found.append(row | {"cka": cka(x, y), "cka_embedding": cka(x, first[depth.part])})
            below[depth.part] = x
        return found


def cka(x: Tensor, y: Tensor) -> float:
    """Return the linear CKA of two sets of vectors [N, D] and [N, E] of the same tokens.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]])
        >>> round(cka(x, 3 * x @ torch.tensor([[0.0, 1.0], [-1.0, 0.0]])), 6)
        1.0
    """
    x, y = x - x.mean(0), y - y.mean(0)
    return float((y.T @ x).norm() ** 2 / ((x.T @ x).norm() * (y.T @ y).norm()))
