"""Records the provenance of a run: the code it imports, the files it reads, its packages and its processor."""

import platform
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from torch._inductor.runtime.cache_dir_utils import cache_dir  # of compiled kernels
from typing_extensions import override

from attnkit.files import cache_folder
from attnkit.recipe import class_paths
from attnkit.registry import ENTRY_POINT_GROUP, IMPORTS, module_names
from attnkit.worker import opened
from attnkit.worker.folder import PROVENANCE, read_record, write_json
from attnkit.worker.provenance import Provenance, processor
from attnkit.worker.sources import imported, packages

LIBRARIES = ("torch", "lightning")  # not plugins, although class paths may refer to them: their versions are recorded


def own_code(plugins: Collection[str] = ()) -> dict[str, str]:
    """Return hashes, by module, of the sources that this process has imported, including those of plugins."""
    return imported(plugins, generated=cache_dir())


def plugins_of(recipe: Mapping[str, Any]) -> set[str]:
    """Return the top-level packages of the modules and class paths that a recipe names, and of installed plugins."""
    named = {name.partition(".")[0] for name in (*module_names(recipe.get(IMPORTS)), *class_paths(recipe))} - {*LIBRARIES}
    return named | {point.module.partition(".")[0] for point in entry_points(group=ENTRY_POINT_GROUP)}


class Witness(Callback):
    """Writes the provenance of a run to its folder when training starts and again, more complete, at the end or when training fails.

    A run that continues from a checkpoint keeps the record of its earlier parts.
    """

    def __init__(self, folder: Path, recipe: Mapping[str, Any], *, continued: bool) -> None:
        self.folder, self.device, self.began = folder, "", False
        self.plugins = plugins_of(recipe)
        found = read_record(Provenance, folder / PROVENANCE) if continued else None
        self.before = () if found is None else (*found.before, replace(found, before=()))
        own_code(self.plugins)  # hash the files now, before anybody edits them

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if pl_module.device.type == "cuda":
            self.device = torch.cuda.get_device_name(pl_module.device)
        self.began = True
        if trainer.is_global_zero:
            self.write()

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        if self.began and trainer.is_global_zero and isinstance(exception, Exception):  # the failure may be an outcome
            self.write()

    def made(self) -> Provenance:
        """Return the provenance of the run as known so far, without that of its earlier parts."""
        return Provenance(
            code=own_code(self.plugins),
            data=opened.digests(without=(self.folder.absolute(), cache_folder().absolute(), cache_dir())),
            packages=packages(opened.packages_read()),
            processor=replace(processor(torch.get_num_threads()), capability=torch.backends.cpu.get_cpu_capability(), device=self.device),
            system=platform.platform(),
        )

    def write(self) -> None:
        """Write the provenance as known so far."""
        made = self.made()
        before = tuple(earlier for earlier in self.before if not _is_within(earlier, made))
        write_json(self.folder / PROVENANCE, asdict(replace(made, before=before)))


def _is_within(earlier: Provenance, made: Provenance) -> bool:
    """Return whether an earlier part of a run was made like the current one; it may have read or imported less."""
    pairs = ((earlier.code, made.code), (earlier.data, made.data), (earlier.packages, made.packages))
    return all(one.items() <= other.items() for one, other in pairs) and earlier.processor == made.processor
