"""The answers of worker processes other than results: inspections of compositions, timings and the progress of runs. No torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """The complete recipe and the size of a composition, or why it cannot be built.

    Attributes:
        recipe: `model` and `data` written out in full, and the recipe's own trainer section.
        notes: Notes on arguments that were dropped when layers were merged, or that have no effect.
        parameters: The number of parameters of the model; None if unknown before training.
        flops: FLOPs of a forward pass through a batch of validation data, if FLOPs are matched.
        adjusted: The width that `match` chose, if the size had to be adjusted.
        takes_seed: Whether the data module takes a seed.
        counts_flops: Whether training FLOPs can be counted.
        keeps_best: Whether runs keep a best checkpoint, which the test data are evaluated with.
        limits: Sentences on effects of the user's own classes that a study can neither control nor measure.
        error: The reason that the composition cannot be built; None if it can.
        kind: The kind of error: `mistake` (a wrong name, argument or value) or `illegal` (incompatible components).
        sources: The user's own modules and the data that were read, with hashes; the answer is valid while they are unchanged.
    """

    recipe: Mapping[str, Any] | None = None
    notes: tuple[str, ...] = ()
    parameters: int | None = None
    flops: int | None = None
    adjusted: int | None = None
    takes_seed: bool = False
    counts_flops: bool = True
    keeps_best: bool = True
    limits: tuple[str, ...] = ()
    error: str | None = None
    kind: Literal["mistake", "illegal"] | None = None
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Probe:
    """The timing of a few steps of a variant and the estimated duration of a whole run, in seconds.

    Attributes:
        startup: Time until the first step: imports, data, model.
        step: Time of an optimizer step.
        steps: The number of steps of a run.
        training: Time of all steps.
        validation: Time of one validation, extrapolated from a batch of an untrained model; if it generates, a trained model may take
            longer.
        validations: The number of validations of a run, including the pass through the test data.
        flops_per_token: Training FLOPs, forward and backward, per non-padding token; None without tokens.
        logged: The metrics that a validation logs; empty if the run has no sanity check.
    """

    startup: float
    step: float
    steps: float
    training: float
    validation: float
    validations: float
    flops_per_token: int | None = None
    logged: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """The duration of a whole run."""
        return self.startup + self.training + self.validation * self.validations


@dataclass(frozen=True, kw_only=True)
class Underway:
    """The progress of an unfinished run, stored as `progress.json` in its folder for live pages.

    Attributes:
        step: The optimizer steps so far.
        steps: The optimizer steps of the whole run; None if unknown.
        curve: The metrics of each validation so far, with `step`, `batches`, `tokens` and `seconds`; non-finite numbers are None.
    """

    step: int
    steps: int | None = None
    curve: tuple[Mapping[str, float | None], ...] = ()
