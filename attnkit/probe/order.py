# https://arxiv.org/abs/1805.04623
"""Whether the order of the input matters."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import Batch, batches_of, loss, prompt_lengths
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task
from attnkit.tokenizer import Tokenizer


@probes.register("order")
class Order(Probe):
    """The loss when all input tokens but the last few are shuffled.

    Limits: It shows whether this model uses the order of these data; shuffled text is unlike any that it was trained on, so part of a rise
    comes from the strangeness of the input.

    Special tokens stay where they are. A language model is scored on the answer after the shuffled prompt, or, for running text, on the
    last token of each window; an encoder-decoder reads a shuffled source.

    Paper: Khandelwal et al. 2018, https://arxiv.org/abs/1805.04623; Sinha et al. 2021, https://arxiv.org/abs/2104.06644

    Args:
        kept: Numbers of tokens next to the answer that stay in order.
        batches: Batches of data that are read.
        seed: Seed of the order.
    """

    x = "kept"
    y = ("loss", "loss_in_order")

    def __init__(self, *, kept: Sequence[int] = (0, 1, 2, 4, 8, 16), batches: int = 4, seed: int = 0) -> None:
        self.kept, self.batches, self.seed = list(kept), batches, seed

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        batches = batches_of(data, self.batches, task.device)
        name = "src" if "src" in batches[0] else "tokens"
        if name not in batches[0]:
            raise ConfigurationError("this probe shuffles tokens, but the batches have none")
        ends = []
        for i, batch in enumerate(batches):
            ends.append(prompt_lengths(batch) if "targets" in batch else (batch[name] != Tokenizer.pad_id).sum(1))
            if "targets" in batch:
                columns = torch.arange(batch["tokens"].shape[1], device=task.device)
                batches[i] = {**batch, "targets": batch["targets"] * (columns >= ends[i][:, None] - 1)}
        in_order = loss(task, batches)
        found = []
        for kept in self.kept:
            generator = torch.Generator().manual_seed(self.seed)
            shuffled: list[Batch] = [
                {**batch, name: shuffle(batch[name], end - kept, generator)} for batch, end in zip(batches, ends, strict=True)
            ]
            found.append({"kept": kept, "loss": loss(task, shuffled), "loss_in_order": in_order})
        return found


def shuffle(tokens: Tensor, end: Tensor, generator: torch.Generator) -> Tensor:
    """Return tokens [B, T] with the first `end` [B] of each row shuffled; special tokens keep their places.

    Example:
        >>> shuffle(torch.tensor([[1, 7, 8, 9, 5]]), torch.tensor([4]), torch.Generator().manual_seed(1))
        tensor([[1, 7, 8, 9, 5]])
    """
    columns = torch.arange(tokens.shape[1], device=tokens.device)
    moves = (columns < end[:, None]) & (tokens >= len(Tokenizer.special_tokens))
    keys = torch.rand(tokens.shape, generator=generator).to(tokens.device)
    order = keys.where(moves, 2.0).argsort(dim=1, stable=True)  # the moving tokens in a random order, then the others
    places = moves.logical_not().int().argsort(dim=1, stable=True)  # where they were
    return tokens.scatter(1, places, tokens.gather(1, order))
