"""What makes a resumed run equal to the uninterrupted one: where it stood, and its random states.

Lightning saves at several moments of a step (before and after validation, before and after the end of an epoch), and on resuming guesses
from its counters which one it was. Here a checkpoint of any moment says the same: so many batches of an epoch are done, or none.
"""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn

from attnkit.strategy import data_share

DATA_POSITION = "data_position"  # in a checkpoint: what has been seen of the data in the epoch
RANDOM = "random_states"  # in a checkpoint: one for each process
DRAW_SEED = "draw_seed"  # in a checkpoint: that of dropout
WITHIN_STEP = "within_step"  # in a checkpoint: whether it lacks the gradients of the first micro-batches of a step


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
    if batch["current"]["ready"] > batch["current"]["processed"]:
        batch["is_last_batch"] = False  # the last one was fetched, but is not done
    for counts in (batch["total"], batch["current"]):  # the next one may have been fetched, and this one's hooks may have begun
        counts |= dict.fromkeys(done, counts["processed"])
    fit_loop["epoch_loop.state_dict"]["_batches_that_stepped"] = steps


def is_within_step(fit_loop: Mapping[str, Any], *, accumulated: int) -> bool:
    """Return whether a settled state is from between two micro-batches of a step.

    Args:
        fit_loop: The state.
        accumulated: How many micro-batches make a step.
    """
    batch = fit_loop["epoch_loop.batch_progress"]
    return bool(batch["current"]["processed"] % accumulated != 0 and not batch["is_last_batch"])


def data_position(trainer: Trainer, fit_loop: Mapping[str, Any]) -> dict[str, int]:
    """Return how much of the current epoch is done, which is the same on any number of processes that share the batches.

    Args:
        trainer: The trainer.
        fit_loop: The settled state of its fit loop.

    Returns:
        `epoch`; `batches`, those of all processes together, and of attnkit's own data modules also `examples`, those in these batches, and
        `checksum`, which tells these batches from others.
    """
    batches = fit_loop["epoch_loop.batch_progress"]["current"]["processed"]
    position = {"epoch": fit_loop["epoch_progress"]["current"]["processed"], "batches": batches}
    for sampler in _samplers(trainer):
        position["examples"], position["checksum"] = sampler.seen(batches)
    return position


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


def go_on(trainer: Trainer, states: Sequence[Mapping[str, Any]] | None, position: Mapping[str, int] | None) -> None:
    """Resume a run where it stopped, or seed the generators of a new one; to be called when the training starts.

    Args:
        trainer: The trainer; the checkpoint that it has loaded is settled.
        states: The random states in the checkpoint.
        position: The data position in the checkpoint.
    """
    if trainer.fit_loop.is_resuming:
        _take_up(trainer, position)
    if trainer.fit_loop.is_resuming and states is not None and len(states) == trainer.world_size:
        _restore(trainer, states[trainer.global_rank])
        return
    if trainer.fit_loop.is_resuming:
        rank_zero_info(
            f"The checkpoint has the states of torch's global generators for {len(states or ())} processes, and this run has "
            f"{trainer.world_size}: modules of your own that draw from them start from new states. attnkit's data, masks and dropout are "
            f"functions of seed, epoch and example, and are the same."
        )
    _seed_generators(trainer)


def _samplers(trainer: Trainer) -> list[Any]:
    """Return attnkit's samplers of the training data: none if the data are of another kind."""
    loader = trainer.fit_loop._combined_loader
    samplers = [getattr(one, "sampler", None) for one in (() if loader is None else loader.flattened)]
    return [sampler for sampler in samplers if hasattr(sampler, "seen")]


def _take_up(trainer: Trainer, position: Mapping[str, int] | None) -> None:
    fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    fetcher = fit_loop._data_fetcher
    assert fetcher is not None
    done = loop.batch_progress.current.completed
    for sampler in _samplers(trainer):
        sampler.start = done if loop.restarting else 0
        sampler.set_epoch(trainer.current_epoch)
        if loop.restarting and position is not None and "checksum" in position:
            _compare(position, sampler.seen(done))
    iter(fetcher)  # workers ask for batches at once, and Lightning began before it had read the checkpoint
    if not loop.restarting:
        return
    if done == 0:
        loop.restarting = False  # with max_steps, Lightning takes every run for one that stopped within an epoch
        return
    if done >= trainer.num_training_batches:
        fetcher.done = True  # nothing is left of the epoch but its end
    if loop._should_accumulate():
        rank_zero_warn("The checkpoint is from between two micro-batches of a step, and lacks the gradients of the first ones.")
    elif loop._should_check_val_fx(fetcher):
        loop._batches_that_stepped -= 1  # Lightning counts it again when it passes the validation that was before the checkpoint


def _compare(position: Mapping[str, int], seen: tuple[int, int]) -> None:
    """Warn if the batches that count as done are not those that the checkpoint was trained on."""
    if seen != (position["examples"], position["checksum"]):
        rank_zero_warn(
            f"The checkpoint is from the middle of an epoch, after {position['batches']} batches with {position['examples']} examples, but "
            f"the first {position['batches']} batches are now others, with {seen[0]} examples: the data, data.seed, data.batch_tokens or "
            f"data.batch_size have changed. In the rest of this epoch some examples come a second time and others not at all."
        )


def _restore(trainer: Trainer, state: Mapping[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    numbers = state["numpy"]
    np.random.set_state({**numbers, "state": {**numbers["state"], "key": numbers["state"]["key"].numpy().astype(np.uint32)}})
    version, integers, gauss = state["python"]
    random.setstate((version, tuple(integers.tolist()), gauss))
    if "cuda" in state and trainer.strategy.root_device.type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], trainer.strategy.root_device)


def _seed_generators(trainer: Trainer) -> None:
    """Give torch's global generators a seed of their own for the training, so that what is drawn there does not depend on initialisation.

    attnkit itself draws nothing from them in training; modules of a user's own may. The seed follows from that of `seed_everything` and
    from the share of the data that this process has; processes that work on the same examples (tensor parallelism) draw the same.
    """
    words = np.random.SeedSequence([torch.initial_seed(), data_share(trainer).rank]).generate_state(2, np.uint64)
    torch.manual_seed(int(words[0] >> np.uint64(1)))  # of CUDA too
