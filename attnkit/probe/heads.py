# https://arxiv.org/abs/1905.10650
"""The contribution of each attention head."""

from typing import Any

from torch import Tensor
from typing_extensions import override

from attnkit.attention import Attention
from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import batches_of, loss
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task


@probes.register("heads")
class HeadImportance(Probe):
    """The rise of the loss when one attention head outputs zeros.

    Limits: It shows what this model loses without one head, with all others as they are; each of two heads that do the same looks
    unimportant, a layer that occurs several times loses the head in all of them, and a model trained without it might lose nothing.

    Paper: Michel et al. 2019, https://arxiv.org/abs/1905.10650

    Args:
        batches: Batches of data that are read.
    """

    x = "head"
    y = ("loss_increase",)
    lines = "layer"

    def __init__(self, *, batches: int = 4) -> None:
        self.batches = batches

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        batches = batches_of(data, self.batches, task.device)
        attentions = {path: module for path, module in task.model.named_modules() if isinstance(module, Attention)}
        if not attentions:
            raise ConfigurationError("this model has no attention, so it has no heads to leave out")
        whole = loss(task, batches)
        found = []
        for path, module in attentions.items():
            for head in range(module.num_heads):

                def silence(module: Attention, arguments: Any, output: Tensor, head: int = head) -> Tensor:
                    output = output.clone()
                    output[:, head] = 0.0
                    return output

                with module.register_forward_hook(silence):
                    without = loss(task, batches)
                found.append({"layer": path.removesuffix(".attention"), "head": head, "loss_increase": without - whole})
        return found
