"""Bytes of files by hand, for the hostile ones."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path


class Shell:
    """Its pickle runs a command when it is read."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ('touch "$ATTNKIT_CANARY"',)


def text(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def npy(shape: str, descr: str = "<f4", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (64 - (11 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


def zigzag(number: int, *, width: int = 1) -> bytes:
    """Return the bytes of a number in Thrift's compact protocol, padded to `width` bytes."""
    rest, groups = number << 1, []
    while rest or len(groups) < width:
        groups.append(rest & 0x7F)
        rest >>= 7
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])
