"""Prepares runs to be repeated: forgets how they ended, or sets them aside. No torch."""

from contextlib import suppress
from itertools import count
from pathlib import Path

from attnkit.ablation.plan import Plan, Run
from attnkit.ablation.spec import REPLACED
from attnkit.files import remove
from attnkit.worker.folder import RECORDS, UNDERWAY, status_of

CONTINUED = ("killed", "timeout", "out_of_memory", "disk_full")
"""Kinds of failure after which a run continues from its checkpoint. After any other, such as an error in the code, it restarts."""


def forget(folder: Path) -> None:
    """Forget how a run ended, so that it continues from its checkpoint or restarts, depending on the kind of failure."""
    if status_of(folder).get("kind") not in CONTINUED:
        restart(folder)
        remove(folder / "result.json")
        remove(folder / UNDERWAY)
    remove(folder / "status.json")


def restart(folder: Path) -> None:
    """Make a run start over: without its checkpoints, and with new records in its loggers."""
    remove(folder / "checkpoints")  # even if it is a link: a remaining checkpoint would be continued
    remove(folder / RECORDS)


def set_aside(plan: Plan, run: Run) -> None:
    """Move a run that is to be repeated to the folder of replaced runs, without its checkpoints."""
    with suppress(FileNotFoundError):
        remove(plan.run_folder(run.key) / "checkpoints")
    (replaced := plan.folder / REPLACED).mkdir(parents=True, exist_ok=True)
    places = (replaced / f"{run.key}-{number}" for number in count(1))
    with suppress(FileNotFoundError):  # another process has already moved it
        plan.run_folder(run.key).rename(next(place for place in places if not place.exists()))
