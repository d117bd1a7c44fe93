"""How far a study is: a line for each run that ends, and on a terminal a table of those that go on."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

Say = Callable[[str], None]


@dataclass
class Progress:
    """What is known while runs go on.

    Attributes:
        total: How many runs there are.
        ended: How many of them ended, by status.
        active: When each that goes on began (by the monotonic clock), by its name.
        durations: Seconds that the runs of this session took.
        expected: How many seconds a run takes, as far as it is known before one has ended.
        jobs: How many go on at once.
    """

    total: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    active: dict[str, float] = field(default_factory=dict)
    durations: list[float] = field(default_factory=list)
    expected: float | None = None
    jobs: int = 1

    @property
    def left(self) -> int:
        """How many have no outcome yet."""
        return self.total - self.ended.total()

    def to_go(self) -> str:
        """Return how long the others will take, if they take as long as those that ended, or as expected; empty if neither is known.

        Example:
            >>> Progress(total=5, ended=Counter(ok=2), durations=[50.0, 70.0], jobs=2).to_go()
            '90 s to go'
        """
        each = sum(self.durations) / len(self.durations) if self.durations else self.expected
        if each is None or not self.left:
            return ""
        spent = sum(time.monotonic() - began for began in self.active.values())
        seconds = max(0.0, self.left * each - spent) / min(self.jobs, self.left)
        return f"{clock(seconds)} to go"

    def table(self) -> Group:
        """Return what a terminal shows."""
        table = Table("running", "since", box=None, pad_edge=False)
        for name, began in list(self.active.items()):
            table.add_row(name, clock(time.monotonic() - began))
        counts = ", ".join(f"{count} {status}" for status, count in self.ended.items())
        return Group(table, Text("  ".join(filter(None, [f"{self.ended.total()}/{self.total} runs ended", counts, self.to_go()]))))


@contextmanager
def shown(progress: Progress) -> Iterator[Say]:
    """Yield what says a line; on a terminal a live table stays below the lines."""
    if not sys.stdout.isatty():
        yield lambda line: print(line, flush=True)
        return
    console = Console(highlight=False)
    with Live(get_renderable=progress.table, console=console, refresh_per_second=2, transient=True):
        yield lambda line: console.print(line, markup=False)


def clock(seconds: float) -> str:
    """Return a duration in words.

    Example:
        >>> clock(40), clock(150), clock(9000)
        ('40 s', '2 min', '2.5 h')
    """
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
