"""A loss and statistics that a module computes in addition to its output, for the task that trains it.

A module stores its report in its attribute `report`, and the task takes it right after the forward pass: no signature carries reports, and
activation checkpointing and FSDP2 need not know about them. When activations are recomputed, modules report again; those are dropped.
"""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

FORGOTTEN = 256
"""Number of reports of a module after which they count as forgotten: more than any stack uses a layer in one forward pass."""


class Report(NamedTuple):
    """The report of a module about a forward pass.

    Attributes:
        loss: A scalar with a gradient, which is added to the mean loss per target.
        sums: [N], sums over tokens, which a task adds up over the micro-batches and processes of an optimizer step.
    """

    loss: Tensor
    sums: Tensor

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        """Make its copy None: a module that is copied or pickled has no report, because a graph cannot be copied."""
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
        """Leave a report; the reports of several calls, such as those of a layer that is used several times, are added.

        Reports that nobody takes would keep the graphs of all steps: after `FORGOTTEN` of them, a warning says so, and they are dropped.
        """
        if not torch.compiler.is_compiling():
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
    """Return the modules that are reporters, by path."""
    return {path: module for path, module in model.named_modules() if isinstance(module, Reporter)}


def take_reports(found: Mapping[str, Reporter]) -> dict[str, Report]:
    """Return and remove the reports that the reporters `found` have left, by path.

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
