"""Runs that processes of other studies or machines work on, which a study waits for. No torch."""

import math
import time
from collections.abc import Mapping

from attnkit.ablation.progress import Say, clock
from attnkit.ownership import Owner

SAID_AGAIN = 60.0  # seconds between two lines about runs that are waited for
LOOKED_AGAIN = 1.0  # seconds between two looks at runs that others work on


class Others:
    """Says which runs are waited for because other processes work on them."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self._since: dict[str, float] = {}  # when each run was first waited for
        self._said = self._looked = -math.inf

    def is_time(self) -> bool:
        """Return whether to look for a run again: immediately, unless others work on all of them."""
        return not self._since or time.monotonic() - self._looked > LOOKED_AGAIN

    def wait_for(self, held: Mapping[str, Owner]) -> None:
        """Say which runs are waited for, whose they are, and since when: at first, when there are more, and then every minute."""
        now = self._looked = time.monotonic()
        is_new = not held.keys() <= self._since.keys()
        self._since = {name: self._since.get(name, now) for name in held}
        if held and (is_new or now - self._said > SAID_AGAIN):
            self._said = now
            for name, owner in held.items():
                waited = now - self._since[name]
                self.say(f"waiting for {name}: {owner} has it{f', for {clock(waited)} now' if waited > 1 else ''}")
