"""Studies of several tasks and sizes. Each combination is a cell: an ordinary study with its own folder and report. No torch.

The cells share alpha: half is for their verdicts, in equal parts, and half for the aggregates of `attnkit.ablation.across`. The
probability of any false verdict, in a cell or over all cells, is therefore at most alpha. Each task has its own seeds, so its runs share
no random numbers with those of other tasks; the sizes of a task share seeds.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Generic, TypeVar

from attnkit.ablation.question import refuse_change
from attnkit.ablation.sections import ScaleSection, TaskSection
from attnkit.ablation.spec import StudySpec
from attnkit.ablation.study_file import MAX_SEEDS
from attnkit.registry import ConfigurationError
from attnkit.worker.folder import read_json, write_json

S = TypeVar("S", bound=StudySpec)


@dataclass(frozen=True, kw_only=True)
class Cell(Generic[S]):
    """A task at a size."""

    name: str  # the NAME in `STUDY.yaml:NAME`; empty if the study names neither tasks nor sizes
    task: str  # the name of the task; empty if the study names none
    size: float | None  # the size; None if the study names none
    study: S


def cells(study: S) -> list[Cell[S]]:
    """Return the cells of a study; without tasks and scales, the only cell is the study itself.

    Example:
        >>> from attnkit.ablation.design import Variant
        >>> tasks = {"t": TaskSection(), "u": TaskSection()}
        >>> study = StudySpec(name="s", recipe="r", design="list", variants=(Variant(name="a"),), tasks=tasks)
        >>> [(cell.name, cell.study.name, cell.study.alpha, cell.study.seeds[:2]) for cell in cells(study)]
        [('t', 's.t', 0.0125, (0, 1)), ('u', 's.u', 0.0125, (10000, 10001))]
    """
    if not study.tasks and not study.scales:
        return [Cell(name="", task="", size=None, study=study)]
    tasks = list(study.tasks.items()) or [("", TaskSection())]
    scales: list[tuple[str, ScaleSection | None]] = list(study.scales.items()) or [("", None)]
    share = study.alpha / 2 / (len(tasks) * len(scales))
    found = []
    for (number, (task, own)), (scale, size) in product(enumerate(tasks), scales):
        name = ".".join(filter(None, (task, scale)))
        given = {key: value for key, value in vars(own).items() if key != "set" and value is not None}
        part = replace(
            study,
            **given,
            name=f"{study.name}.{name}",
            set={**study.set, **own.set, **(size.set if size else {})},
            alpha=share,
            seeds=tuple(seed + MAX_SEEDS * number for seed in study.seeds),
            tasks={},
            scales={},
            file=f"{study.file}:{name}" if study.file else None,
        )
        found.append(Cell(name=name, task=task, size=size.at if size else None, study=part))
    return found


def lock_cells(study: StudySpec, folder: Path, *, begins: bool) -> None:
    """Raise if the study's tasks or sizes differ from those of its results, because aggregates depend on all of them.

    If runs follow (`begins`), record the tasks and sizes unless they are already recorded.
    """
    file = folder / study.name / "cells.json"
    question = {"tasks": list(study.tasks), "sizes": {name: scale.at for name, scale in study.scales.items()}}
    if (asked := read_json(file)) is not None:
        refuse_change(file.parent, asked, question)
    elif begins:
        write_json(file, question)


def check_apart(keys: Mapping[str, Collection[str]]) -> None:
    """Raise if two cells share a composition, which aggregates would count twice; `keys` maps each cell to its composition keys.

    Example:
        >>> check_apart({"small": ["a", "b"], "large": ["c", "b"]})
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: tasks, scales: small and large have a composition in common, ...
    """
    for (one, ours), (other, theirs) in combinations(keys.items(), 2):
        if not set(ours).isdisjoint(theirs):
            raise ConfigurationError(
                f"tasks, scales: {one} and {other} have a composition in common, which aggregates would count twice: their overrides "
                "build the same recipe"
            )
