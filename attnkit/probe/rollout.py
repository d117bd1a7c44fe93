# https://arxiv.org/abs/2005.00928
"""Which tokens the vector of a token is made of, through all layers."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.mixer.none import NoMixer
from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import batches_of
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task
from attnkit.task.attending import place, read_batch, token_labels


@probes.register("rollout")
class Rollout(Probe):
    r"""Attention rollout: the weights of one token on all others, multiplied through the layers.

    Limits: It shows which paths information could have taken if each layer mixed vectors only by its mean weights and a residual; it
    ignores the values and the feed-forward parts, so it does not explain an output.

    Heads are averaged. `last_layer` is the weight of the highest layer alone.

    Equation:
        $$R = \prod_l \tfrac{1}{2} (\bar{A}_l + I)$$

    Paper: Abnar and Zuidema 2020, https://arxiv.org/abs/2005.00928

    Args:
        row: The row of the first batch that is read.
        query: The position of the token, from 0; if negative, from the end.

    Raises:
        ConfigurationError: On use, a layer has no attention of its own, or there is no such row or token.
    """

    x = "position"
    y = ("rollout", "last_layer")

    def __init__(self, *, row: int = 0, query: int = -1) -> None:
        self.row, self.query = row, query

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        batch = batches_of(data, 1, task.device)[0]
        reading = read_batch(task, batch, self.row + 1)
        if reading.tokenizer is None:
            raise ConfigurationError("this probe follows tokens, but the inputs are images or frames of sound")
        followed = [("encoder", "self"), *([("decoder", "self")] if reading.target is None else [])]
        maps = {path: weights for path, weights in reading.maps().items() if place(path)[:2] in followed}
        if not maps or self.row >= len(reading.inputs):
            raise ConfigurationError("there is no self-attention to follow" if not maps else f"the batch has no row {self.row}")
        _require_each_layer(task, list(maps))
        layers = [maps[path][self.row].mean(0) for path in sorted(maps, key=lambda path: place(path)[2])]  # [Q, K] each
        ids = reading.inputs[self.row]
        count = int((ids != 0).sum())
        if not -count <= self.query < count:
            raise ConfigurationError(f"query must be from {-count} to {count - 1} for a row of {count} tokens, but is {self.query}")
        query = self.query % count
        rolled, last = rollout(layers)[query, :count].tolist(), layers[-1][query, :count].tolist()
        labels = token_labels(reading.tokenizer, ids[:count].tolist())
        return [
            {"position": i, "token": label, "rollout": through, "last_layer": highest}
            for i, (label, through, highest) in enumerate(zip(labels, rolled, last, strict=True))
        ]


def _require_each_layer(task: Task, paths: list[str]) -> None:
    """Raise unless `paths` are the attention of each layer that mixes tokens, once."""
    stack: Any = task.model.get_submodule(paths[0].partition(".layers.")[0])
    mixing = [i for i in stack.order if not isinstance(stack.layers[i].mixer, NoMixer)]
    if sorted(place(path)[2] for path in paths) != sorted(mixing):
        raise ConfigurationError(
            "a rollout needs the weights of every layer, but not every layer of this model has one attention of its own: it has other "
            "mixers, several side by side, or shared layers"
        )


def rollout(layers: list[Tensor]) -> Tensor:
    """Return the rollout [T, T] of the weights [T, T] of the layers, from the lowest to the highest.

    Example:
        >>> rollout([torch.tensor([[1.0, 0.0], [1.0, 0.0]])] * 2)
        tensor([[1.0000, 0.0000],
                [0.7500, 0.2500]])
    """
    rolled = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)
    for weights in layers:
        rolled = (weights @ rolled + rolled) / 2
    return rolled
