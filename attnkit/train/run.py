"""`attnkit fit`, `validate`, `test` and `predict`: Lightning's command line on resolved specs."""

import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any, cast

from lightning.pytorch import LightningDataModule, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import Callback, EarlyStopping, ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import TorchCheckpointIO
from lightning.pytorch.utilities import rank_zero_only
from typing_extensions import override

from attnkit.callback import FiniteCheck, LastCheckpoint, Throughput
from attnkit.callback.stopping import Stopped, stop_outlasting_errors
from attnkit.checkpoint import AtomicCheckpointIO, is_exported, load_exported_into
from attnkit.checkpoint.description import saved_recipe
from attnkit.data.base import Framing
from attnkit.half import has_bfloat16, products_in_float32
from attnkit.lightning_internals import RunLogger
from attnkit.recipe import SEED, read_yaml
from attnkit.registry import IMPORTS, ConfigurationError, ResolvedSpec, datasets, tasks
from attnkit.task import Task
from attnkit.train.advice import how_to_continue, needed_imports, next_commands
from attnkit.train.composition import outline
from attnkit.train.conflicts import check_trainer, replace_requeue
from attnkit.train.continuation import Continuation
from attnkit.train.early_stopping import EarlyStops
from attnkit.train.hyperparameters import Hyperparameters
from attnkit.train.inheritance import linked_values
from attnkit.train.links import Link, apply_links, argument_at, attribute_at
from attnkit.train.logs import POSITION, LogPosition, truncate_logs
from attnkit.train.messages import quiet
from attnkit.train.numbering import refuse_foreign_rank
from attnkit.train.origins import keys_in
from attnkit.train.output import gather_lines, output, say, throttle
from attnkit.train.parser import Parser
from attnkit.train.request import Request
from attnkit.train.resolution import resolve_request
from attnkit.train.runs import is_first, new_run, run_name, version_of
from attnkit.train.saved_recipe import RecipeCallback, as_yaml
from attnkit.train.supervision import supervised
from attnkit.train.trust import is_run_name
from attnkit.train.whereabouts import Whereabouts

NO_VALIDATION = (
    "note: there are no validation data, so there are no validation metrics and no best checkpoint. For files, set "
    "data.corpus.validation to a file, or data.corpus.validation_fraction to a number such as 0.05"
)
NO_BEST = (
    "note: the run ended before its first validation, so there are no validation metrics and no best.ckpt. To validate more often, set "
    "trainer.check_val_every_n_epoch (in epochs) or trainer.val_check_interval (in steps)"
)
CHECKPOINT_KEYS = ("ckpt_path", "weights_only")
"""Keys left out of a resumed run's `config.yaml`, so that a fit with it starts a new run."""

AT_LEAST_ONE = ("accumulate_grad_batches", "check_val_every_n_epoch", "val_check_interval")

SEED_KEY = "seed_everything"

TRANSFORMER_ENGINE = ("transformer-engine", "transformer-engine-float16")


def carry_out(command: str, request: Request) -> None:
    """Run `attnkit fit | validate | test | predict`; see `supervised`."""
    with ExitStack() as claims:
        supervised(command, lambda: RunCLI(command, request, claims), claims)


