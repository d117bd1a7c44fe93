"""`attnkit generate`: text in, text out, from a checkpoint alone."""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from attnkit.registry import ConfigurationError
from attnkit.task import Task, load_exported


def generate(checkpoint: str, texts: Sequence[str], *, beam_size: int | None = None, max_length: int | None = None) -> None:
    """Print one line for each of `texts`, or for each line of stdin if there are none, as soon as it is known.

    Args:
        checkpoint: A file of `attnkit fit` or of `attnkit export`.
        texts: The inputs.
        beam_size: Beams; 1 is greedy (default: the task's).
        max_length: The most tokens that are generated for a text (default: the task's).

    Raises:
        ConfigurationError: The checkpoint cannot be used, or its task does not turn text into text, or a number is not positive.
    """
    for option, value in (("--beam_size", beam_size), ("--max_length", max_length)):
        if value is not None and value < 1:
            raise ConfigurationError(f"{option} must be at least 1, but is {value}")
    task = load_exported(checkpoint) if Path(checkpoint).suffix == ".safetensors" else Task.load(checkpoint)
    answer = getattr(task, "generate", None)
    if answer is None:
        raise ConfigurationError(f"the task {task.registered_name!r} of {checkpoint} does not turn text into text")
    batches: Iterable[Sequence[str]] = [texts] if texts else ([line.rstrip("\n")] for line in sys.stdin)
    for batch in batches:
        for output in answer(batch, beam_size=beam_size, max_length=max_length):
            print(output, flush=True)
