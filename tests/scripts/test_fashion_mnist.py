import gzip
from pathlib import Path

import numpy as np
import pytest
from fashion_mnist import read_idx
from samples import fashion_mnist as sample

from attnkit import ConfigurationError


def test_idx_files_are_read_with_their_shape_and_damage_is_reported(tmp_path: Path) -> None:
    path, array = tmp_path / "a.gz", np.arange(30, dtype=np.uint8).reshape(3, 2, 5)
    sample.write_idx(path, array)
    np.testing.assert_array_equal(read_idx(path), array)
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    with pytest.raises(ConfigurationError, match="truncated, damaged or not compressed"):
        read_idx(path)
    for wrong in (b"", b"\0\0\x09\x01\0\0\0\x01a", gzip.decompress(content)[:-1], gzip.decompress(content) + b"a"):
        path.write_bytes(gzip.compress(wrong))
        with pytest.raises(ConfigurationError, match="truncated, or not an idx file of bytes"):
            read_idx(path)
