"""The budget of every run of a study. No torch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self, get_args

from attnkit.registry import ConfigurationError, nearest


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The budget of every run of every variant: a run ends at the first step at which `limit` is reached."""

    on: Literal["steps", "tokens", "flops", "seconds"]
    limit: float

    @property
    def overrides(self) -> dict[str, Any]:
        """The changes to the recipe, by dotted key. The length of the schedule is known in advance only if the budget is in `steps`."""
        ends = {"trainer.min_epochs": None, "trainer.min_steps": None, "trainer.max_time": None}
        return ends | ({"trainer.max_epochs": -1, "trainer.max_steps": self.limit} if self.on == "steps" else {})

    @classmethod
    def read(cls, given: Any) -> Self:
        """Read the budget of a study file, such as `{steps: 1000}`; raise unless it is one unit with a positive number."""
        known = get_args(Budget.__annotations__["on"])
        if not isinstance(given, Mapping) or len(given) != 1:
            raise ConfigurationError(f"budget must be exactly one of {', '.join(known)}, as in {{steps: 1000}}, but is {given!r}")
        [(on, limit)] = given.items()
        if on not in known:
            raise ConfigurationError(f"budget: unknown {on!r}.{nearest(str(on), known)} One of: {', '.join(known)}.")
        least = 0 if on == "seconds" else 1
        if isinstance(limit, bool) or not isinstance(limit, int | float) or not least <= limit < math.inf or not limit:
            raise ConfigurationError(f"budget: {on} must be a number {'of at least 1' if least else 'above 0'}, but is {limit!r}")
        return cls(on=on, limit=limit if on == "seconds" else int(limit))
