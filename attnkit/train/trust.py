"""Decides which parts of the recipe in an untrusted checkpoint are used without `--trust`."""

import os
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

import torch
from lightning.pytorch import callbacks as lightning_callbacks

from attnkit import callback
from attnkit.checkpoint.description import components
from attnkit.registry import ConfigurationError, datasets, importing, tasks
from attnkit.strategy import FSDP2

_WORDS = (
    "accelerator strategy devices num_nodes precision logger fast_dev_run max_epochs min_epochs max_steps min_steps max_time "
    "limit_train_batches limit_val_batches limit_test_batches limit_predict_batches overfit_batches val_check_interval "
    "check_val_every_n_epoch num_sanity_val_steps log_every_n_steps enable_checkpointing enable_progress_bar enable_model_summary "
    "accumulate_grad_batches gradient_clip_val gradient_clip_algorithm deterministic benchmark inference_mode use_distributed_sampler "
    "detect_anomaly barebones sync_batchnorm reload_dataloaders_every_n_epochs enable_autolog_hparams"
)
STEERING = frozenset(_WORDS.split())  # trainer keys that are used if their values are numbers, words, or lists of these

LIGHTNING = {
    "EarlyStopping": "monitor min_delta patience verbose mode strict check_finite stopping_threshold divergence_threshold "
    "check_on_train_epoch_end log_rank_zero_only",
    "EMAWeightAveraging": "use_buffers decay update_every_n_steps update_starting_at_step update_starting_at_epoch",
    "GradientAccumulationScheduler": "scheduling",
    "LearningRateMonitor": "logging_interval log_momentum log_weight_decay",
    "ModelCheckpoint": "filename monitor verbose save_last save_top_k save_on_exception save_weights_only mode auto_insert_metric_name "
    "every_n_train_steps train_time_interval every_n_epochs save_on_train_epoch_end enable_version_counter",
    "Timer": "duration interval verbose",
    "TQDMProgressBar": "refresh_rate process_position leave",
}
"""Lightning's callbacks and those of their arguments that cannot import code or refer to paths outside the run's folder."""

OURS = {
    "AttentionMaps": "every_n_steps rows figures",
    "Divergence": "monitor factor patience",
    "FiniteCheck": "policy most_skips",
    "LastCheckpoint": "every_n_steps every_n_minutes",
    "Throughput": "peak_tflops",
}

_PLACEHOLDER = re.compile(r"\{[\w/]*(:[.\w]*)?\}")  # metric in a file name


