"""Time what a step of `attnkit fit` costs besides the model: its loop against a plain one with equal models, batches and optimizers.

`attnkit fit` runs as a user starts it, with its default callbacks, loggers and progress bar. After every TURN of its steps, as many are
taken by a loop over the same framing's batches: objective, backward, division by the count of targets, clipping, optimizer, schedule.
Prints the median processor time of a step of both, on one thread, and the overhead.

Usage: python scripts/overhead.py [--recipe NAME] [--turns N] [ARGUMENTS OF FIT ...]
"""

import argparse
import copy
import itertools
import statistics
import tempfile
import time
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from typing_extensions import override

import attnkit
from attnkit import draws
from attnkit.cli import AttnkitCLI
from attnkit.recipe import read_recipe
from attnkit.task.parameters import parameter_groups
from attnkit.train.inheritance import values_from_data

TURN = 25
"""Steps between two looks at the clock."""


class Clock(Callback):
    """Time turns of the trainer's steps, and after each of them a turn of the plain loop's.

    Args:
        recipe: The recipe that is trained.
    """

    def __init__(self, recipe: str) -> None:
        super().__init__()
        given = read_recipe(recipe)
        self.data = attnkit.datasets.build(given["data"])
        spec = attnkit.tasks.resolve(given["model"])
        self.task = attnkit.tasks.build(spec.replace(**values_from_data(spec.name, given["data"]["name"], self.data)))
        self.task.configure_model()
        self.batches = itertools.cycle(self.data.train_dataloader())
        self.trainer_turns: list[float] = []
        self.plain_turns: list[float] = []

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        (optimizer,) = trainer.optimizers
        (scheduler,) = (config.scheduler for config in trainer.lr_scheduler_configs)
        settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        groups = [{**own, **group} for own, group in zip(settings, parameter_groups(self.task), strict=True)]
        self.optimizer = type(optimizer)(groups)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, copy.copy(scheduler.lr_lambdas[0]))
        self.began = time.process_time()

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (batch_idx + 1) % TURN:
            return
        self.trainer_turns.append(time.process_time() - self.began)
        self.began = time.process_time()
        for _ in range(TURN):
            self.step(trainer)
        self.plain_turns.append(time.process_time() - self.began)
        self.began = time.process_time()

    def step(self, trainer: Trainer) -> None:
        """Take a step of the plain loop."""
        batch = next(self.batches)
        draws.begin(self.task.row_keys(batch, 0, 0, 0))
        with trainer.precision_plugin.forward_context():
            sums = self.task.objective(batch)
        sums.loss.backward()
        for parameter in self.task.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(sums.targets)
        torch.nn.utils.clip_grad_norm_(self.task.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()


def main() -> None:
    """Run `attnkit fit` with the clock and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="g2p/transformer")
    parser.add_argument("--turns", type=int, default=12)
    chosen, others = parser.parse_known_args()
    torch.set_num_threads(1)
    clock, steps = Clock(chosen.recipe), (chosen.turns + 1) * TURN
    with tempfile.TemporaryDirectory() as folder:
        own = {"default_root_dir": folder, "max_steps": steps, "max_epochs": 1, "limit_train_batches": steps, "limit_val_batches": 0}
        arguments = ["fit", "--config", chosen.recipe, *(f"--trainer.{key}={value}" for key, value in own.items()), *others]
        AttnkitCLI(args=arguments, trainer_defaults={"callbacks": [clock]})
    trainer, plain = (sorted(turns[1:]) for turns in (clock.trainer_turns, clock.plain_turns))  # the first turn warms up
    for name, turns in (("attnkit fit", trainer), ("plain loop", plain)):
        spread = (turns[-len(turns) // 4] - turns[len(turns) // 4]) / TURN * 1e3
        print(f"{name:<12} {statistics.median(turns) / TURN * 1e3:7.2f} ms a step, quartiles {spread:.2f} apart")
    print(f"overhead {statistics.median(a / b for a, b in zip(clock.trainer_turns[1:], clock.plain_turns[1:], strict=True)) - 1:.1%}")


if __name__ == "__main__":
    main()
