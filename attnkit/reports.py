"""Losses and statistics that modules compute besides their output, for the task that trains them.

A module stores its report in its attribute `report`, and the task takes it right after the forward pass, so no signature carries reports,
and activation checkpointing and FSDP2 need not know about them. Reports from recomputed activations are dropped.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

FORGOTTEN = 256
"""Number of reports of a module after which they count as forgotten: more than the uses of a layer in any forward pass."""


class Report(NamedTuple):
    """The report of a module about a forward pass.

    Attributes:
        loss: A scalar with a gradient, which is added to the mean loss per target.
        sums: [N], sums over tokens, which a task adds up over the micro-batches and processes of an optimizer step.
    """

    loss: Tensor
    sums: Tensor

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Copy and pickle as None, because a graph cannot be copied."""
        return type(None), ()


class Reporter(ABC):
    """A module that reports in training mode. It calls `leave` in each forward pass.

    Attributes:
        report: The report left since the last one was taken, or None. Copies of the module and pickles have none.
        left: Number of reports in it.
    """

    report: Report | None = None
    left: int = 0

    def leave(self, loss: Tensor, sums: Tensor) -> None:
        """Leave a report; reports of several calls, such as of a layer used several times, are added.

        Reports that are never taken would keep the graphs of all steps, so after `FORGOTTEN` of them they are dropped with a warning.
        A backward pass that recomputes activations leaves none: the first forward pass has already reported.
        """
        if not torch.compiler.is_compiling():
            if torch._C._current_graph_task_id() >= 0:  # within a backward pass
                return
            self.left = 1 if self.report is None else self.left + 1
            if self.left > FORGOTTEN:
                warnings.warn(
                    f"{FORGOTTEN} reports of {type(self).__name__} were left and never taken, so they are dropped: their losses train "
                    f"nothing. After each forward pass, add the losses of attnkit.reports.take_reports(reporters(model)) to yours",
                    stacklevel=2,
                )
                self.report, self.left = None, 1
        old = self.report
        self.report = Report(loss, sums) if old is None else Report(old.loss + loss, old.sums + sums)

    @abstractmethod
    def end_step(self, sums: Tensor) -> dict[str, Tensor]:
        """Use the `sums` of a whole optimizer step, equal on all processes; return values to log by name."""


def reporters(model: nn.Module) -> dict[str, Reporter]:
    """Return the reporters in a model, by path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Reporter)}


def take_reports(found: Mapping[str, Reporter]) -> dict[str, Report]:
    """Take the reports left in the reporters `found`, by path.

    Example:
        >>> import attnkit, torch
        >>> layer = attnkit.feed_forwards.build("mixture_of_experts", d_model=8)
        >>> _ = layer(torch.randn(2, 5, 8))
        >>> [report.loss.ndim for report in take_reports(reporters(layer)).values()], take_reports(reporters(layer))
        ([0], {})
    """
    taken = {path: module.report for path, module in found.items() if module.report is not None}
    for module in found.values():
        module.report = None
    return taken
