# https://arxiv.org/abs/2009.06732
"""Time and memory by length."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.models.base import GeneratingModel, generating
from attnkit.models.encoder_decoder import EncoderDecoderModel
from attnkit.probe.base import Probe, Row, vocabulary_of
from attnkit.profile.flops import trained_outputs
from attnkit.registry import ConfigurationError, probes
from attnkit.state import tensors_in
from attnkit.task import Task
from attnkit.tokenizer import Tokenizer


@probes.register("cost")
class Cost(Probe):
    """Time and memory of training and decoding by length.

    Limits: Times hold for this machine, these widths and this batch, and say nothing about other kernels; the bytes are counted, not
    measured, and leave out what a kernel uses while it runs.

    `train_ms` is the time of a forward and a backward pass of a batch, the median of `repeats`; `train_mb` is the memory of the activations
    that are kept for the backward pass, each counted once. `decode_ms` is the time of one more token after `length` tokens, and `state_mb`
    is the memory of the state that these tokens leave; both are missing for a model that does not generate. In an encoder-decoder, source
    and target have this length.

    Paper: Tay et al. 2020, https://arxiv.org/abs/2009.06732 (a survey of the costs)

    Args:
        lengths: The lengths.
        rows: Rows of a batch.
        repeats: Repetitions of each measurement.
        clock: `wall`, or `cpu`: the processor time of this process, which other load on the machine barely affects; the command
            then computes on the CPU.
    """

    x = "length"
    y = ("train_ms", "train_mb", "decode_ms", "state_mb")
    log = "xy"
    needs_data = False

    def __init__(
        self, *, lengths: Sequence[int] = (64, 128, 256, 512, 1024), rows: int = 1, repeats: int = 3, clock: Literal["wall", "cpu"] = "wall"
    ) -> None:
        if rows < 1 or repeats < 1:
            raise ConfigurationError(f"rows and repeats must be at least 1, but are {rows} and {repeats}")
        self.lengths, self.row_count, self.repeats = list(lengths), rows, repeats
        self.on_cpu = clock == "cpu"
        self.clock = time.perf_counter if clock == "wall" else time.process_time

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        size = vocabulary_of(task)
        return [self._row(task, torch.arange(length, device=task.device) % (size - 4) + 4, length) for length in self.lengths]

    def _row(self, task: Task, ids: Tensor, length: int) -> Row:
        model: Any = task.model
        tokens = ids.expand(self.row_count, -1).clamp(min=len(Tokenizer.special_tokens))
        inputs = (tokens, tokens % 2 + 1) if isinstance(model, EncoderDecoderModel) else (tokens,)
        further = trained_outputs(model)
        kept: dict[int, int] = {}

        def keep(saved: Tensor) -> Tensor:
            storage = saved.untyped_storage()
            kept[storage.data_ptr()] = storage.nbytes()
            return saved

        def train() -> None:
            with torch.enable_grad(), torch.backends.cudnn.flags(enabled=False):
                outputs: Any = model(*inputs, **further)
                torch.autograd.grad(sum(logits.sum() for logits in (outputs if further else [outputs])), parameters)

        parameters = [p for p in model.parameters() if p.requires_grad]
        weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
        with generating(model):
            with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
                model(*inputs, **further)
            train_ms = self._milliseconds(train)
        row: Row = {"length": length, "train_ms": train_ms, "train_mb": sum(n for p, n in kept.items() if p not in weights) / 1e6}
        if isinstance(model, GeneratingModel):
            with generating(model):
                start = model.begin(tokens)
                state = model.step(tokens if start.state is None else tokens % 2 + 1, start.state)[1]
                size = sum(tensor.nbytes for tensor in tensors_in(state)) / 1e6

                first = tokens[:, : max(1, length - self.repeats)]  # the last call then reads as many tokens
                start = model.begin(first if start.state is None else tokens)
                state = model.step(first if start.state is None else first % 2 + 1, start.state)[1]

                def write() -> None:
                    nonlocal state
                    state = model.step(tokens[:, -1:], state)[1]  # a state that is continued twice would be copied

                row |= {"decode_ms": self._milliseconds(write), "state_mb": size}
        return row

    def _milliseconds(self, run: Callable[[], Any]) -> float:
        """Return the median time of a call, after one to warm up."""
        times = []
        for _ in range(self.repeats + 1):
            start = self.clock()
            run()
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            times.append(1000 * (self.clock() - start))
        return median(times[1:])
