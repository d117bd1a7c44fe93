"""What makes a resumed run equal to the uninterrupted one: where it stood, and its random states.

Lightning saves at several moments of a step (before and after validation, before and after the end of an epoch), and on resuming guesses
from its counters which one it was. Here a checkpoint of any moment says the same: so many batches of an epoch are done, or none.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer

RANDOM = "random_states"  # in a checkpoint: one for each process


def settle(fit_loop: Mapping[str, Any], *, steps: int) -> None:
    """Rewrite the saved state of Lightning's fit loop as it is between two batches, or before an epoch.

    Args:
        fit_loop: The state.
        steps: How many optimizer steps were made.
    """
    epoch, batch = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    done = ("ready", "started", "completed")
    if epoch["current"]["processed"] == epoch["current"]["ready"] or batch["current"]["processed"] == 0:  # no epoch has begun
        for counts in (epoch["total"], epoch["current"]):
            counts |= dict.fromkeys(done, counts["processed"])
        batch["current"] |= dict.fromkeys(batch["current"], 0)
        batch["is_last_batch"] = False
    for counts in (batch["total"], batch["current"]):  # the next one may have been fetched, and this one's hooks may have begun
        counts |= dict.fromkeys(done, counts["processed"])
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = steps


def take_up(trainer: Trainer) -> None:
    """Let a trainer that has loaded a settled state go on from it; to be called when its training starts."""
    fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    loader, fetcher = fit_loop._combined_loader, fit_loop._data_fetcher
    assert loader is not None
    assert fetcher is not None
    if not fit_loop.is_resuming:
        return
    done = loop.batch_progress.current.completed
    samplers: list[Any] = [getattr(one, "sampler", None) for one in loader.flattened]
    for sampler in samplers:
        if hasattr(sampler, "start"):  # attnkit's own
            sampler.start = done if loop.restarting else 0
            sampler.set_epoch(trainer.current_epoch)
    iter(fetcher)  # workers ask for batches at once, and Lightning began before it had read the checkpoint
    if not loop.restarting:
        return
    if done == 0:
        loop.restarting = False  # with max_steps, Lightning takes every run for one that stopped within an epoch
    elif done >= trainer.num_training_batches:
        loop.val_loop._has_run = True  # so that the epoch ends
    elif loop._should_check_val_fx(fetcher) and not loop._should_accumulate():
        loop._batches_that_stepped -= 1  # Lightning counts it again when it passes the validation that was before the checkpoint


def random_states(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the states of the global generators of each process, as plain data and tensors; to be called by all processes."""
    numbers = np.random.get_state(legacy=False)
    version, integers, gauss = random.getstate()
    state = {
        "torch": torch.get_rng_state(),
        "numpy": {**numbers, "state": {**numbers["state"], "key": torch.from_numpy(numbers["state"]["key"].astype(np.int64))}},
        "python": [version, torch.tensor(integers), gauss],
    }
    if trainer.strategy.root_device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(trainer.strategy.root_device)
    states: list[Any] = [state] * trainer.world_size
    if trainer.world_size > 1 and dist.is_initialized():
        dist.all_gather_object(states, state)
    return states


def restore_random_states(trainer: Trainer, state: Mapping[str, Any]) -> None:
    """Set the global generators of this process."""
    torch.set_rng_state(state["torch"])
    numbers = state["numpy"]
    np.random.set_state({**numbers, "state": {**numbers["state"], "key": numbers["state"]["key"].numpy().astype(np.uint32)}})
    version, integers, gauss = state["python"]
    random.setstate((version, tuple(integers.tolist()), gauss))
    if "cuda" in state and trainer.strategy.root_device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], trainer.strategy.root_device)


def seed_dropout(trainer: Trainer) -> None:
    """Give torch's global generators a seed of their own for the training, so that the model's initialisation does not move dropout.

    It follows from the seed of `seed_everything` and from the share of the data that this process has; processes that work on the same
    examples (tensor parallelism) draw the same.
    """
    share = (trainer.distributed_sampler_kwargs or {}).get("rank", 0)
    words = np.random.SeedSequence([torch.initial_seed(), share]).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> np.uint64(1)))  # of CUDA too
