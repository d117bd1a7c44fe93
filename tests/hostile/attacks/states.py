"""Checkpoints of a good model with a damaged training state."""

from pathlib import Path
from typing import Any

import torch

from tests.hostile.attacks.base import Attacks, changed

STATES = Attacks()


@STATES
def has_a_number_for_its_loops(good: dict[str, Any], path: Path) -> None:
    """Has a number where the state of the loops should be."""
    changed(good, path, loops=3)


@STATES
def has_loops_without_counters(good: dict[str, Any], path: Path) -> None:
    """Has a state of the loops that lacks its counters."""
    loops = good["loops"]
    changed(good, path, loops=loops | {"fit_loop": loops["fit_loop"] | {"epoch_progress": {"total": {}}}})


@STATES
def has_numbers_for_optimizers(good: dict[str, Any], path: Path) -> None:
    """Has numbers where states of optimizers should be."""
    changed(good, path, optimizer_states=[3])


@STATES
def has_averages_of_other_shapes(good: dict[str, Any], path: Path) -> None:
    """Has averages of the optimizer in other shapes than the parameters."""
    [states] = good["optimizer_states"]
    wrong = {index: {name: torch.zeros(3, 1, 4) if v.ndim else v for name, v in of.items()} for index, of in states["state"].items()}
    changed(good, path, optimizer_states=[states | {"state": wrong}])


@STATES
def has_texts_for_schedules(good: dict[str, Any], path: Path) -> None:
    """Has a text where states of schedules should be."""
    changed(good, path, lr_schedulers=["a"])


@STATES
def has_lists_for_random_states(good: dict[str, Any], path: Path) -> None:
    """Has a list where the states of the random generators should be."""
    changed(good, path, random_states=[[1, 2]])


@STATES
def has_no_position_in_its_data(good: dict[str, Any], path: Path) -> None:
    """Has a text where the position in the data should be, and says that an epoch is under way."""
    loops = good["loops"]
    fit_loop = dict(loops["fit_loop"])
    progress = fit_loop["epoch_loop.batch_progress"]
    counts = {"ready": 1, "started": 1, "processed": 1, "completed": 1}
    fit_loop["epoch_loop.batch_progress"] = progress | {"current": counts, "total": counts, "is_last_batch": False}
    zero = dict.fromkeys(counts, 0)
    fit_loop["epoch_progress"] = {"total": zero | {"ready": 1, "started": 1}, "current": zero | {"ready": 1, "started": 1}}
    changed(good, path, loops=loops | {"fit_loop": fit_loop}, data_position="checksum")


@STATES
def has_texts_for_states_of_callbacks(good: dict[str, Any], path: Path) -> None:
    """Has texts where the states of callbacks should be."""
    changed(good, path, callbacks=good["callbacks"] | {"FiniteCheck": "a"})
