"""The progress of a study: a line for each run that ends and, on a terminal, a table of the running ones."""

import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from attnkit.ownership import Owner

REPORT_INTERVAL = 60.0  # seconds between repeated messages about runs held by other processes
CHECK_INTERVAL = 1.0  # seconds between checks of runs held by other processes

Printer = Callable[[str], None]  # prints a line


@dataclass
class Progress:
    """The progress of the runs."""

    total: int = 0  # the number of runs
    ended: Counter[str] = field(default_factory=Counter)  # the number of runs that ended, by status
    active: dict[str, float] = field(default_factory=dict)  # when each running run started (monotonic clock), by name
    durations: list[float] = field(default_factory=list)  # duration of each run of this session, in seconds
    expected: float | None = None  # expected seconds per run until one has ended; None if unknown
    jobs: int = 1  # the number of concurrent runs

    @property
    def left(self) -> int:
        """The number of runs without an outcome."""
        return self.total - self.ended.total()

    def to_go(self) -> str:
        """Return the remaining time, from the runs that ended or the expected duration; empty if neither is known.

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
        """Return the live table for a terminal."""
        table = Table("running", "since", box=None, pad_edge=False)
        for name, began in list(self.active.items()):
            table.add_row(name, clock(time.monotonic() - began))
        counts = ", ".join(f"{count} {status}" for status, count in self.ended.items())
        return Group(table, Text("  ".join(filter(None, [f"{self.ended.total()}/{self.total} runs ended", counts, self.to_go()]))))


class Others:
    """Reports the runs that this process waits for because other processes work on them."""

    def __init__(self, say: Printer) -> None:
        self.say = say
        self._since: dict[str, float] = {}  # when waiting for each run began
        self._reported = self._checked = -math.inf

    def is_time(self) -> bool:
        """Return whether to look for a run now: always, unless other processes held all of them less than `CHECK_INTERVAL` ago."""
        return not self._since or time.monotonic() - self._checked > CHECK_INTERVAL

    def wait_for(self, held: Mapping[str, Owner]) -> None:
        """Report the runs that other processes hold, their owners, and the time spent waiting: at once if any is new, then every minute."""
        now = self._checked = time.monotonic()
        is_new = not held.keys() <= self._since.keys()
        self._since = {name: self._since.get(name, now) for name in held}
        if held and (is_new or now - self._reported > REPORT_INTERVAL):
            self._reported = now
            for name, owner in held.items():
                waited = now - self._since[name]
                self.say(f"waiting for {name}{f' ({clock(waited)} so far)' if waited > 1 else ''}, held by {owner}")


@contextmanager
def shown(progress: Progress) -> Iterator[Printer]:
    """Yield a function that prints a line; on a terminal, a live table stays below the lines."""
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
