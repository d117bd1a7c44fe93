"""Errors raised while reading checkpoints."""

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from attnkit.registry import ConfigurationError

REAL = (torch.float64, torch.float32, torch.bfloat16, torch.float16)  # precisions in which models compute


class CheckpointError(ConfigurationError):
    """A checkpoint that cannot be used; the message says what is wrong with it and what to do."""


class MissingComponentError(CheckpointError):
    """An intact checkpoint whose model needs a component that is not installed."""


class ArchiveError(ConfigurationError):
    """A file that cannot be read as data; the message says why, but not which file."""


class ForeignError(ArchiveError):
    """An intact file that holds more than tensors and plain data."""


class HalfWrittenError(ArchiveError):
    """A part of a sharded checkpoint is missing or truncated."""


def other_numbers(weights: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Return a message for each weight whose numbers are of a different kind from the module's own, which torch would convert silently.

    Example:
        >>> other_numbers({"a": torch.ones(1, dtype=torch.int8), "b": torch.ones(1).half()}, {"a": torch.ones(1), "b": torch.ones(1)})
        ['dtype mismatch for a: torch.int8 from checkpoint, torch.float32 in the model']
    """
    pairs = ((name, weight.dtype, own[name].dtype) for name, weight in weights.items() if name in own)
    different = [(name, old, new) for name, old, new in pairs if old != new and not (old in REAL and new in REAL)]
    return [f"dtype mismatch for {name}: {old} from checkpoint, {new} in the model" for name, old, new in different]


SHOWN = 3  # the number of weights of a kind that a message names


def misfit(error: Exception) -> str:
    """Return torch's message about weights that do not fit a module, shortened to a few lines.

    Example:
        >>> import torch
        >>> try:
        ...     torch.nn.Linear(2, 3).load_state_dict({"weight": torch.zeros(3, 4)})
        ... except RuntimeError as error:
        ...     print(misfit(error))
        weight is [3, 4] in the checkpoint, but [3, 2] in the model
        the checkpoint lacks bias
    """
    text = str(error)
    sizes = re.findall(r"size mismatch for (\S+): .*?torch\.Size\((.*?)\) from checkpoint.*?torch\.Size\((.*?)\)", text)
    lines = [f"{name} is {old} in the checkpoint, but {new} in the model" for name, old, new in sizes[:SHOWN]]
    lines += [f"and {len(sizes) - SHOWN} more weights of different sizes"] if len(sizes) > SHOWN else []
    kinds = re.findall(r"dtype mismatch for (\S+): torch\.(\S+) from checkpoint, torch\.(\S+) in the model", text)
    lines += [f"{name} is {old} in the checkpoint, but {new} in the model: convert it first" for name, old, new in kinds[:SHOWN]]
    lines += [f"and {len(kinds) - SHOWN} more weights of different dtypes"] if len(kinds) > SHOWN else []
    for start, verdict in (("Missing", "the checkpoint lacks"), ("Unexpected", "the model lacks")):
        if found := re.search(rf"{start} key\(s\) in state_dict: (.*)", text):
            names = re.findall(r'"([^"]+)"', found[1])
            lines.append(f"{verdict} {', '.join(names[:SHOWN])}{f' and {len(names) - SHOWN} more' if len(names) > SHOWN else ''}")
    return "\n".join(lines) or text