def trusted_part(trainer: Any, *, given: Collection[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the part of a checkpoint's trainer section that is used without `--trust`, and the names of the settings left out.

    That part has settings that only control training, attnkit's and Lightning's callbacks with plain arguments, and `FSDP2`; never paths
    or other classes. Keys `given` on the command line or in the recipe are neither used nor reported.

    Example:
        >>> trusted_part({"max_epochs": 3, "callbacks": [{"class_path": "evil.Evil"}], "default_root_dir": "/tmp"}, given=())
        ({'max_epochs': 3, 'callbacks': []}, ["trainer.callbacks ('evil.Evil')", "trainer.default_root_dir ('/tmp')"])
    """
    used: dict[str, Any] = {}
    skipped: list[str] = []
    for key, value in trainer.items() if isinstance(trainer, Mapping) else ():
        if key in given:
            continue
        if key == "callbacks" and value is not None:
            entries = value if isinstance(value, list) else [value]
            used[key] = [entry for entry in entries if _is_known(entry, _CALLBACKS)]
            skipped += [_named(key, entry) for entry in entries if not _is_known(entry, _CALLBACKS)]
        elif (key in STEERING and _is_safe(key, value)) or (key == "strategy" and _is_known(value, _STRATEGIES)):
            used[key] = value
        elif value is not None:
            skipped.append(_named(key, value))
    return used, skipped


def import_classes(recipe: Mapping[str, Any]) -> None:
    """Import the classes that the user's recipe names by class path, so that a checkpoint with these classes can be read.

    Mistakes in the recipe are reported later, when it is resolved.
    """
    for key, registry in (("model", tasks), ("data", datasets)):
        with suppress(ConfigurationError):
            list(components(registry, recipe.get(key) or {}))


def require_imported(recipe: Mapping[str, Any], source: str) -> None:
    """Raise if a checkpoint's recipe names a class in a module that is not imported yet: importing it would run its code."""
    if "data" in recipe:
        try:
            with importing(False):
                list(components(datasets, recipe["data"]))
        except ConfigurationError as error:
            raise ConfigurationError(f"the recipe in {source}: data: {error}; or add --trust") from error


def is_run_name(name: Any) -> bool:
    """Return whether a name from a checkpoint is a valid folder below `runs`.

    Example:
        >>> [is_run_name(name) for name in ("g2p/transformer", "../x", "/x", "a/../../x", "")]
        [True, False, False, False, False]
    """
    return isinstance(name, str) and len(name) < 200 and all(re.fullmatch(r"\w[\w .+=,@-]*", part) for part in name.split("/"))


def _paths_of(cls: type, *packages: str) -> set[str]:
    return {cls.__name__, f"{cls.__module__}.{cls.__qualname__}", *(f"{package}.{cls.__name__}" for package in packages)}


_CALLBACKS = {
    **{path: words.split() for name, words in OURS.items() for path in _paths_of(getattr(callback, name), "attnkit.callback")},
    **{
        path: words.split()
        for name, words in LIGHTNING.items()
        for path in _paths_of(getattr(lightning_callbacks, name), "lightning.pytorch.callbacks", "pytorch_lightning.callbacks")
    },
}
_STRATEGIES = {path: ["tensor_parallel_size", "save_distributed_checkpoint"] for path in _paths_of(FSDP2, "attnkit.strategy")}


def _is_known(spec: Any, known: Mapping[str, list[str]]) -> bool:
    """Return whether a jsonargparse spec names a known class with known, plain arguments; null values are ignored."""
    if isinstance(spec, str):
        spec = {"class_path": spec}
    if not isinstance(spec, Mapping) or not set(spec) <= {"class_path", "init_args"} or spec.get("class_path") not in known:
        return False
    arguments = spec.get("init_args") or {}
    return isinstance(arguments, Mapping) and all(
        value is None or (key in known[spec["class_path"]] and _is_plain(value) and (key != "filename" or _is_file_name(value)))
        for key, value in arguments.items()
    )


def _is_safe(key: str, value: Any) -> bool:
    """Return whether a setting is a number, a word without dots, or a collection of these; a word with a dot would be imported."""
    if key == "logger":
        return isinstance(value, bool)
    if key == "devices":  # each starts a process
        available = max(os.cpu_count() or 1, torch.cuda.device_count())
        return isinstance(value, list) or value == "auto" or (str(value).lstrip("-").isdigit() and int(value) <= available)
    return _is_plain(value) and (not isinstance(value, str) or re.fullmatch(r"[\w+:-]*", value) is not None)


def _is_plain(value: Any) -> bool:
    """Return whether a value is a number, a short string or null, or a list or mapping of these."""
    if isinstance(value, Mapping | list):
        parts = [*value, *value.values()] if isinstance(value, Mapping) else value
        return len(parts) < 200 and all(_is_plain(part) and not isinstance(part, Mapping | list) for part in parts)
    return value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) < 200)


def _is_file_name(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[\w .+=-]*", _PLACEHOLDER.sub("", value)) is not None


def _named(key: str, value: Any) -> str:
    shown = value.get("class_path", "") if isinstance(value, Mapping) else value
    return f"trainer.{key}" + (f" ({ascii(shown)[:100]})" if isinstance(shown, str | int | float) and shown != "" else "")
