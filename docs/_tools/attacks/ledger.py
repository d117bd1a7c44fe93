"""The record of tries: a file of JSON lines for each attack, and the table built from them."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

BEGIN, END = "<!-- begin: python docs/_tools/reliability.py table -->", "<!-- end -->"
TITLES = {
    "kill_single": "SIGKILL of a training run, one process",
    "kill_ddp": "SIGKILL of a training run, `ddp` with two processes: both, or one of them",
    "kill_fsdp2": "SIGKILL of a training run, `fsdp2` with two processes: both, or one of them",
    "kill_saving": "SIGKILL while a checkpoint is being written, one process and sharded `fsdp2`",
    "kill_driver": "SIGKILL of a study's driver",
    "kill_workers": "SIGKILL of a study's workers",
    "kill_both": "SIGKILL of a study's driver and workers",
    "two_drivers": "SIGKILL of one of two drivers of a study in one folder",
    "together": "`fit` of one recipe started 20 times at once",
    "resume_twice": "`fit --resume` of one run started twice at once",
    "disk_full": "the disk fills up during a training run",
    "hostile": "a hostile file is given to a loader",
}
"""The attacks, in the order of the table."""


@dataclass(frozen=True)
class Try:
    """One try of an attack.

    Attributes:
        attack: Its name.
        number: The try's number within the attack, from 0.
        moment: When it hit, as plain data specific to the attack.
        survived: Whether nothing was lost.
        detail: The loss, in words.
    """

    attack: str
    number: int
    moment: Any
    survived: bool
    detail: str = ""


class Ledger:
    """The tries of one attack, each a line of `FOLDER/ATTACK.jsonl`; a line truncated by a kill is rewritten.

    Args:
        folder: The folder of the files.
        attack: Its name.
    """

    def __init__(self, folder: Path, attack: str) -> None:
        self.path, self.attack = folder / f"{attack}.jsonl", attack
        self.tries = read_tries(self.path)

    def add(self, outcomes: Iterable[tuple[Any, bool, str]]) -> None:
        """Record tries immediately: moment, whether it survived, detail."""
        for moment, survived, detail in outcomes:
            self.tries.append(Try(self.attack, len(self.tries), moment, survived, detail))
        self.path.parent.mkdir(parents=True, exist_ok=True)
        draft = self.path.with_suffix(".part")
        draft.write_text("".join(json.dumps(asdict(one)) + "\n" for one in self.tries), encoding="utf-8")
        draft.replace(self.path)

    def say(self, wanted: int, problems: list[str]) -> None:
        """Print the progress of the attack, and what the last try lost."""
        print(f"{self.attack} {len(self.tries)}/{wanted}: {'; '.join(problems) or 'survived'}", flush=True)


def read_tries(path: Path) -> list[Try]:
    """Return the tries in a file; none if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [Try(**json.loads(line)) for line in lines]


def randomness(seed: int, attack: str, run: int) -> Random:
    """Return the generator for the moments of a run's kills: the same for the same arguments, in every process.

    Example:
        >>> randomness(0, "kill_ddp", 3).random() == randomness(0, "kill_ddp", 3).random() != randomness(0, "kill_ddp", 4).random()
        True
    """
    return Random(f"{seed} {attack} {run}")


def summary(tries: Iterable[Try]) -> dict[str, dict[str, int]]:
    """Return the numbers of tries, survived and lost for each attack that was tried, in the order of the table."""
    counts: dict[str, list[bool]] = {}
    for one in tries:
        counts.setdefault(one.attack, []).append(one.survived)
    return {
        attack: {"tries": len(counts[attack]), "survived": sum(counts[attack]), "lost": len(counts[attack]) - sum(counts[attack])}
        for attack in TITLES
        if attack in counts
    }


def table(summarised: Mapping[str, Mapping[str, int]]) -> str:
    """Return the Markdown table.

    Example:
        >>> print(table({"kill_driver": {"tries": 33, "survived": 32, "lost": 1}}))
        | attack | tries | survived | lost |
        |---|---|---|---|
        | SIGKILL of a study's driver (`kill_driver`) | 33 | 32 | 1 |
    """
    rows = [
        f"| {TITLES[attack]} (`{attack}`) | {counts['tries']} | {counts['survived']} | {counts['lost']} |"
        for attack, counts in summarised.items()
    ]
    return "\n".join(["| attack | tries | survived | lost |", "|---|---|---|---|", *rows])


def embed(page: str, content: str) -> str:
    """Return a page with new content between the markers.

    Raises:
        ValueError: The markers do not occur exactly once each, in this order.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the markers {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{content}\n{END}{after}"
