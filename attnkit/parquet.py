"""Parquet files, read within a memory limit that depends on their size."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from attnkit.files import regular, too_large, unpacked_limit
from attnkit.registry import ConfigurationError


def read_parquet(path: str | Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a parquet file, one at a time.

    Strings are read dictionary-encoded, so a string that is repeated a million times is stored once. Names of columns must differ.
    """
    try:
        library = import_module("pyarrow.parquet")
    except ImportError as error:
        raise ConfigurationError(f"{path} needs the library 'pyarrow': pip install 'attnkit[data]'") from error
    path = regular(path)
    limit = unpacked_limit(path.stat().st_size)
    sys.audit("open", str(path), "rb", 0)  # Python's `open` raises this event, but pyarrow opens files itself
    try:
        with library.ParquetFile(path) as described:
            texts = [c.path for c in map(described.schema.column, range(len(described.schema))) if c.physical_type == "BYTE_ARRAY"]
            metadata = described.metadata
            names = described.schema_arrow.names
            if repeated := [name for i, name in enumerate(names) if name in names[:i]]:
                raise ConfigurationError(f"{path}: several columns are named {repeated[0]!r}: rename all but one")
            if sum(metadata.row_group(i).total_byte_size for i in range(metadata.num_row_groups)) > limit:
                raise too_large(path)
        with library.ParquetFile(path, read_dictionary=texts) as file:
            batches = file.iter_batches(batch_size=8192, use_threads=False)
            while (batch := _next_within(batches, 4 * unpacked_limit(path.stat().st_size))) is not None:
                for i in range(batch.num_rows):
                    row = {name: column[i].as_py() for name, column in zip(batch.schema.names, batch.columns, strict=True)}
                    limit -= sum(len(value) for value in row.values() if isinstance(value, str | bytes))
                    if limit < 0:
                        raise too_large(path)
                    yield row
    except ConfigurationError:
        raise
    except MemoryError as error:
        raise too_large(path) from error
    except Exception as error:  # pyarrow's errors have no common base class: OSError, ValueError, NotImplementedError, ...
        raise ConfigurationError(f"{path} is damaged, or not a parquet file ({str(error).strip().splitlines()[0][:200]})") from error


def _next_within(batches: Iterator[Any], growth: int) -> Any:
    """Return the next item or None; on Linux, limit the growth of this process's address space to `growth` bytes meanwhile.

    pyarrow trusts the uncompressed size stated by each page of a file, whatever the file's metadata says. pyarrow's own allocator would
    reserve a gigabyte in advance, so `import attnkit` selects the system's.
    """
    statm = Path("/proc/self/statm")
    if not statm.exists():
        return next(batches, None)
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = int(statm.read_text(encoding="ascii").split()[0]) * resource.getpagesize() + growth
    resource.setrlimit(resource.RLIMIT_AS, (min([bound, *(n for n in (soft, hard) if n != resource.RLIM_INFINITY)]), hard))
    try:
        return next(batches, None)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
