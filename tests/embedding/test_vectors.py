import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from attnkit import ConfigurationError
from attnkit.embedding.vectors import read_vectors

DIM = 4
WORDS = ["the", "Straße", "고양이", "x y", "2020"]


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(WORDS), DIM)).astype(np.float32)


def text(rows: np.ndarray) -> bytes:
    return "".join(f"{w} {' '.join(map(repr, r.tolist()))}\n" for w, r in zip(WORDS, rows, strict=True)).encode()


def header(rows: np.ndarray) -> bytes:
    return f"{len(rows)} {DIM}\n".encode()


def binary(rows: np.ndarray, *, breaks: bool = True) -> bytes:
    words = [w.replace(" ", "_") for w in WORDS]
    return header(rows) + b"".join(w.encode() + b" " + r.astype("<f4").tobytes() + b"\n" * breaks for w, r in zip(words, rows, strict=True))


def glove(folder: Path, rows: np.ndarray) -> Path:
    (folder / "v.txt").write_bytes(text(rows))
    return folder / "v.txt"


def word2vec_text(folder: Path, rows: np.ndarray) -> Path:
    (folder / "v.vec").write_bytes(header(rows) + text(rows).replace(b"\n", b" \n"))  # fastText ends its lines with a space
    return folder / "v.vec"


def word2vec_binary(folder: Path, rows: np.ndarray) -> Path:
    (folder / "v.bin").write_bytes(binary(rows))
    return folder / "v.bin"


def binary_without_breaks(folder: Path, rows: np.ndarray) -> Path:
    (folder / "v.bin").write_bytes(binary(rows, breaks=False))
    return folder / "v.bin"


def compressed_text(folder: Path, rows: np.ndarray) -> Path:
    (folder / "v.txt.gz").write_bytes(gzip.compress(text(rows)))
    return folder / "v.txt.gz"


def compressed_binary(folder: Path, rows: np.ndarray) -> Path:
    (folder / "v.bin.gz").write_bytes(gzip.compress(binary(rows)))
    return folder / "v.bin.gz"


def matrix(folder: Path, rows: np.ndarray) -> Path:
    np.save(folder / "v.npy", rows)
    (folder / "v.txt").write_text("\n".join(WORDS))
    return folder / "v.npy"


def matrix_with_parquet(folder: Path, rows: np.ndarray) -> Path:
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    np.save(folder / "v_emb.npy", rows)
    parquet.write_table(arrow.table({"index": WORDS}), folder / "v_index.parquet")
    return folder / "v_emb.npy"


FORMATS = [
    glove, word2vec_text, word2vec_binary, binary_without_breaks, compressed_text, compressed_binary, matrix, matrix_with_parquet,
]  # fmt: skip


@pytest.mark.parametrize("write", FORMATS)
def test_every_format_yields_the_requested_vectors(write: Callable[[Path, np.ndarray], Path], tmp_path: Path, rows: np.ndarray) -> None:
    path = write(tmp_path, rows)
    found = read_vectors(str(path), ["Straße", "고양이", "2020", "absent"], dim=DIM)
    assert list(found) == ["Straße", "고양이", "2020"]
    for word, i in (("Straße", 1), ("고양이", 2), ("2020", 4)):
        np.testing.assert_array_equal(found[word], rows[i])


def test_a_word_with_spaces_is_found(tmp_path: Path, rows: np.ndarray) -> None:
    np.testing.assert_array_equal(read_vectors(str(glove(tmp_path, rows)), ["x y"], dim=DIM)["x y"], rows[3])


@pytest.mark.parametrize("write", FORMATS)
@pytest.mark.parametrize("dim", [DIM - 1, DIM + 1])
def test_another_width_is_refused(write: Callable[[Path, np.ndarray], Path], dim: int, tmp_path: Path, rows: np.ndarray) -> None:
    with pytest.raises(ConfigurationError, match=f"dim (is|=){dim}|dim is {dim}|dim={dim}"):
        read_vectors(str(write(tmp_path, rows)), ["the"], dim=dim)


@pytest.mark.parametrize("write", [f for f in FORMATS if f is not glove])  # GloVe's format does not state the number of lines
def test_a_truncated_file_is_refused(write: Callable[[Path, np.ndarray], Path], tmp_path: Path, rows: np.ndarray) -> None:
    path = write(tmp_path, rows)
    content = path.read_bytes()
    path.write_bytes(content[: -max(12, content[::-1].find(b"\n", 1))])
    with pytest.raises(ConfigurationError, match=r"truncated|damaged"):
        read_vectors(str(path), WORDS, dim=DIM)


def test_a_truncated_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text("a 1 2\nb 3\n")
    with pytest.raises(ConfigurationError, match=r"v.txt:2: 1 numbers after the word, but dim is 2: the line is truncated"):
        read_vectors(str(path), ["a"], dim=2)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\na 1 2\n", r"v.txt:2: duplicate word 'a', first at .*v.txt:1"),
        ("b 1 2\na 1 x\n", r"v.txt:2: '1 x' is not a row of numbers"),
        ("a 1 nan\n", "the vector of 'a' is not finite"),
        ("", "is empty"),
        ("3 2\na 1 2\n", "its header says 3 words, but 1 lines follow"),
        ("1 2\na 1 2\nb 3 4\n", "its header says 1 words, but 2 lines follow"),
        ("1 5\na 1 2 3 4 5\n", "vectors of 5 numbers, but dim is 2; set dim: 5"),
    ],
)
def test_damage_in_a_text_file_is_named(content: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "v.txt"
    path.write_text(content)
    with pytest.raises(ConfigurationError, match=message):
        read_vectors(str(path), ["a"], dim=2)


def test_damage_in_a_binary_file_is_named(tmp_path: Path, rows: np.ndarray) -> None:
    path = tmp_path / "v.bin"
    path.write_bytes(binary(rows) + b"more")
    with pytest.raises(ConfigurationError, match="says 5 words of 4 numbers, but more data follows"):
        read_vectors(str(path), WORDS, dim=DIM)
    path.write_bytes(text(rows))
    with pytest.raises(ConfigurationError, match="not in word2vec's binary format"):
        read_vectors(str(path), WORDS, dim=DIM)


def test_a_matrix_needs_one_word_list_of_the_same_length(tmp_path: Path, rows: np.ndarray) -> None:
    np.save(tmp_path / "v.npy", rows)
    path = str(tmp_path / "v.npy")
    with pytest.raises(ConfigurationError, match=r"needs one list of words in its folder, v.txt or v.parquet; found none"):
        read_vectors(path, WORDS, dim=DIM)
    (tmp_path / "a.txt").write_text("the\n")
    with pytest.raises(ConfigurationError, match=r"has 5 rows, but .*a.txt has 1 words"):
        read_vectors(path, WORDS, dim=DIM)
    (tmp_path / "b.txt").write_text("the\n")
    with pytest.raises(ConfigurationError, match=r"found a.txt, b.txt"):
        read_vectors(path, WORDS, dim=DIM)
    (tmp_path / "v.txt").write_text("\n".join(WORDS) + "\n")
    assert set(read_vectors(path, WORDS, dim=DIM)) == set(WORDS)
