"""A user's own LightningModule or LightningDataModule in a study: its parameters, and its effects beyond control or measurement."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.pytorch import LightningModule

from attnkit.data.base import Framing
from attnkit.registry import ConfigurationError, Registry, ResolvedSpec, datasets, tasks
from attnkit.task import Task


class UncountedError(ConfigurationError):
    """The number of parameters of a module is unknown before training."""


def is_own_module(name: str) -> bool:
    """Return whether a name in `model` refers to a plain LightningModule, not an attnkit task.

    Example:
        >>> is_own_module("seq2seq"), is_own_module("lightning.pytorch.demos.boring_classes.BoringModel")
        (False, True)
    """
    return not issubclass(tasks.get(name), Task)


def built(registry: Registry, spec: ResolvedSpec) -> Any:
    """Build a component; an exception in a user's own constructor becomes a `ConfigurationError`."""
    try:
        return registry.build(spec)
    except ConfigurationError:
        raise
    except Exception as error:
        if spec.name in registry.built_in():
            raise
        raise ConfigurationError(f"{spec.name} cannot be built: {type(error).__name__}: {error}") from error


def parameters_of(spec: ResolvedSpec) -> int:
    """Return the number of parameters of a user's own LightningModule; shared parameters count once.

    Raises:
        UncountedError: The number is unknown before training: there are lazy modules, or `configure_model` needs a Trainer.
        ConfigurationError: The module cannot be built.
    """
    module = _built(spec)
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]):
            module.configure_model()
    except Exception as error:
        raise UncountedError(f"its configure_model needs a Trainer: {type(error).__name__}: {error}") from error
    if any(torch.nn.parameter.is_lazy(p) for p in module.parameters()):
        raise UncountedError("it has lazy modules")
    return sum(p.numel() for p in module.parameters())


def keeps_best(spec: ResolvedSpec, trainer: Mapping[str, Any]) -> bool:
    """Return whether a run of a user's own module keeps a best checkpoint, by its `monitor` or a `ModelCheckpoint` of the trainer."""
    callbacks = trainer.get("callbacks") or ()
    given = [c.get("class_path") if isinstance(c, Mapping) else c for c in (callbacks if isinstance(callbacks, list) else [callbacks])]
    if any(str(path).endswith("ModelCheckpoint") for path in given) or hasattr(tasks.get(spec.name), "monitor"):
        return True
    return hasattr(_built(spec), "monitor")


def _built(spec: ResolvedSpec) -> LightningModule:
    """Build a module on the meta device, where parameters take no memory, or on the CPU if its constructor needs tensor values."""
    module: LightningModule
    with torch.random.fork_rng(devices=[]):
        try:
            with torch.device("meta"):
                module = built(tasks, spec)
        except ConfigurationError:
            module = built(tasks, spec)
    return module


def limits_of(recipe: Mapping[str, Any], *, takes_seed: bool) -> list[str]:
    """Return sentences on effects of the user's own classes in a complete recipe that a study can neither control nor measure."""
    model, data = recipe["model"]["name"], recipe.get("data", {}).get("name")
    found = []
    if is_own_module(model):
        found += [
            f"{model} is not a task of attnkit: its FLOPs are unknown",
            f"initialisation and dropout of {model} draw from torch's generator: it has the same state for all variants when the module is "
            "built and when each step begins, but a variant that draws more or fewer numbers shifts its later draws until the next step",
        ]
    if data is not None and issubclass(datasets.get(data), Framing):
        return found
    source = model if data is None else data
    if not takes_seed:
        found.append(
            f"{source} takes no seed: the study's seed of data sets the global generators of torch, NumPy and Python before its data are "
            "set up, before each epoch (a DataLoader shuffles then) and before each batch; other generators are not controlled"
        )
    return [
        *found,
        f"each int64 value other than 0 in a batch of {source} counts as a token",
        f"a run that was interrupted within an epoch resumes as Lightning does, with other batches of {source} unless the loader can be "
        "resumed; the hash of the batches shows it",
    ]
