"""Loads checkpoints as data: files, and folders of sharded checkpoints."""

import zipfile
from pathlib import Path
from typing import Any, Literal

from attnkit.checkpoint.archive import read_archive
from attnkit.checkpoint.description import ARGUMENTS, arguments_of_today, require_readable
from attnkit.checkpoint.errors import ArchiveError, CheckpointError, ForeignError
from attnkit.checkpoint.outdated import rename_weights
from attnkit.checkpoint.shards import is_sharded_checkpoint, read_rest, read_sharded, require_whole
from attnkit.files import nearest_beside

EXPORTED = ".safetensors"  # the suffix of exported models


def load_checkpoint(path: str | Path, *, parts: Literal["all", "description"] = "all", trust: bool = False) -> dict[str, Any]:
    """Load a checkpoint of attnkit on the CPU, as data only: a file, or the folder of a sharded one, whose parts are put together.

    Args:
        path: The file or folder.
        parts: `description` omits the weights and the optimizers' states of a sharded checkpoint, which may not fit into memory.
        trust: Whether class paths in it may import their modules, which runs the modules' code.

    Raises:
        CheckpointError: It is missing, truncated or damaged, not attnkit's, or written by a newer attnkit.
        MissingComponentError: A component in it is not installed, or is a class of a module that is not imported.
    """
    path = Path(path)
    checkpoint = read_rest(path) if parts == "description" and is_sharded_checkpoint(path) else read_checkpoint(path)
    require_readable(checkpoint, path, trust=trust)
    rename_weights(checkpoint.get("state_dict"), checkpoint.get(ARGUMENTS))
    return {**checkpoint, ARGUMENTS: arguments_of_today(checkpoint.get(ARGUMENTS))} if ARGUMENTS in checkpoint else dict(checkpoint)


def read_checkpoint(path: Path) -> Any:
    """Return the content of a checkpoint, whoever wrote it, as data only; raise if it is missing, damaged, not data, or beyond a limit."""
    if is_sharded_checkpoint(path):
        return read_sharded(path)
    require_file(path)
    if not zipfile.is_zipfile(path):  # torch.save writes a zip file, whose directory is at its end
        with path.open("rb") as file:
            if file.read(2) == b"PK":
                raise CheckpointError(f"{path} is truncated or damaged ({path.stat().st_size:,} bytes): use an earlier checkpoint")
        if path.suffix == EXPORTED:
            raise CheckpointError(
                f"{path} is an exported model, which has no state to continue from: give the checkpoint that it was made from"
            )
        raise CheckpointError(f"{path} is not an attnkit checkpoint; `attnkit fit` writes those")
    try:
        return read_archive(path)
    except ForeignError as error:
        raise CheckpointError(
            f"{path} is not an attnkit checkpoint: it holds more than plain data and tensors, and was not loaded ({error})"
        ) from error
    except ArchiveError as error:
        raise CheckpointError(f"{path} is damaged, or not a checkpoint ({error})") from error


def require_undamaged(path: str | Path) -> dict[str, Any]:
    """Read a checkpoint completely and compare its checksums, which torch does not when it loads; return the description, or raise."""
    path = Path(path)
    description = load_checkpoint(path, parts="description")
    if is_sharded_checkpoint(path):
        require_whole(path)
        return description
    with zipfile.ZipFile(path) as archive:
        damaged = archive.testzip()
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {damaged} is wrong")
    return description


def require_file(path: Path) -> None:
    """Raise unless a path is a regular file that is not empty; the message for a missing one names the nearest."""
    if path.is_dir():
        raise CheckpointError(f"{path} is a folder, but neither a checkpoint file nor the folder of a sharded checkpoint")
    if not path.exists():
        raise CheckpointError(f"no checkpoint at {path}.{nearest_beside(path)}")
    if not path.is_file():
        raise CheckpointError(f"{path} is a device or a pipe, not a file")
    if path.stat().st_size == 0:
        raise CheckpointError(f"{path} is truncated: it is empty")
