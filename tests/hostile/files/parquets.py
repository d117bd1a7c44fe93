"""Hostile parquet files."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.hostile.files.writing import text, zigzag


def parquet(folder: Path, column: list[str], **options: object) -> Path:
    import pyarrow as arrow
    import pyarrow.parquet as library

    library.write_table(arrow.table({"text": column}), folder / "a.parquet", **options)
    return folder / "a.parquet"


def parquet_bomb(folder: Path) -> Path:
    """96 MB of zeros, compressed to some kB."""
    return parquet(folder, ["0" * (8 << 20)] * 12, compression="zstd", use_dictionary=False, write_statistics=False)


def parquet_page_bomb(folder: Path) -> Path:
    """640 MB of zeros in one page, in a file whose metadata claim 1,000 bytes."""
    import pyarrow.parquet as library

    path = folder / "a.parquet"  # another process writes it, so that its memory is not counted
    code = f"""import pyarrow as arrow, pyarrow.parquet as parquet
parquet.write_table(
    arrow.table({{"text": ["0" * (64 << 20)] * 10}}), {str(path)!r}, compression="zstd", use_dictionary=False, write_statistics=False,
    data_page_size=1 << 30,
)"""
    subprocess.run([sys.executable, "-c", code], check=True)
    group, content = library.ParquetFile(path).metadata.row_group(0), path.read_bytes()
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        varint = zigzag(size)
        assert varint in content
        content = content.replace(varint, zigzag(1000, width=len(varint)))
    return text(folder, "a.parquet", content)


def parquet_dictionary_bomb(folder: Path) -> Path:
    """A text of 1 MB, 65,536 times by reference."""
    import pyarrow as arrow
    import pyarrow.parquet as library

    indices = arrow.array(np.zeros(65_536, np.int32))
    column = arrow.DictionaryArray.from_arrays(indices, arrow.array(["x" * (1 << 20)]))
    library.write_table(arrow.table({"text": column}), folder / "a.parquet", dictionary_pagesize_limit=1 << 24)
    return folder / "a.parquet"


def parquet_flipped(folder: Path) -> Path:
    """A flipped byte in the page of data."""
    path = parquet(folder, [f"text {i}" for i in range(1000)], compression="snappy", use_dictionary=False)
    content = bytearray(path.read_bytes())
    for i in range(4, 64):
        content[i] ^= 0xFF
    return text(folder, "a.parquet", bytes(content))


def parquet_header(folder: Path) -> Path:
    """A footer that is larger than the file."""
    return text(folder, "a.parquet", b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1")
