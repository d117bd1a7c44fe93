"""Time the steps of `attnkit fit` against those of a plain loop with an equal model and optimizer.

`attnkit fit` runs as a user starts it, with its default callbacks, loggers and progress bar. After every TURN of its steps, a loop over
batches of the same framing takes as many: objective, backward, division by the number of targets, clipping, optimizer, schedule. The script
prints the median time of a step of both (processor time, on one thread; on a GPU, wall-clock time), and the overhead.

With `--peer`, the loop trains another model of the same sizes. For a recipe of texts, it is a decoder of `attnkit bench`, on the same rows:
`--peer torch` (written by hand), `nn.Transformer`, `transformers`, `x-transformers` or `litgpt`. For a recipe of pairs of texts, it is
torch's `nn.Transformer` on the same pairs, as users commonly write it: pairs sorted by the length of the source, in padded batches of a
fixed number of pairs (the average number in attnkit's batches). The script then prints the real target tokens per second of both, and the
ratio.

Usage: python scripts/overhead.py [--recipe NAME] [--turns N] [--peer [NAME]] [ARGUMENTS OF FIT ...]
"""

import argparse
import copy
import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from typing_extensions import override

import attnkit
from attnkit import draws
from attnkit.cli import AttnkitCLI
from attnkit.profile.peers import PEERS, peer
from attnkit.recipe import read_recipe
from attnkit.task.parameters import parameter_groups
from attnkit.train.inheritance import values_from_data

TURN = 25
"""Number of steps between clock readings."""


class Clock(Callback):
    """Time turns of the trainer's steps, each followed by a turn of another loop's steps.

    Args:
        recipe: The recipe to train.
    """

    def __init__(self, recipe: str) -> None:
        super().__init__()
        sections = read_recipe(recipe)
        self.data = attnkit.datasets.build(sections["data"])
        spec = attnkit.tasks.resolve(sections["model"])
        self.task = attnkit.tasks.build(spec.replace(**values_from_data(spec.name, sections["data"]["name"], self.data)))
        self.task.configure_model()
        self.batches = itertools.cycle(self.data.train_dataloader())
        self.model: nn.Module = self.task
        self.seconds: dict[str, list[float]] = {"attnkit fit": [], "other loop": []}
        self.tokens: dict[str, list[int]] = {"attnkit fit": [], "other loop": []}

    def compare(self) -> None:
        """Print the numbers of parameters of both models."""
        counts = [sum(p.numel() for p in m.parameters()) for m in (self.task, self.model)]
        print(f"parameters: {counts[0]:,} of attnkit, {counts[1]:,} of the other model", flush=True)

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.device = pl_module.device
        self.task.to(self.device)
        self.model.to(self.device)
        (optimizer,) = trainer.optimizers
        (config,) = trainer.lr_scheduler_configs
        kind: Any = type(optimizer)
        scheduler: Any = config.scheduler
        settings = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
        self.optimizer = kind([{**own, **group} for own, group in zip(settings, parameter_groups(self.model), strict=True)])
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, copy.copy(scheduler.lr_lambdas[0]))
        self.began, self.read = self.clock(), 0

    def clock(self) -> float:
        """Return the processor time, or on a GPU the wall-clock time after all queued work."""
        if self.device.type != "cuda":
            return time.process_time()
        torch.cuda.synchronize()
        return time.perf_counter()

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.read += targets(batch)
        if (batch_idx + 1) % TURN:
            return
        self.note("attnkit fit")
        for _ in range(TURN):
            self.step(trainer)
        self.note("other loop")

    def note(self, name: str) -> None:
        """Record the time and the tokens of a finished turn."""
        self.seconds[name].append(self.clock() - self.began)
        self.tokens[name].append(self.read)
        self.began, self.read = self.clock(), 0

    def step(self, trainer: Trainer) -> None:
        """Take a step of the other loop."""
        batch = next(self.batches)
        self.read += targets(batch)
        batch = move_data_to_device(batch, self.device)
        draws.begin(self.task.row_keys(batch, 0, 0, 0))
        with trainer.precision_plugin.forward_context():
            sums = self.task.objective(batch)
        sums.loss.backward()
        for parameter in self.task.parameters():
            if parameter.grad is not None:
                parameter.grad.div_(sums.targets)
        self.update()

    def update(self) -> None:
        """Clip the gradient, and take a step of the optimizer and its schedule."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()


class TorchSeq2Seq(nn.Module):
    """`nn.Transformer` between scaled embeddings with sinusoidal positions and the transposed embedding of the targets."""

    positions: Tensor

    def __init__(self, *, d_model: int, num_layers: int, num_heads: int, ffn_dim: int, vocab_sizes: tuple[int, int]) -> None:
        super().__init__()
        self.scale = d_model**0.5
        self.src, self.tgt = (nn.Embedding(size, d_model, padding_idx=0) for size in vocab_sizes)
        for table in (self.src, self.tgt):
            nn.init.normal_(table.weight, std=d_model**-0.5)
        self.model = nn.Transformer(d_model, num_heads, num_layers, num_layers, ffn_dim, dropout=0.0, batch_first=True)
        angles = torch.arange(512)[:, None] / 1e4 ** (torch.arange(0, d_model, 2) / d_model)
        self.register_buffer("positions", torch.stack([angles.sin(), angles.cos()], -1).flatten(1))  # [512, D]

    @override
    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        x, y = (table(ids) * self.scale + self.positions[: ids.shape[1]] for table, ids in ((self.src, src), (self.tgt, tgt)))
        causal = nn.Transformer.generate_square_subsequent_mask(tgt.shape[1], device=tgt.device)
        padded, written = ((torch.zeros(ids.shape, device=ids.device).masked_fill(ids == 0, float("-inf"))) for ids in (src, tgt))
        masks = {"src_key_padding_mask": padded, "tgt_key_padding_mask": written, "memory_key_padding_mask": padded}
        return F.linear(self.model(x, y, tgt_mask=causal, tgt_is_causal=True, **masks), self.tgt.weight)


class DecoderClock(Clock):
    """A clock whose other loop trains a decoder of `attnkit bench`, by name, on the rows of the recipe."""

    def __init__(self, recipe: str, name: str) -> None:
        super().__init__(recipe)
        sections = read_recipe(recipe)
        spec = {**sections["model"]["stack"], "stack": "decoder", "vocab_size": len(self.data.tokenizer)}
        self.model = peer(name, spec, max_length=sections["data"]["context"])
        self.compare()

    @override
    def step(self, trainer: Trainer) -> None:
        batch = move_data_to_device(next(self.batches), self.device)
        self.read += targets(batch)
        with trainer.precision_plugin.forward_context():
            logits = self.model(batch["tokens"])
        loss = F.cross_entropy(logits.float().flatten(0, 1), batch["targets"].flatten(), ignore_index=0)
        torch.autograd.backward(loss)
        self.update()


class PairClock(Clock):
    """A clock whose other loop trains `nn.Transformer` on batches of pairs with sources of similar length."""

    def __init__(self, recipe: str) -> None:
        super().__init__(recipe)
        stack, vocab_sizes = read_recipe(recipe)["model"]["stack"], (len(self.data.src_tokenizer), len(self.data.tgt_tokenizer))
        sizes = {key: stack[key] for key in ("d_model", "num_layers", "num_heads")}
        self.model = TorchSeq2Seq(**sizes, ffn_dim=stack["feed_forward"]["ffn_dim"], vocab_sizes=vocab_sizes)
        self.compare()
        batches = list(self.data.train_dataloader())
        self.pairs = [(s[s != 0], t[t != 0]) for batch in batches for s, t in zip(batch["src"], batch["tgt"], strict=True)]
        self.size = round(len(self.pairs) / len(batches))
        self.buckets = self.bucketed()

    def bucketed(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches of pairs, sorted by the length of the source, in random order."""
        generator = torch.Generator().manual_seed(0)
        order = sorted(torch.randperm(len(self.pairs), generator=generator).tolist(), key=lambda i: len(self.pairs[i][0]))
        starts = range(0, len(order), self.size)
        for i in itertools.cycle(torch.randperm(len(starts), generator=generator).tolist()):
            rows = [self.pairs[row] for row in order[starts[i] : starts[i] + self.size]]
            src, tgt = (pad_sequence(list(side), batch_first=True) for side in zip(*rows, strict=True))
            yield src, tgt

    @override
    def step(self, trainer: Trainer) -> None:
        src, tgt = next(self.buckets)
        self.read += targets({"tgt": tgt})
        src, tgt = src.to(self.device), tgt.to(self.device)
        with trainer.precision_plugin.forward_context():
            logits = self.model(src, tgt[:, :-1])
        loss = F.cross_entropy(logits.float().flatten(0, 1), tgt[:, 1:].flatten(), ignore_index=0, label_smoothing=0.1)
        torch.autograd.backward(loss)
        self.update()


