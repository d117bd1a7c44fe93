"""Saves checkpoints whole or not at all."""

from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.plugins import TorchCheckpointIO
from typing_extensions import override

from attnkit.checkpoint.archive import check_archive
from attnkit.checkpoint.errors import ArchiveError, CheckpointError, ForeignError
from attnkit.checkpoint.loading import read_checkpoint
from attnkit.files import atomic


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its target and renames it, so that neither a kill nor a full disk leaves a truncated one.

    It also loads sharded checkpoints, which another strategy wrote.

    (Lightning's own plugin writes to the folder for temporary files. A move from there to another disk is a copy, which can be truncated.)

    Example:
        >>> from lightning.pytorch import Trainer
        >>> trainer = Trainer(plugins=[AtomicCheckpointIO()], logger=False, accelerator="cpu", enable_checkpointing=False)
    """

    @override
    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any | None = None) -> None:
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        try:
            with atomic(path) as file:
                with file.open("wb") as stream:  # given a path, torch does not say why a write failed
                    torch.save(checkpoint, stream)
                _require_loadable(file)
        except (OSError, RuntimeError) as error:
            cause = error if isinstance(error, OSError) else error.__context__
            if not isinstance(cause, OSError):
                raise
            message = f"cannot write the checkpoint ({cause.strerror or cause}); earlier checkpoints are intact"
            raise OSError(cause.errno, message, str(path)) from error

    @override
    def load_checkpoint(self, path: str | Path, map_location: Any = None, weights_only: bool | None = None) -> Any:
        """Load a checkpoint on the CPU, as data only, whatever `weights_only` is."""
        if "://" in str(path):
            return super().load_checkpoint(path, weights_only=True)
        return read_checkpoint(Path(path))


def _require_loadable(file: Path) -> None:
    try:
        check_archive(file)
    except ForeignError:
        pass  # a user's own callback saves more than plain data
    except ArchiveError as error:
        raise CheckpointError(f"the checkpoint could not be loaded again: {error}. Is the vocabulary too large?") from error
