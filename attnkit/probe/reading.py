"""How probes read a task: its batches, its loss on them, its answers, and what its layers compute."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any, NamedTuple

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from attnkit.embedding import Embedding
from attnkit.models.base import generating
from attnkit.registry import ConfigurationError
from attnkit.task import Task
from attnkit.task.masked_lm import MaskedLM
from attnkit.tokenizer import Tokenizer

Batch = Mapping[str, Any]

_LAYER = re.compile(r"(?:^|\.)layers\.\d+$")


def batches_of(data: Any, count: int, device: torch.device) -> list[Batch]:
    """Return the first batches of the validation split, or of the test split if there is none, on a device; raise if there are none."""
    loaders: Any = data.val_dataloader() or data.test_dataloader()
    loader = loaders[0] if isinstance(loaders, Sequence) else loaders
    found: list[Batch] = [move_data_to_device(batch, device) for batch in islice(loader, count)]
    if not found:
        raise ConfigurationError("the data have neither validation nor test batches for the probe to read")
    return found


def loss(task: Task, batches: Sequence[Batch]) -> float:
    """Return the negative log-likelihood per target in nats, without dropout."""
    with generating(task):
        sums = [task.objective(_with_masks(task, batch)) for batch in batches]
    return float(sum(s.nll for s in sums) / sum(s.targets for s in sums))


class Answered(NamedTuple):
    """The logits [B, T, V] of a task that predicts a token at each position, and the targets [B, T], padding where nothing is scored."""

    logits: Tensor
    targets: Tensor

    @property
    def scored(self) -> Tensor:
        """Which targets count, bool [B, T]."""
        return self.targets != Tokenizer.pad_id

    @property
    def right(self) -> Tensor:
        """Which of them are the most probable tokens, bool [B, T]."""
        return (self.logits.argmax(-1) == self.targets) & self.scored


def answered(task: Task, batch: Batch) -> Answered:
    """Return the answers of a task, given the true prefix, to a batch with `src` and `tgt`, or with `tokens` and `targets`; or raise."""
    with generating(task):
        if "tgt" in batch:
            return Answered(task(batch["src"], batch["tgt"][:, :-1], batch.get("src_mask")), batch["tgt"][:, 1:])
        if "targets" in batch:
            return Answered(task(batch["tokens"], batch.get("documents")), batch["targets"])
    raise ConfigurationError(f"this probe needs a task that predicts one token after another, which {task.registered_name!r} does not")


def prompt_lengths(batch: Batch) -> Tensor:
    """Return the number of tokens [B] before the first answer of a row; of running text, which has no answers, all of them.

    Example:
        >>> batch = {"tokens": torch.ones(2, 4), "targets": torch.tensor([[0, 0, 7, 2], [8, 9, 7, 2]])}
        >>> prompt_lengths({**batch, "answers": torch.ones(2)}), prompt_lengths(batch)  # overlapping windows score a part, too
        (tensor([3, 1]), tensor([4, 4]))
    """
    real: Tensor = batch["targets" if "answers" in batch else "tokens"] != Tokenizer.pad_id
    return real.int().argmax(1) + 1 if "answers" in batch else real.sum(1)


@contextmanager
def layer_outputs(model: nn.Module) -> Iterator[dict[str, Tensor]]:
    """Record the outputs of embeddings and layers inside the `with` block, in the order of calls: by module path, [B, T, D], detached.

    The second call of a module, as of a shared layer, is `PATH #2`. Of N streams [B, T, N, D], their sum is recorded, which the head reads.
    """
    found: dict[str, Tensor] = {}
    calls = Counter[str]()

    def keep(path: str, output: Any) -> None:
        calls[path] += 1
        output = (output[0] if isinstance(output, tuple) else output).detach()
        found[path if calls[path] == 1 else f"{path} #{calls[path]}"] = output.sum(2) if output.ndim == 4 else output

    with ExitStack() as hooks:
        for path, module in model.named_modules():
            if _LAYER.search(path) or isinstance(module, Embedding):
                hooks.enter_context(module.register_forward_hook(lambda _, __, output, path=path: keep(path, output)))
        yield found


class Depth(NamedTuple):
    """The vectors of one depth of a stack: `encoder` or `decoder`, the number of layers below, and the real tokens with their ids."""

    part: str
    layer: int
    vectors: Tensor  # [N, D], float64
    tokens: Tensor  # [N]
    before: Tensor  # [N], the token before each, padding at the start
    positions: Tensor  # [N]
    rows: Tensor  # [N], the row of each


def depths(task: Task, batch: Batch) -> list[Depth]:
    """Return the vectors of the real tokens of a batch at each depth, from the embeddings to the highest layer; raise if there are none."""
    source, target = (batch.get("src"), batch["tgt"][:, :-1]) if "tgt" in batch else (batch.get("tokens"), None)
    if source is None:
        raise ConfigurationError(f"this probe needs batches of tokens, but this one has {', '.join(batch)}")
    with generating(task), layer_outputs(task.model) as found:
        task.objective(_with_masks(task, batch))
    counted: dict[str, int] = {}
    depths = []
    for call, output in sorted(found.items(), key=lambda item: not isinstance(task.model.get_submodule(_path(item[0])), Embedding)):
        path = _path(call).split(".")
        if "multi_token" in path:  # not a depth of the stack
            continue
        # the target is embedded first
        decodes = target is not None and ("decoder" in path or path[-1] == "tgt" or call.endswith("shared"))
        part = "decoder" if decodes else "encoder" if target is not None else "stack"
        ids = target if decodes and target is not None else source
        if output.shape[:2] != ids.shape:
            continue
        real = ids != Tokenizer.pad_id
        before = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1)
        rows, positions = (torch.arange(n, device=ids.device) for n in ids.shape)
        columns = (ids, before, positions.expand_as(ids), rows[:, None].expand_as(ids))
        layer = counted[part] = counted.get(part, -1) + 1
        depths.append(Depth(part, layer, output[real].double(), *(column[real] for column in columns)))
    if not depths:
        raise ConfigurationError("this model has no layers whose outputs could be read")
    return depths


def _path(call: str) -> str:
    """Return the module path of a call."""
    return call.partition(" ")[0]


def _with_masks(task: Task, batch: Batch) -> Any:
    return {**batch, "masked": task.hide(batch, 0, "evaluation")} if isinstance(task, MaskedLM) else batch
