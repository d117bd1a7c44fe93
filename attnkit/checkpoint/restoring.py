"""Reports state in a checkpoint that cannot be restored."""

from collections.abc import Iterator
from contextlib import contextmanager

from attnkit.checkpoint.errors import CheckpointError
from attnkit.lightning_internals import is_restoring
from attnkit.registry import ConfigurationError

_OWN = (ConfigurationError, OSError, MemoryError)  # these already say what is wrong


@contextmanager
def restoring() -> Iterator[None]:
    """Turn an error that Lightning raises while it restores the state in a checkpoint into a `CheckpointError`."""
    try:
        yield
    except Exception as error:  # a state of the wrong types may fail in any way
        if isinstance(error, _OWN) or not is_restoring(error):
            raise
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:200]}"
        raise CheckpointError(f"the state in the checkpoint cannot be restored ({reason}): use an earlier checkpoint") from error
