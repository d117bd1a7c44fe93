"""The options shared by all tasks, and a task's arguments as plain data, from which it is rebuilt when a checkpoint is loaded."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from attnkit.registry import ConfigurationError, OptimizerSpec, ScheduleSpec, Spec, plain_data, tasks, tokenizers
from attnkit.strategy import ActivationCheckpointing
from attnkit.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class TaskConfig:
    """The options of every task. A task declares its own in a subclass, and sets defaults for the optimizer and the schedule.

    Args:
        optimizer: `muon`, or any optimizer of `torch.optim` by its lower-case name. Weight decay applies to parameters with two or more
            axes, including tables of embeddings and of `learned` (as in BERT and GPT-2) and `relative` positions. It does not apply to
            biases, norms and other vectors, or to parameters that a module lists in its attribute `undecayed`, such as the tables of
            `shaw` and `cope`. adam and adamw use torch's fused implementation unless `fused` or `foreach` is set.
        schedule: The factor of the learning rate at each optimizer step.
        init_from: A checkpoint, or a file of `attnkit import` or `export`, whose embedding and stack initialise a new model, each if its
            spec is the same; the head does too if the task is also the same. A message lists the parts taken (default: none).
        activation_checkpointing: The parts to recompute in the backward pass to save memory: `none`, each `layer`, `mixer` (whose memory
            may grow with the square of the length), or `feed_forward`. Results are the same.
        compile: Whether to compile each layer with torch.compile for training. Results are the same up to rounding.

    Raises:
        ConfigurationError: A spec, a name or a number is wrong, or a tokenizer is not trained.
    """

    optimizer: OptimizerSpec
    schedule: ScheduleSpec
    init_from: str | None = None
    activation_checkpointing: ActivationCheckpointing = "none"
    compile: bool = False


def default(name: str, **arguments: Any) -> Any:
    """Return a field whose default is a spec."""
    return field(default_factory=lambda: {"name": name, **arguments})


def name_of(task: type) -> str:
    """Return the registered name of a task's class, or its class path; raise a `ConfigurationError` if it has neither."""
    name = tasks.name_of(task)
    if "<locals>" in name or name.startswith("__main__."):
        raise ConfigurationError(
            f"{task.__qualname__} is not a registered task, so its checkpoints could not be rebuilt: "
            f"decorate it with @attnkit.tasks.register({task.__name__.lower()!r})"
        )
    return name


def plain_arguments(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the task named `task`, including defaults, so that checkpoints have them, checked and as plain data."""
    checked = {argument.name: tasks.checked(argument, arguments[argument.name], of=task) for argument in tasks.arguments(task)}
    return {name: plain_data(value, path=name) for name, value in checked.items()}


def trained_tokenizer(spec: Spec | None, argument: str) -> Tokenizer:
    """Return the tokenizer of a spec, the value of a task's `argument`; raise a `ConfigurationError` if it is missing or untrained."""
    if spec is None:
        raise ConfigurationError(f"there is no {argument}: pass the .spec of a trained one, such as data.{argument}_spec")
    tokenizer: Tokenizer = tokenizers.build(spec)
    if not tokenizer.trained:
        raise ConfigurationError(f"{argument} is not trained; pass the .spec of a trained one, such as data.{argument}_spec")
    return tokenizer


def require_smoothing(label_smoothing: float) -> None:
    """Raise unless `label_smoothing` is in [0, 1)."""
    if not 0 <= label_smoothing < 1:
        raise ConfigurationError(f"label_smoothing must be at least 0 and below 1, but is {label_smoothing}")