class RunCLI(LightningCLI):
    """LightningCLI whose `model` and `data` are specs, resolved and built by the registries.

    jsonargparse parses everything else but resolves no component, so the command line, YAML, Python and checkpoints share one set of rules
    and messages, and only plain data reaches a checkpoint. Without a command, everything is built but nothing runs. `claims` hold the run's
    folder until they are closed; `program` is the command shown in messages.
    """

    def __init__(
        self,
        command: str | None,
        request: Request,
        claims: ExitStack,
        *,
        model_class: type[LightningModule] | None = None,
        datamodule_class: type[LightningDataModule] | None = None,
        trainer_class: type[Trainer] = Trainer,
        trainer_defaults: dict[str, Any] | None = None,
        seed_everything_default: bool | int = SEED,
        auto_configure_optimizers: bool | None = None,
        program: Sequence[str] = ("attnkit",),
    ) -> None:
        self.request, self.claims, self.program = request, claims, program
        self.best: ModelCheckpoint | None = None  # added by attnkit
        self.may_replace_optimizers = auto_configure_optimizers is not False
        lacks_optimizers = model_class is not None and model_class.configure_optimizers is LightningModule.configure_optimizers
        imported = (model_class, datamodule_class) if program[0] == "python" else ()  # by the program itself
        self.own_modules = {"__main__", *(cls.__module__ for cls in imported if cls is not None)}
        self.resolution = resolve_request(
            command or "fit", request, claims, model_class=model_class, datamodule_class=datamodule_class, program=program
        )
        self.specs, self.checkpoint, self.ckpt_path = self.resolution.specs, self.resolution.checkpoint, self.resolution.ckpt_path
        arguments = [command] if command else []
        arguments += [f"--config={json.dumps(self.resolution.others)}"] if self.resolution.others else []
        self.exported = self.ckpt_path if self.ckpt_path is not None and is_exported(self.ckpt_path) else None
        if self.ckpt_path is not None and command and self.exported is None:
            arguments += [f"--ckpt_path={self.ckpt_path}", "--weights_only=true"]
        if command is not None:  # skip the parsers of the other subcommands
            known = type(self).subcommands()
            self.subcommands = lambda: {command: known[command]}  # type: ignore[method-assign]
        super().__init__(
            model_class,
            datamodule_class,
            args=arguments + request.others,
            run=command is not None,
            trainer_class=trainer_class,
            trainer_defaults=trainer_defaults,
            seed_everything_default=seed_everything_default,
            parser_class=Parser,
            save_config_callback=None,  # RecipeCallback writes the whole recipe
            auto_configure_optimizers=lacks_optimizers if auto_configure_optimizers is None else auto_configure_optimizers,
            load_from_checkpoint_support=False,  # it would save jsonargparse's configuration, which lacks the model, in checkpoints
        )

    @override
    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(self.trainer_class, "trainer")
        parser.set_defaults({f"trainer.{key}": value for key, value in self.trainer_defaults.items() if key != "callbacks"})
        cast(Parser, parser).put_integers_first()
        cast(Parser, parser).spec_keys = list(keys_in({key: spec.plain() for key, spec in self.specs.items()}))

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(args)
        self._apply_links("parse", self.specs, self._argument)
        chosen, drawn = self._parsed(self.config), saved_recipe(self.checkpoint or {}).get(SEED_KEY)
        if self.config.get("subcommand") == "fit" and chosen.get(SEED_KEY) is True and drawn is not None:
            chosen[SEED_KEY] = drawn  # by the run that is continued
        self.recipe = self._whole_recipe()
        seed = chosen.get(SEED_KEY)
        if seed is not None and not 0 <= seed < 2**32:
            raise ConfigurationError(f"seed_everything must be from 0 to {2**32 - 1}, but is {seed}")
        if nan := [key for key, value in self.recipe["trainer"].items() if value != value]:
            raise ConfigurationError(f"trainer.{nan[0]} must be a number, but is nan")
        for key in AT_LEAST_ONE:
            if type(value := self.recipe["trainer"].get(key)) is int and value < 1:  # Lightning would divide by it
                raise ConfigurationError(f"trainer.{key} must be at least 1, but is {value}")
        if (origins := self.resolution.origins) is not None:
            linked = (link.target.replace(".init_args", "") for link in self._links("parse"))
            note = origins.note(self.recipe, known={*linked, *(f"trainer.{key}" for key in self.trainer_defaults)})
            if note is not None:
                say(f"note: {note}")
        if self.request.print_config:
            print(as_yaml(self.recipe), end="")
            raise SystemExit(0)

    @override
    def _parse_ckpt_path(self) -> None:
        """Do nothing: the checkpoint is already the recipe's first layer."""

    @override
    def _add_configure_optimizers_method_to_model(self, subcommand: str | None) -> None:
        """Replace the module's optimizer, with a warning, also if a subclass added one to the parser, as LightningCLI does."""
        self.auto_configure_optimizers = self.may_replace_optimizers
        added = self._parser(subcommand)._optimizers.items() if self.may_replace_optimizers else ()
        if isinstance(self.model, Task) and any(to == "AUTOMATIC" and self._get(self.config_init, key) for key, (_, to) in added):
            raise ConfigurationError("the optimizer of attnkit's tasks is model.optimizer: do not add one to the parser")
        super()._add_configure_optimizers_method_to_model(subcommand)

    def _links(self, stage: str) -> list[Link]:
        parser = cast(Parser, self._parser(self.config.get("subcommand")))
        return [link for link in parser.links if link.apply_on == stage]

    def _apply_links(self, stage: str, specs: dict[str, ResolvedSpec], read: Callable[[str], Any]) -> None:
        apply_links(self._links(stage), specs, read, named=self.resolution.named, flags=self.request.flags)

    def _argument(self, key: str) -> Any:
        """Return an argument of the model, of the data, or one parsed by jsonargparse, by its key."""
        return argument_at(self.specs, key) if key.partition(".")[0] in self.specs else self._parsed(self.config)[key]

    def _parsed(self, config: Any) -> Any:
        """Return the subcommand's part of a parsed configuration."""
        return config[command] if (command := self.config.get("subcommand")) else config

    @override
    def instantiate_classes(self) -> None:
        """Build the data module, the task (with its arguments from the data module) and the trainer."""
        if SEED_KEY in (parsed := self._parsed(self.config)):
            self.recipe[SEED_KEY] = parsed[SEED_KEY]  # the number, if it was drawn
        self.config_init = self.instantiated()
        specs, self.datamodule = dict(self.specs), None
        if "data" in specs:
            self.datamodule = cast(LightningDataModule, datasets.build(specs["data"].replace(**self.resolution.kept)))
        self._apply_links("instantiate", specs, lambda key: attribute_at(self.datamodule, key))
        model = specs["model"]
        self.model: LightningModule = tasks.build(model.replace(**linked_values(model, specs.get("data"), self.datamodule)))
        if self.exported is not None:  # Lightning reads only checkpoints
            load_exported_into(self.model, self.exported)
            if self.checkpoint is not None and (state := self.checkpoint.get(type(self.datamodule).__qualname__)):
                cast(LightningDataModule, self.datamodule).load_state_dict(state)
        self._add_configure_optimizers_method_to_model(self.subcommand)
        self.trainer = self.instantiate_trainer()

    def instantiated(self) -> Any:
        """Instantiate the configuration's class paths, such as callbacks and loggers."""
        return self.parser.instantiate(self.config)

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Build the trainer, by default with logs under `runs/` and the best and last checkpoints."""
        chosen = self._parsed(self.config_init).trainer
        if self.subcommand == "fit" and chosen.limit_train_batches == 0:  # Lightning would exit silently
            raise ConfigurationError("trainer.limit_train_batches is 0, so nothing would be trained; to validate, use attnkit validate")
        callbacks = _listed(chosen.callbacks)
        own_keys = self._parser(self.subcommand).callback_keys  # of callbacks added by `add_lightning_class_args`
        others = [*_listed(self.trainer_defaults.get("callbacks")), *(self._get(self.config_init, key) for key in own_keys)]
        if self.subcommand == "fit" and chosen.logger is None and not (chosen.fast_dev_run or chosen.barebones):  # neither writes files
            folder, resumed = Path(chosen.default_root_dir or "runs"), self.resolution.resumed
            number = version_of(resumed) if resumed else self._new_version(folder / self._run_name())
            if resumed is not None and self.checkpoint is not None:
                rank_zero_only(truncate_logs)(resumed, self.checkpoint.get(POSITION, {}))
            kwargs["logger"] = [
                RunLogger(folder, self._run_name(), number),
                TensorBoardLogger(folder, self._run_name(), number, default_hp_metric=False),
            ]
            if self.resolution.index is not None:
                rank_zero_only(self.resolution.index.unlink)(missing_ok=True)  # from when the program had its own loggers
        elif chosen.logger is None:
            kwargs["logger"] = False
        elif self.subcommand == "fit" and not (chosen.fast_dev_run or chosen.barebones):
            callbacks += self._whereabouts()
        if self.subcommand == "fit":
            if isinstance(self.datamodule, Framing) and not self.datamodule.corpus.has("validation") and chosen.limit_val_batches is None:
                say(NO_VALIDATION)
                chosen.limit_val_batches = 0  # Lightning would warn of an empty loader and a missing metric
            callbacks += self._own_callbacks(chosen, [*callbacks, *others])
        if chosen.enable_model_summary is None:
            kwargs["enable_model_summary"] = False  # RecipeCallback prints its own
        if self.subcommand == "predict" and chosen.enable_progress_bar is None:
            kwargs["enable_progress_bar"] = False  # stdout is for predictions
        left_out = () if self.resolution.resumed_in is None else CHECKPOINT_KEYS
        recipe = {key: value for key, value in self.recipe.items() if key not in left_out}
        callbacks += [RecipeCallback(self._run_name(), recipe), LogPosition()]
        callbacks += [] if isinstance(self.model, Task) else [Continuation()]
        if any(isinstance(callback, EarlyStopping) for callback in [*callbacks, *others]):
            callbacks.append(EarlyStops(ends=self.resolution.resumed_in is not None))
        given = [*callbacks, *others]  # Lightning adds its own to the list
        try:
            trainer = super().instantiate_trainer(callbacks=callbacks, **kwargs)
        except ValueError as error:  # such as an unknown accelerator or strategy
            raise ConfigurationError(f"trainer: {error}") from error
        except ModuleNotFoundError as error:
            if chosen.precision not in TRANSFORMER_ENGINE:
                raise
            message = f"trainer.precision {chosen.precision} needs a Hopper GPU or later, and: pip install 'transformer-engine[pytorch]'"
            raise ConfigurationError(message) from error
        refuse_foreign_rank(getattr(rank_zero_only, "rank", 0), processes=trainer.world_size)
        # last, so that the other callbacks check and prepare their settings before the position is restored
        trainer.callbacks.sort(key=lambda callback: isinstance(callback, Continuation))  # type: ignore[attr-defined]
        if self.subcommand is not None:  # else the program runs the trainer, and only Lightning has a handler
            replace_requeue(trainer, checkpoint=self.ckpt_path)
        check_trainer(trainer, precision=str(chosen.precision), checkpoint=self.ckpt_path, is_fit=self.subcommand == "fit")
        if (bar := trainer.progress_bar_callback) is not None and bar not in given:
            throttle(bar)
        if type(trainer.strategy.checkpoint_io) is TorchCheckpointIO:
            trainer.strategy.checkpoint_io = AtomicCheckpointIO()
        return trainer

    def _own_callbacks(self, chosen: Any, others: list[Callback]) -> list[Callback]:
        """Return the default callbacks of a fit, except for kinds it already has."""

        def lacks(kind: type[Callback]) -> bool:
            return not any(isinstance(callback, kind) for callback in others)

        found: list[Callback] = []
        if chosen.barebones:
            return found
        if chosen.enable_checkpointing is not False and lacks(ModelCheckpoint):
            monitor = getattr(self.model, "monitor", None)
            if isinstance(monitor, tuple) and chosen.limit_val_batches != 0:
                self.best = ModelCheckpoint(filename="best", monitor=monitor[0], mode=monitor[1])
                found.append(self.best)
            found += [LastCheckpoint()] if lacks(LastCheckpoint) else []
        if isinstance(self.model, Task):  # these callbacks repeat its steps and count its FLOPs
            found += [kind() for kind in (FiniteCheck, Throughput) if lacks(kind)]
        return found

    def _new_version(self, folder: Path) -> int:
        """Create the run's folder and return its number; only in the first process, since the others do not write."""
        return self.claims.enter_context(new_run(folder)) if is_first() else 0

    def _whereabouts(self) -> list[Callback]:
        """Return the callbacks of a run with the user's own loggers: one claims the checkpoint folder that these choose."""
        return [Whereabouts(self.resolution.index, self.resolution.resumed_in), Hyperparameters(self.recipe)]

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        if subcommand == "fit" and self.trainer.is_global_zero:
            print("\n".join(line for key, spec in self.specs.items() for line in outline(spec, role=key)))
        on_cpu = isinstance(self.trainer.accelerator, CPUAccelerator)
        if on_cpu and str(self.trainer.precision).startswith("bf16") and not has_bfloat16():
            say(
                "note: this processor has no bfloat16 instructions, so products are computed in float32, then rounded; "
                "--trainer.precision 32-true may be faster"
            )
        best = self.best if self.best in self.trainer.checkpoint_callbacks else None  # `fast_dev_run` removes it
        unmonitored = [rf"`ModelCheckpoint\(monitor='{best.monitor}'\)` could not find the monitored key"] if best is not None else []
        try:
            with stop_outlasting_errors(), quiet(*unmonitored), products_in_float32() if on_cpu else nullcontext():
                super()._run_subcommand(subcommand)
        except Stopped as stop:
            self._note_missing(best)
            if subcommand == "fit":
                name = self._run_name() if self.request.recipes and self.ckpt_path is None else None
                stop.add_note(how_to_continue(self.trainer, self.program, self.request.given, resumable_as=name))
            raise
        self._note_missing(best)
        if subcommand == "fit" and self.trainer.is_global_zero:
            imports = needed_imports(self.recipe, known=self.own_modules)
            is_tested = not isinstance(self.datamodule, Framing) or self.datamodule.corpus.has("test")
            data = self.specs.get("data")
            advice = next_commands(self.trainer, self.model, data, self.program, imports=imports, is_tested=is_tested)
            if advice is not None:
                print(advice)

    def _note_missing(self, best: ModelCheckpoint | None) -> None:
        if best is not None and not best.best_model_path and best.monitor not in self.trainer.callback_metrics:
            say(NO_BEST)

    def predict(self, **kwargs: Any) -> None:
        """Print one line per prediction, or write the lines to `--out`; the first process writes those of all processes."""
        with output(self.request.out if self.trainer.is_global_zero else None) as file:
            batches = cast(list[Any], self.trainer.predict(**kwargs) or [])
            for line in gather_lines(self.trainer, [batch if isinstance(batch, list) else [batch] for batch in batches]):
                print(line, file=file)

    def _run_name(self) -> str:
        if self.request.recipes:
            return run_name(self.request.recipes[0])
        name = saved_recipe(self.checkpoint or {}).get("name")
        return str(name) if is_run_name(name) else self.specs["model"].name

    def _whole_recipe(self) -> dict[str, Any]:
        """Return the whole recipe, leaving out values that are null by default."""
        chosen = self._parsed(read_yaml(self.parser.dump(self.config, skip_unset=False), where="the parsed recipe"))
        default = inspect.signature(self.trainer_class).parameters
        trainer = {k: v for k, v in chosen.pop("trainer").items() if v is not None or k not in default or default[k].default is not None}
        imports = {IMPORTS: self.resolution.imports} if self.resolution.imports else {}
        specs = {key: spec.plain() for key, spec in self.specs.items()}
        return {**imports, **specs, **{k: v for k, v in chosen.items() if v is not None}, "trainer": trainer}


def _listed(value: Any) -> list[Any]:
    return [] if value is None else [*value] if isinstance(value, list | tuple) else [value]
