"""A study: planned, run, and answered."""

from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.ablation.plan import Plan, with_added_seeds
from attnkit.ablation.planning import make_plan
from attnkit.ablation.spec import StudySpec

if TYPE_CHECKING:
    from attnkit.ablation.results import Results


class Study(StudySpec):
    """An ablation study, from Python or from a file; its arguments are those of `StudySpec`."""

    def plan(self, folder: str | Path = "runs/ablations") -> Plan:
        """Return the variants and runs of the study; see `attnkit.ablation.planning`."""
        return make_plan(with_added_seeds(self, Path(folder)), Path(folder))

    def run(self, folder: str | Path = "runs/ablations", *, jobs: int | None = None, fail_fast: bool = False) -> "Results":
        """Run what is not finished, and return the results; see `attnkit.ablation.sequential.run_study`."""
        from attnkit.ablation.results import Results  # needs the extra `ablate`
        from attnkit.ablation.sequential import run_study

        return Results(run_study(self.plan(folder), jobs=jobs, fail_fast=fail_fast))
