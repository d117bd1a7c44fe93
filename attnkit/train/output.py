"""Output of a command, to stdout or to an atomically written file."""

import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TextIO

import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, TQDMProgressBar
from lightning.pytorch.utilities import rank_zero_only

from attnkit.files import atomic
from attnkit.registry import ConfigurationError
from attnkit.strategy import data_share
from attnkit.tokenizer.unknown import UnknownTokens

INTERVAL = 1.0  # seconds between updates of a progress bar


@rank_zero_only
def say(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr)


class Throttled:
    """Updates a progress bar after a training batch only if `INTERVAL` has passed or the batch is the last.

    Each update reads the logged values from the device, which makes the host wait for the end of the step.
    """

    def __init__(self, bar: ProgressBar) -> None:
        self.bar, self.next = bar, 0.0

    def __call__(self, trainer: Trainer, *others: Any) -> None:
        """Has the signature of `on_train_batch_end`."""
        is_last = trainer.is_last_batch or trainer.should_stop or trainer.global_step == trainer.max_steps
        if is_last or time.monotonic() >= self.next:
            type(self.bar).on_train_batch_end(self.bar, trainer, *others)
            self.next = time.monotonic() + INTERVAL


def throttle(bar: ProgressBar) -> None:
    """Make one of Lightning's progress bars, if it has default settings, update once a second during training."""
    if isinstance(bar, RichProgressBar) or (isinstance(bar, TQDMProgressBar) and bar.refresh_rate == 1):
        bar.on_train_batch_end = Throttled(bar)  # type: ignore[assignment, method-assign]


@contextmanager
def notes() -> Iterator[None]:
    """Print warnings about unknown tokens as notes on stderr; other warnings are unchanged."""
    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=UnknownTokens)
        show = warnings.showwarning

        def show_or_note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, UnknownTokens):
                say(f"note: {message}")
            else:
                show(message, category, *rest, **more)

        warnings.showwarning = show_or_note
        yield


@contextmanager
def output(out: str | None) -> Iterator[TextIO]:
    """Yield stdout, or a file that is renamed to `out` at the end of the `with` block, unless the block fails."""
    if out is None:
        yield sys.stdout
        return
    if Path(out).is_dir():
        raise ConfigurationError(f"--out {out} is a folder, not a file name")
    with atomic(Path(out)) as draft, draft.open("w", encoding="utf-8") as file:
        yield file
    print(f"Wrote {out}")


def gather_lines(trainer: Trainer, batches: Sequence[Sequence[Any]]) -> list[str]:
    """Return the prediction lines of all processes in the order of the inputs; an empty list on all but the first process."""
    own = data_share(trainer).rank, [[str(line) for line in batch] for batch in batches]
    shares: list[Any] = [own]
    if trainer.world_size > 1:
        shares = [None] * trainer.world_size
        dist.all_gather_object(shares, own)
    return interleaved(dict(shares)) if trainer.is_global_zero else []


def interleaved(shares: dict[int, list[list[str]]]) -> list[str]:
    """Interleave the lines of the data shares, given by rank, in the order of the inputs: each share has every n-th row of a batch.

    Example:
        >>> interleaved({0: [["a", "c"], ["d"]], 1: [["b"], []]})
        ['a', 'b', 'c', 'd']
    """
    ranked = [shares[rank] for rank in sorted(shares)]
    rows = (zip_longest(*parts) for parts in zip_longest(*ranked, fillvalue=[]))
    return [line for row in chain.from_iterable(rows) for line in row if line is not None]
