"""`attnkit fit`, `validate`, `test` and `predict`: Lightning's command line around plain-data specs."""

import inspect
import json
import re
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import Checkpoint, ModelCheckpoint, WeightAveraging
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.strategies import Strategy
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from attnkit.callback import FiniteCheck, LastCheckpoint, Throughput, UnhealthyError
from attnkit.callback.stopping import Stopped, stop_signals
from attnkit.files import short_path
from attnkit.ownership import owned
from attnkit.recipe import SEED, merge, read_yaml
from attnkit.registry import IMPORTS, ConfigurationError, datasets, module_names, tasks
from attnkit.strategy import FSDP2, is_sharded_checkpoint
from attnkit.task import AtomicCheckpointIO, load_checkpoint
from attnkit.task.base import checked_later
from attnkit.task.checkpoint import require_rebuildable, saved_recipe
from attnkit.task.generating import TextGenerator
from attnkit.train.composition import complete_recipe, outline
from attnkit.train.inheritance import inherited_layer, inherited_tokenizers, read_init_from, values_from_data
from attnkit.train.logs import POSITION, LogPosition, RunLogger, cut_back
from attnkit.train.messages import one_message, quiet
from attnkit.train.output import notes, output, say
from attnkit.train.parser import Parser
from attnkit.train.ranks import together
from attnkit.train.request import Request
from attnkit.train.runs import find_run, is_first, new_run, run_name, runs_in, version_of
from attnkit.train.saved_recipe import RecipeCallback, as_yaml, recipe_in
from attnkit.train.trust import import_classes, is_run_name, require_imported, trusted_part

TRANSFORMER_ENGINE = ("transformer-engine", "transformer-engine-float16")
UNHEALTHY = 3  # that of a training that would only spoil more, so that it is not begun again and again


def carry_out(command: str, request: Request) -> None:
    """Carry out `attnkit fit | validate | test | predict`.

    Raises:
        ConfigurationError: A recipe, a checkpoint or an argument is wrong.
        SystemExit: The run was stopped by a signal, or because it was not healthy.
    """
    try:
        with quiet(), stop_signals.taken(), together(), notes(), one_message(), ExitStack() as claims:
            RunCLI(command, request, claims)
    except Stopped as stop:  # the first process's status is the command's
        rank_zero_only(say)("\n".join([f"note: {stop}", *getattr(stop, "__notes__", ())]))
        raise SystemExit(stop.code if is_first() else 0) from None
    except UnhealthyError as error:
        rank_zero_only(say)(f"attnkit: error: {error}")
        raise SystemExit(UNHEALTHY if is_first() else 0) from None


