"""`attnkit probe`: run a diagnostic on the model of a checkpoint or recipe, and print its table."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningDataModule

from attnkit.checkpoint import describe_exported, is_exported, load_checkpoint, load_exported, rebuild
from attnkit.checkpoint.outdated import without_outdated_data
from attnkit.cli.arguments import read_arguments, read_value
from attnkit.device import best_device
from attnkit.files import write_text
from attnkit.probe import Probe
from attnkit.recipe import merged, read_layers
from attnkit.registry import IMPORTS, ConfigurationError, datasets, probes, tasks
from attnkit.task import Task
from attnkit.train.composition import complete_recipe
from attnkit.train.inheritance import task_and_data
from attnkit.train.output import say
from attnkit.train.saved_recipe import recipe_in

SUFFIXES = (".json", ".svg")


def probe(name: str, subject: str, rest: Sequence[str], *, out: Sequence[str], seed: int) -> None:
    """Run a probe; print its limits and its table. Arguments of the probe and changes to the recipe are in `rest`."""
    if wrong := [file for file in out if Path(file).suffix not in SUFFIXES]:
        raise ConfigurationError(f"--out must end in {' or '.join(SUFFIXES)}, but is {wrong[0]!r}")
    request = read_arguments(rest)
    question: Probe = probes.build({"name": name, **_arguments(request.others)})
    command = ["attnkit", "probe", name, subject, *rest, *(word for file in out for word in ("--out", file)), "--seed", str(seed)]
    task, data = _subject(subject, [*request.recipes], request.flags, seed, needs_data=question.needs_data, command=command)
    task.configure_model()
    found = question(task if question.on_cpu else task.to(best_device()), data)
    print(f"{name}: {found.limits}\n\n{found.table()}")
    for file in out:
        write_text(file, found.svg() if file.endswith(".svg") else found.json())
        print(f"Wrote {file}")


def _arguments(words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments `--key value` or `--key=value`, as on the command line of a recipe."""
    arguments: dict[str, Any] = {}
    rest = list(words)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        if not flag.startswith("--"):
            raise ConfigurationError(f"the probe's arguments are --KEY VALUE, but this is {flag!r}")
        if not equals:
            if not rest:
                raise ConfigurationError(f"{flag} needs a value, as in {flag} VALUE")
            value = rest.pop(0)
        arguments[flag.removeprefix("--")] = read_value(value)
    return arguments


def _subject(
    subject: str, recipes: Sequence[str], flags: dict[str, Any], seed: int, *, needs_data: bool, command: Sequence[str]
) -> tuple[Task, LightningDataModule | None]:
    """Return the task of a checkpoint, an exported model or a recipe, and its data."""
    if is_exported(subject) or Path(subject).suffix == ".ckpt" or Path(subject).is_dir():
        if "model" in flags:
            raise ConfigurationError(f"{subject} has its own model: remove --model, or give a recipe instead")
        checkpoint = describe_exported(subject) if is_exported(subject) else load_checkpoint(subject)
        task: Task = load_exported(subject) if is_exported(subject) else rebuild(checkpoint, subject)
        if not needs_data:
            return task, None
        given = merged([*read_layers(recipes, imports=flags.get(IMPORTS, ())), flags]).get("data")
        saved, note = without_outdated_data(recipe_in(checkpoint, "test"), checkpoint, subject, given=given, command=command)
        if note is not None:
            say(f"note: {note}")
        data = datasets.build(complete_recipe(merged([saved, {} if given is None else {"data": given}]))["data"])
        # its own framing gets the state that it saved, as in `attnkit test`; another framing gets the tokenizers
        taken = {key: task.hparams[key] for key in tasks.from_data(task.registered_name) if "tokenizer" in key and key in task.hparams}
        if state := checkpoint.get(type(data).__qualname__, taken):
            data.load_state_dict(state)
    else:
        recipe = merged([*read_layers([subject, *recipes], imports=flags.get(IMPORTS, ())), flags])
        torch.manual_seed(seed)  # a data module may draw the task's arguments
        spec, data = task_and_data(recipe, needed_by="attnkit probe")
        say("note: the model is untrained: its weights are random")
        torch.manual_seed(seed)  # the same weights, whatever the data module drew
        task = tasks.build(spec)
    data.prepare_data()
    data.setup("validate")
    return task, data
