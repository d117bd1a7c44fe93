"""The states of the global random generators, as plain data and tensors, so that a data-only checkpoint can hold them."""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the generators of torch, numpy and Python, and of `device` if that is a GPU.

    Example:
        >>> state = random_states(torch.device("cpu"))
        >>> first = random.random(), np.random.rand(), torch.rand(1)
        >>> restore_random_states(state, torch.device("cpu"))
        >>> first == (random.random(), np.random.rand(), torch.rand(1))
        True
    """
    numbers = np.random.get_state(legacy=False)
    version, integers, gauss = random.getstate()
    states = {
        "torch": torch.get_rng_state(),
        "numpy": {**numbers, "state": {**numbers["state"], "key": torch.from_numpy(numbers["state"]["key"].astype(np.int64))}},
        "python": [version, torch.tensor(integers), gauss],
    }
    return states | ({"cuda": torch.cuda.get_rng_state(device)} if device.type == "cuda" else {})


def restore_random_states(states: Mapping[str, Any], device: torch.device) -> None:
    """Restore what `random_states` returned."""
    torch.set_rng_state(states["torch"])
    numbers = states["numpy"]
    np.random.set_state({**numbers, "state": {**numbers["state"], "key": numbers["state"]["key"].numpy().astype(np.uint32)}})
    version, integers, gauss = states["python"]
    random.setstate((version, tuple(integers.tolist()), gauss))
    if "cuda" in states and device.type == "cuda":
        torch.cuda.set_rng_state(states["cuda"], device)
