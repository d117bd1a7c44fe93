# https://arxiv.org/abs/1506.03099
"""The error of a model that reads its own output, compared with one that reads the truth."""

from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from attnkit.models.base import GeneratingModel
from attnkit.probe.base import Probe, Row
from attnkit.probe.reading import answered, batches_of, prompt_lengths
from attnkit.registry import ConfigurationError, probes
from attnkit.task import Task
from attnkit.task.generating import input_mask
from attnkit.tokenizer import Tokenizer


@probes.register("free_running")
class FreeRunning(Probe):
    """The fraction of wrong tokens by position: when the model reads the true prefix, and when it reads its own greedy output.

    Limits: It shows how errors add up along the output of greedy decoding; a token counts as wrong if the reference has another one at its
    place, so an output that is merely longer, or right in another way, counts as wrong too.

    The model generates the first answer of a row, or in running text, the second half of a window, up to the end of the document; with
    `data.document_mask`, it reads only the part of the first half that belongs to this document.

    Paper: Bengio et al. 2015, https://arxiv.org/abs/1506.03099; Ranzato et al. 2015, https://arxiv.org/abs/1511.06732 (exposure bias)

    Args:
        batches: Batches of data that are read.
    """

    x = "position"
    y = ("teacher_forced", "free_running")

    def __init__(self, *, batches: int = 4) -> None:
        self.batches = batches

    @override
    def rows(self, task: Task, data: Any) -> list[Row]:
        model: Any = task.model
        if not isinstance(model, GeneratingModel):
            raise ConfigurationError(f"this probe needs a model that generates, but {type(model).__name__} does not")
        wrong: list[Tensor] = []  # [N, 2] of each position
        for batch in batches_of(data, self.batches, task.device):
            answer = answered(task, batch)
            chosen, targets, scored = answer.logits.argmax(-1), answer.targets, answer.scored
            inputs, start = batch.get("src"), torch.zeros(len(targets), dtype=torch.int64, device=targets.device)
            if inputs is None:
                lengths = prompt_lengths(batch)
                if "answers" not in batch:  # running text: its second half, or what is scored of it
                    lengths = torch.maximum(lengths // 2, scored.int().argmax(1) + 1)
                start, inputs = lengths - 1, batch["tokens"]
                inputs = inputs[:, : int(lengths.max())] * (torch.arange(int(lengths.max()), device=targets.device) < lengths[:, None])
                if "documents" in batch:
                    documents = batch["documents"]
                    inputs = inputs * (documents[:, : inputs.shape[1]] == documents.gather(1, start[:, None]))
            width = targets.shape[1]
            places = start[:, None] + torch.arange(width, device=targets.device)
            columns, inside = places.clamp(max=width - 1), places < width
            truth, forced = targets.gather(1, columns), chosen.gather(1, columns)
            ends = (truth == Tokenizer.eos_id).int()
            counted = (scored.gather(1, columns) & inside & (ends.cumsum(1) == ends)).int().cumprod(1).bool()  # the first answer only
            length = int(counted.sum(1).max())
            real = batch["src_mask"] if "src_mask" in batch else input_mask(inputs)
            free = model.generate(inputs, real, max_length=length, beam_size=1)
            free = torch.nn.functional.pad(free, (0, length - free.shape[1]), value=Tokenizer.pad_id)
            for t in range(length):
                rows = counted[:, t]
                errors = torch.stack([forced[rows, t] != truth[rows, t], free[rows, t] != truth[rows, t]], 1)
                if t == len(wrong):
                    wrong.append(errors)
                else:
                    wrong[t] = torch.cat([wrong[t], errors])
        means = [errors.double().mean(0).tolist() for errors in wrong]
        return [{"position": t, "teacher_forced": forced, "free_running": free} for t, (forced, free) in enumerate(means)]
