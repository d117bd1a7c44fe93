"""Hostile archives and files of named data sets."""

import gzip
import io
import os
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

from tests.hostile.files.writing import text


def idx_bomb(folder: Path) -> Path:
    """256 MB of zeros in a compressed idx file."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    (folder / "a.gz").write_bytes(b"".join(packer.compress(bytes(16 << 20)) for _ in range(16)) + packer.flush())
    return folder / "a.gz"


def idx_overflow(folder: Path) -> Path:
    """An idx file whose number of bytes overflows 64 bits to zero."""
    (folder / "a.gz").write_bytes(gzip.compress(b"\0\0\x08\x04" + b"\x80\0\0\0" * 4))
    return folder / "a.gz"


def wheel_bomb(folder: Path) -> Path:
    """The wheel of movie reviews, whose table unpacks to 256 MB."""
    from imdb import TABLE, WHEEL

    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(TABLE, "w") as file:
        for _ in range(16):
            file.write(bytes(16 << 20))
    return folder


def sdist(folder: Path, member: tarfile.TarInfo, content: bytes = b"", *, zeros: int = 0) -> Path:
    """The sdist of the movie snippets with one member in its inner archive, and zeros after it."""
    from movie_snippets import ARCHIVE, INNER

    inner = io.BytesIO()
    with tarfile.open(fileobj=inner, mode="w") as archive:
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    packed = packer.compress(inner.getvalue()) + b"".join(packer.compress(bytes(1 << 20)) for _ in range(zeros)) + packer.flush()
    with zipfile.ZipFile(folder / ARCHIVE, "w") as outer:
        outer.writestr(INNER, packed)
    return folder


def snippets_bomb(folder: Path) -> Path:
    """An archive in an archive that unpacks to 256 MB."""
    return sdist(folder, tarfile.TarInfo("x"), zeros=256)


def snippets_outside(folder: Path) -> Path:
    """An archive whose member would be unpacked above its folder."""
    return sdist(folder, tarfile.TarInfo("../../outside"), b"x")


def snippets_link(folder: Path) -> Path:
    """A link to a file of the system in place of the data."""
    member = tarfile.TarInfo("hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt")
    member.type, member.linkname = tarfile.SYMTYPE, "/etc/passwd"
    return sdist(folder, member)


def verses_bomb(folder: Path) -> Path:
    """The verses of the King James Bible, as a block that unpacks to 256 MB."""
    from kjv import MODULE

    packer = zlib.compressobj(1)
    block = b"".join(packer.compress(bytes(16 << 20)) for _ in range(16)) + packer.flush()
    (folder / MODULE).mkdir(parents=True)
    for testament in ("ot", "nt"):
        for suffix, content in (
            ("bzs", struct.pack("<III", 0, len(block), 1 << 28)),
            ("bzv", struct.pack("<IIH", 0, 0, 9)),
            ("bzz", block),
        ):
            (folder / MODULE / f"{testament}.{suffix}").write_bytes(content)
    return folder


def _help(folder: Path, page: str) -> Path:
    """The help in English with one page, and in Korean with none."""
    for locale in ("en-US", "ko"):
        (folder / f"usr/share/libreoffice/help/{locale}/text").mkdir(parents=True)
    (folder / "usr/share/libreoffice/help/en-US/text/a.html").write_text(page)
    return folder


def help_comments(folder: Path) -> Path:
    """A page of comments that are not closed, over which an HTML parser takes minutes."""
    return _help(folder, "<!--" * (1 << 17))


def help_nested(folder: Path) -> Path:
    """A page of spans inside each other."""
    return _help(folder, '<p id="a">' + '<span hidden="x">a' * (1 << 15))


def help_word(folder: Path) -> Path:
    """A page with a tag and an attribute that do not end."""
    return _help(folder, "<" + "a" * (1 << 18) + "<p " + 'a="' * (1 << 16) + ">")


def help_large(folder: Path) -> Path:
    """A page of more than a mebibyte."""
    return _help(folder, " " * (1 << 21))


def help_pipe(folder: Path) -> Path:
    """A pipe in place of a page, from which nothing ever comes."""
    path = _help(folder, "") / "usr/share/libreoffice/help/en-US/text/b.html"
    os.mkfifo(path)
    return folder


def dictionary_empty(folder: Path) -> Path:
    """A dictionary of comments."""
    return text(folder, "cmudict.dict", "# a\n" * 1000)


def dictionary_large(folder: Path) -> Path:
    """A dictionary of 10 GB on 4 KB of disk."""
    with (folder / "cmudict.dict").open("wb") as file:
        file.truncate(10 << 30)
    return folder / "cmudict.dict"


def dictionary_binary(folder: Path) -> Path:
    """A dictionary that is not text."""
    (folder / "cmudict.dict").write_bytes(bytes(range(256)))
    return folder / "cmudict.dict"


def dictionary_pipe(folder: Path) -> Path:
    """A pipe in place of the dictionary."""
    os.mkfifo(folder / "cmudict.dict")
    return folder / "cmudict.dict"