def targets(batch: Any) -> int:
    """Return the number of real target tokens in a batch of pairs or of rows of text; 0 for other batches."""
    found = batch["tgt"][:, 1:] if "tgt" in batch else batch.get("targets")
    return 0 if found is None else int(found.count_nonzero())


def main() -> None:
    """Run `attnkit fit` with the clock, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="g2p/transformer")
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--peer", nargs="?", const="nn.Transformer", choices=PEERS)
    chosen, fit_arguments = parser.parse_known_args()
    torch.set_num_threads(1)
    steps = (chosen.turns + 1) * TURN
    if chosen.peer is None:
        clock = Clock(chosen.recipe)
    elif read_recipe(chosen.recipe)["model"]["name"] == "causal_lm":
        clock = DecoderClock(chosen.recipe, chosen.peer)
    elif chosen.peer == "nn.Transformer":
        clock = PairClock(chosen.recipe)
    else:
        parser.error("pairs of texts are compared with nn.Transformer alone")
    with tempfile.TemporaryDirectory() as folder:
        limits = {"default_root_dir": folder, "max_steps": steps, "max_epochs": 1, "limit_train_batches": steps, "limit_val_batches": 0}
        arguments = ["fit", "--config", chosen.recipe, *(f"--trainer.{key}={value}" for key, value in limits.items()), *fit_arguments]
        AttnkitCLI(args=arguments, trainer_defaults={"callbacks": [clock]})
    turns = {name: seconds[1:] for name, seconds in clock.seconds.items()}  # the first turn warms up
    for name, times in turns.items():
        spread = (sorted(times)[-len(times) // 4] - sorted(times)[len(times) // 4]) / TURN * 1e3
        rates = [count / second for count, second in zip(clock.tokens[name][1:], times, strict=True)]
        tokens = f", {statistics.median(rates):,.0f} real target tokens per second" if any(rates) else ""
        print(f"{name:<12} {statistics.median(times) / TURN * 1e3:7.2f} ms per step, quartiles {spread:.2f} apart{tokens}")
        turns[name] = [second / count for count, second in zip(clock.tokens[name][1:], times, strict=True)] if chosen.peer else times
    ratios = [b / a for a, b in zip(*turns.values(), strict=True)]
    if chosen.peer:
        print(
            f"attnkit is {statistics.median(ratios):.2f} times as fast, from {min(ratios):.2f} to {max(ratios):.2f} in {len(ratios)} turns"
        )
    else:
        print(f"overhead {statistics.median(1 / ratio for ratio in ratios) - 1:.1%}")


if __name__ == "__main__":
    main()
