"""AttnkitCLI: the command line of `attnkit fit`, `validate`, `test` and `predict` for your own classes."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from lightning.pytorch import LightningDataModule, LightningModule, Trainer

from attnkit.cli.arguments import read_arguments
from attnkit.cli.help import describe_slot, overview, trainer_overview
from attnkit.cli.main import exit_status
from attnkit.recipe import COMMANDS, SEED, merge
from attnkit.registry import ConfigurationError, nearest
from attnkit.train.messages import one_message, quiet
from attnkit.train.output import notes
from attnkit.train.request import Request
from attnkit.train.run import RunCLI
from attnkit.train.supervision import supervised


class AttnkitCLI(RunCLI):
    """LightningCLI with components chosen by name, and with attnkit's recipes, checks and messages.

    Without arguments it is `attnkit fit | validate | test | predict`. With your own LightningModule and LightningDataModule, the
    arguments of their constructors are `--model.ARGUMENT` and `--data.ARGUMENT`, checked against the signatures. A required argument of
    the module that the recipe does not set is read from the attribute of the data module with the same name. A name or `class_path` in
    the recipe may select a subclass.

    The hooks of LightningCLI can be overridden: `add_arguments_to_parser` (with `parser.link_arguments`, also to and from arguments of
    `model` and `data`), `before_instantiate_classes`, `before_fit`, `after_fit`, ...

    Args:
        model_class: The class of `model` if it has no name (default: a task of attnkit, chosen by name).
        datamodule_class: The class of `data` if it has no name (default: a data module of attnkit, chosen by name).
        trainer_class: The class of the trainer.
        trainer_defaults: Defaults of the trainer's arguments. Its `callbacks` are added to those of the recipe.
        seed_everything_default: The seed, or whether to draw one.
        auto_configure_optimizers: Whether `--optimizer` and `--lr_scheduler` replace `configure_optimizers` (default: if `model_class`
            has none, or if `add_arguments_to_parser` adds them).
        args: The command line (default: that of this process), or a mapping with the content of a recipe: `{"fit": {"model": ...}}`, or
            without the command if nothing is run. If given, errors are raised; otherwise they are printed and the process exits.
        run: Whether the first argument is a command to run. Otherwise `trainer`, `model` and `datamodule` are only built, and the
            trainer has Lightning's default loggers and callbacks.

    Raises:
        ConfigurationError: A recipe, a checkpoint or an argument is wrong (with `args` only).
        SystemExit: Nothing is left to do, as after `--help`.

    Example:
        >>> from lightning.pytorch import LightningModule
        >>> class Net(LightningModule):
        ...     def __init__(self, *, width: int, depth: int = 2) -> None:
        ...         super().__init__()
        ...         self.size = width * depth
        ...     def train_dataloader(self): return []
        >>> import __main__; __main__.Net, Net.__module__ = Net, "__main__"
        >>> cli = AttnkitCLI(Net, args=["--model.width", "3", "--trainer.accelerator", "cpu", "--trainer.logger", "false"], run=False)
        >>> cli.model.size
        6
    """

    def __init__(
        self,
        model_class: type[LightningModule] | None = None,
        datamodule_class: type[LightningDataModule] | None = None,
        *,
        trainer_class: type[Trainer] = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = SEED,
        auto_configure_optimizers: bool | None = None,
        args: Sequence[str] | Mapping[str, Any] | None = None,
        run: bool = True,
    ) -> None:
        classes = {"model": model_class, "data": datamodule_class}

        def carry_out() -> None:
            if isinstance(args, Mapping):
                words = [_command_of(args)] if run else []
            else:
                words = list(sys.argv[1:] if args is None else args)
            command, rest = _command_in(words, run=run)
            request = read_arguments(rest)
            request.content = {k: v for k, v in args.items() if k != "subcommand"} if isinstance(args, Mapping) else {}
            if (text := _help(command, rest, request, classes)) is not None:
                print(text)
                raise SystemExit(0)

            def build() -> None:
                super(AttnkitCLI, self).__init__(
                    command,
                    request,
                    claims,
                    model_class=model_class,
                    datamodule_class=datamodule_class,
                    trainer_class=trainer_class,
                    trainer_defaults=trainer_defaults,
                    seed_everything_default=seed_everything_default,
                    auto_configure_optimizers=auto_configure_optimizers,
                    program=("python", os.path.relpath(sys.argv[0])) if args is None else ("attnkit",),
                )

            with ExitStack() as claims:
                if run:
                    supervised(command, build, claims)
                else:
                    with quiet(), notes(), one_message():
                        build()

        if args is not None:
            carry_out()
        elif status := exit_status(carry_out):
            raise SystemExit(status)


def _command_in(arguments: list[str], *, run: bool) -> tuple[str | None, list[str]]:
    """Return the command and the other arguments; LightningCLI options may precede it."""
    if not run:
        return None, arguments
    place = next((i for i, word in enumerate(arguments) if word in COMMANDS and (i == 0 or not _is_option(arguments[i - 1]))), None)
    if place is not None:
        return arguments[place], arguments[:place] + arguments[place + 1 :]
    if not arguments or {"-h", "--help"} & set(arguments):
        return None, ["--help"]
    raise ConfigurationError(f"unknown command {arguments[0]!r}.{nearest(arguments[0], COMMANDS)} Commands: {', '.join(COMMANDS)}.")


def _command_of(content: Mapping[str, Any]) -> str:
    """Return the command of a mapping of arguments: its only command section, as in LightningCLI, or its `subcommand`."""
    sections = [command for command in COMMANDS if command in content]
    command = content.get("subcommand", sections[0] if len(sections) == 1 else None)
    if command not in COMMANDS:
        given = ", ".join(map(str, content)) or "none"
        raise ConfigurationError(
            f"args must have the section of one command ({', '.join(COMMANDS)}), as in {{'fit': {{'model': ...}}}}, but its keys are: "
            f"{given}; with run=False it has no command, as in {{'model': ...}}"
        )
    return str(command)


def _is_option(word: str) -> bool:
    return word.startswith("-") and "=" not in word


def _help(command: str | None, arguments: Sequence[str], request: Request, classes: dict[str, type[Any] | None]) -> str | None:
    program = os.path.basename(sys.argv[0])
    if {"-h", "--help"} & set(arguments):
        if command is None:
            return f"usage: {program} {{{','.join(COMMANDS)}}} [--KEY VALUE]..., each with its own --help"
        own = [f"  --{key}.help  shows the arguments of {cls.__qualname__}" for key, cls in classes.items() if cls is not None]
        return "\n".join([overview(command, program=program), *own])
    if "--trainer.help" in arguments:
        return trainer_overview()
    if request.help_of is None:
        return None
    for key, cls in classes.items():
        if cls is not None:
            request.flags = merge({key: {"name": f"{cls.__module__}.{cls.__qualname__}"}}, request.flags, dropped=[])
    return describe_slot(request)
