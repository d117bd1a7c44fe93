"""The Python interface to a study: plan it, run it, get its results."""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from typing_extensions import override

from attnkit.ablation.cells import Cell, cells
from attnkit.ablation.plan import Plan
from attnkit.ablation.planning import make_plan
from attnkit.ablation.question import with_added_seeds
from attnkit.ablation.spec import StudySpec
from attnkit.recipe import find_recipe
from attnkit.registry import ConfigurationError, nearest

if TYPE_CHECKING:
    from attnkit.ablation.results import Results


class Study(StudySpec):
    """An ablation study, from Python or from a file; the arguments are those of `StudySpec`."""

    @override
    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a study file, as `StudySpec` does; `FILE:CELL`, such as `study.yaml:spelling.small`, selects one of its cells."""
        file, _, name = str(path).rpartition(":")
        if not file or os.path.exists(path):
            return super().from_yaml(path)
        found = {cell.name: cell.study for cell in super().from_yaml(file).cells()}
        if name not in found:
            raise ConfigurationError(
                f"{file} has no cell {name!r}.{nearest(name, found)} Cells: {', '.join(filter(None, found)) or 'none'}."
            )
        return found[name]

    def cells(self) -> list[Cell[Self]]:
        """Return the study of each task and size; see `attnkit.ablation.cells`."""
        return cells(self)

    def plan(self, folder: str | Path = "runs/ablations") -> Plan:
        """Return the variants and runs of the study; see `attnkit.ablation.planning`.

        Raises:
            ConfigurationError: The study has several tasks or sizes, each of which has its own plan, or there is no such recipe.
        """
        if self.tasks or self.scales:
            file, names = self.file or "STUDY.yaml", [cell.name for cell in self.cells()]
            raise ConfigurationError(f"the study has {len(names)} cells; choose one, as in {file}:{names[0]}. Cells: {', '.join(names)}.")
        found = self if os.path.isfile(self.recipe) else replace(self, recipe=str(find_recipe(self.recipe)))
        return make_plan(with_added_seeds(found, Path(folder)), Path(folder))

    def run(self, folder: str | Path = "runs/ablations", *, jobs: int | None = None, fail_fast: bool = False) -> "Results":
        """Execute the unfinished runs and return the results; see `attnkit.ablation.engine.run_plan`."""
        from attnkit.ablation.engine import run_plan
        from attnkit.ablation.results import Results  # needs the extra `ablate`

        return Results(run_plan(self.plan(folder), jobs=jobs, fail_fast=fail_fast))
