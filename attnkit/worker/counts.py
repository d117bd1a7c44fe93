"""Reuses the operation counts of other runs: a count takes longer than a short training, and is the same for every seed."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from attnkit.files import cache_folder
from attnkit.task import Task
from attnkit.worker.costs import Counts, count
from attnkit.worker.folder import key_of, stored, write_json
from attnkit.worker.provenance import Provenance

NOT_COUNTED = ("optimizer", "schedule")  # arguments of a task that its model does not have


@dataclass(frozen=True, kw_only=True)
class Kept:
    """The file of a count."""

    flops: tuple[tuple[int, int, int], ...]  # the exponents of S and T, and their coefficient
    elementwise: int | None


class KeptCounts:
    """`count`, from the cache if the same code, data, packages and processor made it before for a task with the same arguments.

    A count is not kept if code was imported or data were read during it, since it is unknown what it depends on: `made` returns the
    provenance of this process.
    """

    def __init__(self, made: Callable[[], Provenance]) -> None:
        self.made = made

    def __call__(self, task: Task, s: int, t: int) -> Counts:
        """Return the counts."""
        made = self.made()
        arguments = {name: value for name, value in task.hparams.items() if name not in NOT_COUNTED}
        shapes = {name: list(tensor.shape) for name, tensor in (*task.named_parameters(), *task.named_buffers())}
        file = cache_folder() / "counts" / f"{key_of([arguments, shapes, s, t, asdict(made)])}.json"
        if (kept := stored(Kept, file)) is not None:
            return Counts({(a, b): c for a, b, c in kept.flops}, kept.elementwise)
        counts = count(task, s, t)
        if self.made() == made:
            with suppress(OSError):  # the cache cannot be written to
                write_json(file, asdict(Kept(flops=tuple((a, b, c) for (a, b), c in counts.flops.items()), elementwise=counts.elementwise)))
        return counts
