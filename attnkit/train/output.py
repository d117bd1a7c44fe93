"""The output of a command: stdout, or a file that is written atomically."""

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

INTERVAL = 1.0  # seconds between two updates of a progress bar


@rank_zero_only
def say(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr)


class Seldom:
    """Calls the hook of a progress bar after a training batch only if `INTERVAL` has passed, or if the batch is the last.

    Each call reads the logged values from the device, so that the host waits for the step to end.
    """

    def __init__(self, bar: ProgressBar) -> None:
        self.bar, self.next = bar, 0.0

    def __call__(self, trainer: Trainer, *others: Any) -> None:
        """Take the arguments of `on_train_batch_end`."""
        is_last = trainer.is_last_batch or trainer.should_stop or trainer.global_step == trainer.max_steps
        if is_last or time.monotonic() >= self.next:
            type(self.bar).on_train_batch_end(self.bar, trainer, *others)
            self.next = time.monotonic() + INTERVAL


def update_seldom(bar: ProgressBar) -> None:
    """Have a progress bar of Lightning, with its default settings, update once a second while a model is trained."""
    if isinstance(bar, RichProgressBar) or (isinstance(bar, TQDMProgressBar) and bar.refresh_rate == 1):
        bar.on_train_batch_end = Seldom(bar)  # type: ignore[assignment, method-assign]


@contextmanager
def notes() -> Iterator[None]:
    """Print warnings about unknown tokens as notes on stderr, and others as usual."""
    with warnings.catch_warnings():
        warnings.filterwarnings("default", category=UnknownTokens)
        show = warnings.showwarning

        def show_or_say(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
            if issubclass(category, UnknownTokens):
                say(f"note: {message}")
            else:
                show(message, category, *rest, **more)

        warnings.showwarning = show_or_say
        yield


@contextmanager
def output(out: str | None) -> Iterator[TextIO]:
    """Yield stdout, or, given `out`, a file that takes this name at the end of the `with` block unless the block fails."""
    if out is None:
        yield sys.stdout
        return
    if Path(out).is_dir():
        raise ConfigurationError(f"--out {out} is a folder; give the name of a file")
    with atomic(Path(out)) as draft, draft.open("w", encoding="utf-8") as file:
        yield file
    print(f"Wrote {out}")


def of_all_processes(trainer: Trainer, batches: Sequence[Sequence[Any]]) -> list[str]:
    """Return the lines of the predictions of all processes, in the order of the inputs; in other processes than the first, none."""
    own = data_share(trainer).rank, [[str(line) for line in batch] for batch in batches]
    shares: list[Any] = [own]
    if trainer.world_size > 1:
        shares = [None] * trainer.world_size
        dist.all_gather_object(shares, own)
    return merged(dict(shares)) if trainer.is_global_zero else []


def merged(shares: dict[int, list[list[str]]]) -> list[str]:
    """Return the lines of all batches, given those of each share of the data by its rank: each has every n-th row of a batch.

    Example:
        >>> merged({0: [["a", "c"], ["d"]], 1: [["b"], []]})
        ['a', 'b', 'c', 'd']
    """
    ranked = [shares[rank] for rank in sorted(shares)]
    rows = (zip_longest(*parts) for parts in zip_longest(*ranked, fillvalue=[]))
    return [line for row in chain.from_iterable(rows) for line in row if line is not None]
