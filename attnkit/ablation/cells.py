"""Studies of several tasks and sizes. Each combination is a cell: an ordinary study, with a folder and a report of its own. No torch.

The cells share alpha: half of it is for their verdicts, in equal parts, and half for the aggregates of `attnkit.ablation.across`. So the
probability of any false verdict, in a cell or over all, is at most alpha.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Generic, TypeVar

from attnkit.ablation.sections import ScaleSection, TaskSection
from attnkit.ablation.spec import StudySpec
from attnkit.registry import ConfigurationError

S = TypeVar("S", bound=StudySpec)


@dataclass(frozen=True, kw_only=True)
class Cell(Generic[S]):
    """A task at a size.

    Attributes:
        task: Its name; empty if the study names none.
        scale: The name of the size; likewise.
        size: The size; None if the study names none.
        study: Its study.
    """

    task: str
    scale: str
    size: float | None
    study: S

    @property
    def name(self) -> str:
        """The name in `STUDY.yaml:NAME`."""
        return ".".join(filter(None, (self.task, self.scale)))


def cells(study: S) -> list[Cell[S]]:
    """Return the cells of a study; of one without tasks and scales, itself.

    Example:
        >>> from attnkit.ablation.design import Variant
        >>> tasks = {"t": TaskSection(), "u": TaskSection()}
        >>> study = StudySpec(name="s", recipe="r", design="list", variants=(Variant(name="a"),), tasks=tasks)
        >>> [(cell.name, cell.study.name, cell.study.alpha) for cell in cells(study)]
        [('t', 's.t', 0.0125), ('u', 's.u', 0.0125)]
    """
    if not study.tasks and not study.scales:
        return [Cell(task="", scale="", size=None, study=study)]
    tasks = list(study.tasks.items()) or [("", TaskSection())]
    scales: list[tuple[str, ScaleSection | None]] = list(study.scales.items()) or [("", None)]
    share = study.alpha / 2 / (len(tasks) * len(scales))
    found = []
    for (task, own), (scale, size) in product(tasks, scales):
        name = ".".join(filter(None, (task, scale)))
        given = {key: value for key, value in vars(own).items() if key != "set" and value is not None}
        part = replace(
            study,
            **given,
            name=f"{study.name}.{name}",
            set={**study.set, **own.set, **(size.set if size else {})},
            alpha=share,
            tasks={},
            scales={},
            file=f"{study.file}:{name}" if study.file else None,
        )
        found.append(Cell(task=task, scale=scale, size=size.at if size else None, study=part))
    return found


def check_apart(keys: Mapping[str, Collection[str]]) -> None:
    """Raise a `ConfigurationError` if two cells have a run in common: they would count twice what is one result.

    Args:
        keys: The keys of the runs of each cell, by its name.

    Example:
        >>> check_apart({"small": ["a", "b"], "large": ["c", "b"]})
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: tasks, scales: small and large have runs in common, ...
    """
    for (one, ours), (other, theirs) in combinations(keys.items(), 2):
        if not set(ours).isdisjoint(theirs):
            raise ConfigurationError(
                f"tasks, scales: {one} and {other} have runs in common, so that aggregates would count them twice: their overrides build "
                "the same recipe"
            )