class RunCLI(LightningCLI):
    """LightningCLI in which `model` and `data` are specs, checked and built by the registries.

    jsonargparse sees only the trainer. It never has to resolve a component, so the command line, YAML and Python have one set of rules
    and one set of messages, and nothing but plain data reaches a checkpoint.

    Args:
        command: `fit`, `validate`, `test` or `predict`.
        request: The arguments after it.
        claims: Holds the folder of the run until it is closed.
    """

    def __init__(self, command: str, request: Request, claims: ExitStack) -> None:
        self.request, self.claims = request, claims
        if request.out is not None and command != "predict":
            raise ConfigurationError(f"--out is for the predictions of attnkit predict; attnkit {command} writes no such file")
        if request.trust and command != "fit":
            raise ConfigurationError(f"--trust is for attnkit fit: attnkit {command} takes nothing of the trainer from a checkpoint")
        dropped: list[str] = []
        recipe: dict[str, Any] = {}
        for layer in request.layers():
            recipe = merge(recipe, layer, dropped=dropped)
        import_classes(merge(recipe, request.flags, dropped=[]))
        self.ckpt_path: str | None = request.ckpt_path or recipe.pop("ckpt_path", None)
        self.resumed: Path | None = None  # the folder of the run that goes on
        if request.resume or (command == "fit" and self.ckpt_path == "last"):
            self.resumed, self.ckpt_path = find_run(request, command, recipe, self.ckpt_path, claims)
        self.checkpoint = self._read_checkpoint(command)
        if self.checkpoint is not None:
            recipe = merge(self._recipe_in_checkpoint(command, recipe), recipe, dropped=dropped)
        recipe = merge(recipe, request.flags, dropped=dropped)
        self.tokenizers: dict[str, Any] = {}
        model = recipe.get("model")
        if self.checkpoint is None and isinstance(model, Mapping) and (start := read_init_from(model.get("init_from"))) is not None:
            recipe = merge(inherited_layer(start), recipe, dropped=dropped)
            self.specs = complete_recipe(recipe)
            self.tokenizers = inherited_tokenizers(start, self.specs["data"].name)
            dropped += [f"data.{name} is that of {model['init_from']}" for name in self.tokenizers]
        else:
            self.specs = complete_recipe(recipe)
        for note in dropped:
            say(f"note: {note}")
        self.imports = module_names(recipe.get(IMPORTS))
        others = {key: value for key, value in recipe.items() if key not in (*self.specs, IMPORTS)}
        arguments = [command, *([f"--config={json.dumps(others)}"] if others else [])]
        if self.ckpt_path is not None:
            arguments += [f"--ckpt_path={self.ckpt_path}", "--weights_only=true"]
        super().__init__(
            args=arguments + request.others,
            parser_class=Parser,
            seed_everything_default=SEED,
            save_config_callback=None,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    def _recipe_in_checkpoint(self, command: str, recipe: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe in the checkpoint; of its trainer section only what is harmless, unless `--trust` is given."""
        assert self.checkpoint is not None
        saved = recipe_in(self.checkpoint, command)
        if not self.request.trust:
            asked = {*module_names(recipe.get(IMPORTS)), *self.request.flags.get(IMPORTS, ())}
            if unasked := [module for module in module_names(saved.pop(IMPORTS, None)) if module not in asked]:
                needed = " ".join(f"--{IMPORTS} {module}" for module in unasked)
                trust = ", or --trust" if command == "fit" else ""
                say(f"note: the checkpoint's recipe imports {', '.join(unasked)}, which was not done: if you trust it, add {needed}{trust}")
            require_imported(saved, str(self.ckpt_path))
        if "trainer" in saved and not self.request.trust:
            flags = (re.match(r"--trainer\.(\w+)", flag) for flag in self.request.others)
            given = {*(recipe.get("trainer") or {}), *(flag[1] for flag in flags if flag)}
            saved["trainer"], left = trusted_part(saved["trainer"], given=given)
            if left:
                say(
                    f"note: not used from the checkpoint's recipe: {', '.join(left)}; add --trust to use it, or give it on the command line"
                )
        return saved

    def _read_checkpoint(self, command: str) -> dict[str, Any] | None:
        if self.ckpt_path in ("best", "hpc") and command == "fit":
            return None  # Lightning finds it
        if self.ckpt_path is not None:
            checkpoint = load_checkpoint(self.ckpt_path, parts="description", trust=self.request.trust)
            if not is_sharded_checkpoint(Path(self.ckpt_path)):
                require_rebuildable(checkpoint, self.ckpt_path)
            return checkpoint
        if command != "fit":
            raise ConfigurationError(f"attnkit {command} needs a trained model: add --ckpt_path PATH")
        return None

    @override
    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        cast(Parser, parser).put_integers_first()

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)
        self.recipe = self._complete()
        if self.request.print_config:
            print(as_yaml(self.recipe), end="")
            raise SystemExit(0)

    @override
    def _parse_ckpt_path(self) -> None:
        """Do nothing: the checkpoint was the first layer of the recipe."""

    @override
    def instantiate_classes(self) -> None:
        """Build the data module, the task and the trainer. What a task takes from the data is read from the data module."""
        self.config_init = self.parser.instantiate(self.config)
        model, data = self.specs["model"], self.specs["data"].replace(**self.tokenizers)
        if self.checkpoint is not None:
            accepted = {a.name for a in datasets.arguments(data.name)} & set(tasks.from_data(model.name))
            data = data.replace(**{k: v for k, v in self.checkpoint["hyper_parameters"].items() if k in accepted})
        self.datamodule: LightningDataModule = datasets.build(data)
        with checked_later():
            self.model: LightningModule = tasks.build(model.replace(**values_from_data(model.name, data.name, self.datamodule)))
        self.trainer = self.instantiate_trainer()

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, with logs under `runs/` and the best and the last checkpoint unless the recipe says otherwise."""
        chosen = self.config_init[self.subcommand].trainer
        callbacks = chosen.callbacks or []
        callbacks = [*callbacks] if isinstance(callbacks, list) else [callbacks]
        if self.subcommand == "fit" and chosen.logger is None and not chosen.fast_dev_run:  # which writes nothing
            folder = Path(chosen.default_root_dir or "runs")
            number = version_of(self.resumed) if self.resumed else self._new_version(folder / self._run_name())
            if self.resumed is not None and self.checkpoint is not None:
                rank_zero_only(cut_back)(self.resumed, self.checkpoint.get(POSITION, {}))
            kwargs["logger"] = [
                RunLogger(folder, self._run_name(), number),
                TensorBoardLogger(folder, self._run_name(), number, default_hp_metric=False),
            ]
        elif chosen.logger is None:
            kwargs["logger"] = False
        if self.subcommand == "fit" and chosen.logger is False and not chosen.fast_dev_run:
            self._hold(Path(chosen.default_root_dir or ".") / "checkpoints")
        wants_checkpoints = self.subcommand == "fit" and chosen.enable_checkpointing is not False and not chosen.barebones
        if wants_checkpoints and not any(isinstance(c, ModelCheckpoint) for c in callbacks):
            monitor, mode = getattr(self.model, "monitor", (None, "min"))
            if monitor and chosen.limit_val_batches != 0:
                callbacks.append(ModelCheckpoint(filename="best", monitor=monitor, mode=mode))
            if not any(isinstance(c, LastCheckpoint) for c in callbacks):
                callbacks.append(LastCheckpoint())
        if self.subcommand == "fit" and not chosen.barebones:
            watching = (FiniteCheck, Throughput)
            callbacks += [kind() for kind in watching if not any(isinstance(c, kind) for c in callbacks)]
        if chosen.enable_model_summary is None:
            kwargs["enable_model_summary"] = False  # RecipeCallback has one
        if self.subcommand == "predict" and chosen.enable_progress_bar is None:
            kwargs["enable_progress_bar"] = False  # stdout is for the predictions
        callbacks += [RecipeCallback(self._run_name(), self.recipe), LogPosition()]
        try:
            trainer = super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except ValueError as error:  # such as the name of an accelerator or a strategy
            raise ConfigurationError(f"trainer: {error}") from error
        except ModuleNotFoundError as error:
            if chosen.precision not in TRANSFORMER_ENGINE:
                raise
            message = f"trainer.precision {chosen.precision} needs a GPU from Hopper on, and: pip install 'transformer-engine[pytorch]'"
            raise ConfigurationError(message) from error
        if str(chosen.precision) in ("16", "16-mixed") and isinstance(trainer.accelerator, CPUAccelerator):
            raise ConfigurationError("trainer.precision 16-mixed needs a GPU; on a CPU, use bf16-mixed or 32-true")
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        reads_by_itself = type(trainer.strategy).load_checkpoint is not Strategy.load_checkpoint
        if self.ckpt_path is not None and Path(self.ckpt_path).is_dir() and reads_by_itself and not isinstance(trainer.strategy, FSDP2):
            raise ConfigurationError(
                f"trainer.strategy: {type(trainer.strategy).__name__} would run code that a sharded checkpoint holds; use fsdp2 or ddp"
            )
        return trainer

    def _new_version(self, folder: Path) -> int:
        """Create the folder of this run, and return its number; other processes of the run need none, since they write nothing."""
        return self.claims.enter_context(new_run(folder)) if is_first() else 0

    def _hold(self, folder: Path) -> None:
        """Hold a folder that may serve many runs, one after another."""
        if is_first():
            folder.mkdir(parents=True, exist_ok=True)
            self.claims.enter_context(owned(folder, say=say))

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        try:
            super()._run_subcommand(subcommand)
        except Stopped as stop:
            if subcommand == "fit":
                stop.add_note(self._how_to_go_on())
            raise

    def _how_to_go_on(self) -> str:
        """Return what to do after a fit that was stopped: the command to the letter."""
        paths = [c.path for c in self.trainer.checkpoint_callbacks if isinstance(c, LastCheckpoint) and c.path.exists()]
        command = ["attnkit", "fit", *self.request.given]
        if not paths:
            return f"Nothing is saved, since no step was complete. Start again with:\n  {shlex.join(command)}"
        if "--resume" not in command:
            run = paths[0].parents[1]
            is_newest = run.name.startswith("version_") and run == runs_in(run.parent)[-1]
            if self.request.recipes and self.ckpt_path is None and is_newest and run.parent.name == Path(self._run_name()).name:
                command.append("--resume")
            else:
                command = [*_without(command, "--ckpt_path"), "--ckpt_path", short_path(str(paths[0]))]
        return f"Its state is saved. Continue with:\n  {shlex.join(command)}"

    def before_fit(self) -> None:
        """Say what is trained."""
        if self.trainer.is_global_zero:
            print("\n".join([*outline(self.specs["model"], role="model"), *outline(self.specs["data"], role="data")]))

    def after_fit(self) -> None:
        """Say where the checkpoint is, and what can be done with it."""
        paths = [_path_of(callback) for callback in self.trainer.checkpoint_callbacks]
        if self.trainer.is_global_zero and (path := next(filter(None, paths), None)):
            path = short_path(path)
            is_average = any(isinstance(callback, WeightAveraging) for callback in self.trainer.callbacks)  # type: ignore[attr-defined]
            lines = [f"Checkpoint: {path}{' (averaged weights)' if is_average else ''}", f"  attnkit test --ckpt_path {path}"]
            if isinstance(self.model, TextGenerator):
                lines.append(f"  attnkit generate {path} TEXT...")
            elif any(argument.name == "predict" for argument in datasets.arguments(self.specs["data"].name)):
                lines.append(f"  attnkit predict --ckpt_path {path} --data.predict FILE.txt")
            print("\n".join(lines))

    def predict(self, **kwargs: Any) -> None:
        """Print one line for each prediction, or write them to the file of `--out`."""
        if self.request.out is not None and self.trainer.world_size > 1:
            raise ConfigurationError("--out is written by one process, which then has all predictions; add --trainer.devices 1")
        with output(self.request.out) as file:
            batches = cast(list[Any], self.trainer.predict(**kwargs) or [])
            for batch in batches:
                for line in batch if isinstance(batch, list) else [batch]:
                    print(line, file=file)

    def _run_name(self) -> str:
        if self.request.recipes:
            return run_name(self.request.recipes[0])
        name = saved_recipe(self.checkpoint or {}).get("name")
        return str(name) if is_run_name(name) else self.specs["model"].name

    def _complete(self) -> dict[str, Any]:
        """Return the whole recipe, without what is null by default."""
        chosen = read_yaml(self.parser.dump(self.config, skip_unset=False), where="the parsed recipe")[self.config.subcommand]
        default = inspect.signature(Trainer).parameters
        trainer = {k: v for k, v in chosen.pop("trainer").items() if v is not None or default[k].default is not None}
        imports = {IMPORTS: self.imports} if self.imports else {}
        specs = {key: spec.plain() for key, spec in self.specs.items()}
        return {**imports, **specs, **{k: v for k, v in chosen.items() if v is not None}, "trainer": trainer}


def _without(command: list[str], flag: str) -> list[str]:
    """Return a command without a flag and its value.

    Example:
        >>> _without(["fit", "--ckpt_path", "a.ckpt", "--ckpt_path=b.ckpt", "-c", "x"], "--ckpt_path")
        ['fit', '-c', 'x']
    """
    return [word for before, word in pairwise(["", *command]) if flag not in (before, word) and not word.startswith(f"{flag}=")]


def _path_of(callback: Checkpoint) -> str | None:
    """Return the best checkpoint that a callback has written, or the last one."""
    if isinstance(callback, ModelCheckpoint):
        return callback.best_model_path or callback.last_model_path or None
    return str(callback.path) if isinstance(callback, LastCheckpoint) and callback.path.exists() else None
