import csv
import json
import re
import sys
from pathlib import Path

import pytest

from attnkit import ConfigurationError
from attnkit.corpus import tables
from attnkit.corpus.documents import read_documents
from attnkit.corpus.reading import read_columns
from attnkit.corpus.tables import BadRows

PAIRS = [("a b", "A"), ('c, "d"', "å 한"), ("", "E")]
COLUMNS = ("source", "target")


def write(path: Path, text: str | bytes) -> str:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def refusal(location: str, *columns: str | int) -> str:
    with pytest.raises(ConfigurationError) as refused:
        read_columns(location, columns or COLUMNS)
    return str(refused.value)


def test_tsv_with_a_header_finds_columns_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "id\ttarget\tsource\n" + "".join(f"7\t{t}\t{s}\n" for s, t in PAIRS))
    assert read_columns(path, COLUMNS) == PAIRS


def test_tsv_without_a_header_reads_the_source_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "".join(f"{s}\t{t}\tmore\n" for s, t in PAIRS))
    assert read_columns(path, COLUMNS) == PAIRS
    assert read_columns(path, ["source"]) == [(s,) for s, _ in PAIRS]
    assert read_columns(path, [1, 0]) == [(t, s) for s, t in PAIRS]


def test_tsv_accepts_crlf_a_byte_order_mark_and_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "\ufeffsource\ttarget\r\n\r\na\tA\r\n\r\n")
    assert read_columns(path, COLUMNS) == [("a", "A")]


def test_an_empty_text_in_a_csv_of_one_column_is_no_blank_line(tmp_path: Path) -> None:
    """Otherwise the predictions for a table as pandas writes it would not match its rows."""
    path = write(tmp_path / "a.csv", '\n""\nsource\na\n""\n\nb\n')
    assert read_columns(path, ["source"]) == [("a",), ("",), ("b",)]
    assert read_columns(write(tmp_path / "b.csv", 'source,target\n"",""\na,A\n'), COLUMNS) == [("a", "A")]


def test_quoted_csv_cells_may_span_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'source,target\n"a, b","say ""A""\nagain"\nc,C\n')
    assert read_columns(path, COLUMNS) == [("a, b", 'say "A"\nagain'), ("c", "C")]
    assert read_columns(path, [1])[0] == ("target",)


def test_columns_reach_into_objects_of_jsonl_and_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    rows = [{"translation": {"en": s, "ko": t}} for s, t in PAIRS]
    jsonl = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    for location in (jsonl, str(tmp_path / "a.parquet")):
        assert read_columns(location, ["translation.en", "translation.ko"]) == PAIRS
    assert "row 0: no column 'translation.de'" in refusal(str(tmp_path / "a.parquet"), "translation.de")


def squad(answers: list[list[tuple[str, int]]]) -> list[dict[str, object]]:
    """Rows as in SQuAD's data set on the hub."""
    return [
        {"question": "where", "context": "in Paris", "answers": {"text": [t for t, _ in row], "answer_start": [s for _, s in row]}}
        for row in answers
    ]


SQUAD = ("question", "context", "answers.text.0", "answers.answer_start.0")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub"])
def test_a_number_in_a_column_path_indexes_a_list(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = squad([[("Paris", 3), ("in Paris", 0)], [("in", 0)]])
    location = write(tmp_path / "train.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    if kind == "parquet":
        pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        location = str(tmp_path / "a.parquet")
        parquet.write_table(pyarrow.Table.from_pylist(rows), location)
    elif kind == "hub":
        pytest.importorskip("datasets")
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
        location = f"hub:{tmp_path}:train"
    found = read_columns(location, SQUAD, numbers=SQUAD[3:])
    assert found == [("where", "in Paris", "Paris", "3"), ("where", "in Paris", "in", "0")]
    message = refusal(location, "question", "answers.text")
    assert "column 'answers.text' leads to a list, ['Paris', 'in Paris']: write 'answers.text.0' for its first element. " in message
    assert message.endswith("data.corpus.columns chooses the columns, now [question, answers.text]")


def test_a_missing_index_raises_and_a_short_list_is_a_bad_row(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", "".join(json.dumps(row) + "\n" for row in squad([[], [("Paris", 3)]])))
    with pytest.raises(ConfigurationError, match=r"no element 0 for column 'answers.text.0': the list has 0 elements\. Correct the row"):
        read_columns(path, SQUAD, numbers=SQUAD[3:], bad_rows=BadRows("error"))
    assert read_columns(path, SQUAD, numbers=SQUAD[3:], bad_rows=BadRows("skip")) == [("where", "in Paris", "Paris", "3")]
    with pytest.raises(ConfigurationError) as refused:
        read_columns(path, ["answers.text"], bad_rows=BadRows("error"))
    assert "on_bad_rows" not in str(refused.value)
    with pytest.raises(ConfigurationError, match=r"no usable row\. The first skipped row: .*write 'answers.text.0'"):
        read_columns(path, ["answers.text"], bad_rows=BadRows("skip"))


def test_an_index_reaches_into_a_list_of_objects(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json.dumps({"answers": [{"text": "a"}, {"text": "b"}], "0": "zero"}) + "\n")
    assert read_columns(path, ["answers.1.text", "0"]) == [("b", "zero")]
    assert "column 'answers.text' leads to a list" in refusal(path, "answers.text")
    assert "write 'answers.0.text'" in refusal(path, "answers.text")


def test_txt_has_one_text_per_line_including_blank_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "a b\n\nc\td")
    assert read_columns(path, ["source"]) == [("a b",), ("",), ("c\td",)]
    assert "one text per line" in refusal(path)
    assert "paste FIRST.txt SECOND.txt > both.tsv" in refusal(path)


def test_a_hub_name_is_read_by_the_datasets_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mine").mkdir()
    write(tmp_path / "mine" / "train.jsonl", "".join(json.dumps({"source": s, "target": t}) + "\n" for s, t in PAIRS))
    location = f"hub:{tmp_path / 'mine'}:train"
    assert read_columns(location, COLUMNS) == PAIRS
    assert "no column 'sauce'. Did you mean 'source'?" in refusal(location, "sauce")
    assert "cannot be loaded" in refusal(f"hub:{tmp_path / 'mine'}:absent")


@pytest.mark.parametrize("location", ["hub:", "hub:name", "hub:a:b:c:d", "hub::train"])
def test_a_hub_location_needs_a_name_and_a_split(location: str) -> None:
    assert "must be 'hub:NAME:SPLIT'" in refusal(location)


@pytest.mark.parametrize(("location", "library"), [("hub:wmt16:de-en:train", "datasets"), ("a.parquet", "pyarrow")])
def test_a_missing_library_is_named(location: str, library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (library, "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, module, None)  # as Python marks what cannot be imported
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.parquet", "")
    assert f"{location} needs the library '{library}': pip install 'attnkit[data]'" in refusal(location)


def test_a_missing_file_is_named_with_a_suggestion(tmp_path: Path) -> None:
    write(tmp_path / "train.tsv", "a\tA")
    message = refusal(str(tmp_path / "trian.tsv"))
    assert "there is no data file" in message
    assert f"(looked in {tmp_path}). Did you mean 'train.tsv'?" in message


def test_an_unknown_suffix_lists_the_known_ones(tmp_path: Path) -> None:
    message = refusal(write(tmp_path / "a.tsvv", "a\tA"))
    assert "unknown suffix '.tsvv'. Did you mean '.tsv'? Known: .tsv, .csv, .jsonl, .parquet, .txt; rename" in message
    for suffix, command in (("gz", "gunzip"), ("xz", "unxz")):
        assert f"Known: .tsv, .csv, .jsonl, .parquet, .txt; decompress the file, as with: {command}" in (
            message := refusal(write(tmp_path / f"a.tsv.{suffix}", ""))
        )
        assert "Did you mean" not in message


def test_a_missing_column_lists_nested_columns(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"id": 1, "translation": {"en": "a", "ko": "A"}}\n')
    assert "Columns found: 'id', 'translation.en', 'translation.ko'." in refusal(path)


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl"])
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_file_is_rejected(name: str, content: str, tmp_path: Path) -> None:
    assert f"{name} is empty: it has no examples" in refusal(write(tmp_path / name, content))


def test_a_file_with_only_a_header_is_empty(tmp_path: Path) -> None:
    assert "is empty" in refusal(write(tmp_path / "a.tsv", "source\ttarget\n"))


@pytest.mark.parametrize("name", ["a.tsv", "a.csv", "a.jsonl", "a.txt"])
def test_a_line_that_is_not_utf8_is_named_with_its_number(name: str, tmp_path: Path) -> None:
    good = {"a.tsv": "a\tA", "a.csv": "source,target", "a.jsonl": '{"source": "", "target": ""}', "a.txt": "a"}[name]
    path = write(tmp_path / name, f"{good}\n{good}\n".encode() + b"caf\xe9\n")
    message = refusal(path, *COLUMNS[: 1 if name == "a.txt" else 2])
    assert f"{path}:3: not UTF-8 (byte 0xe9 at column 4)" in message


@pytest.mark.parametrize(
    ("name", "content", "line", "reason"),
    [
        ("a.tsv", "a\tA\nb\n", 2, "1 cell, but line 1 has 2: 'b'"),
        ("a.tsv", "source\tid\ttarget\n\na\t1\tA\nb\t2\n", 4, "2 cells, but the header has 3: 'b', '2'"),
        ("a.tsv", "a\tA\nb\tB\tC\n", 2, "3 cells, but line 1 has 2: 'b', 'B', 'C' (a cell cannot contain a tab"),
        ("a.csv", "source,target\na,A\nb\n", 3, "1 cell, but the header has 2: 'b'"),
        ("a.csv", "source,target\nHello, world,Bonjour\n", 2, "3 cells, but the header has 2: 'Hello', ' world', 'Bonjour' (a cell with a"),
        ("a.csv", 'source,target\n"a\nb",A\nc\n', 4, "1 cell, but the header has 2: 'c'"),
        ("a.csv", 'source,target\na,A\nb,"B"B\n', 3, "not CSV (',' expected after"),
        ("a.csv", "source,target\na,A\rb,B\n", 2, "not CSV (a carriage return outside of quotes)"),
        ("a.jsonl", '{"source": "a", "target": "A"}\n{"source": "b"}\n', 2, "no column 'target'. Columns found: 'source'."),
        ("a.jsonl", '{"source": "a", "target": null}\n', 1, "column 'target' must be text, but is None (NoneType)"),
    ],
)
def test_an_unusable_row_is_an_error_with_file_and_line(name: str, content: str, line: int, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / name, content)
    assert refusal(path).startswith(f"{path}:{line}: {reason}")
    with pytest.raises(ConfigurationError, match="Correct the row, or omit such rows with on_bad_rows: skip"):
        read_columns(path, COLUMNS, bad_rows=BadRows("error"))


@pytest.mark.parametrize(
    ("name", "content", "used", "skipped", "first"),
    [
        ("a.csv", b"source,target\nHello, world,Bonjour\na,A\nb\n,,,\n\xff,X\n", [("a", "A")], 3, "a.csv:2: 3 cells"),
        ("a.csv", b'source,target\n"a\n\xff",A\nb,B\n', [("b", "B")], 1, "a.csv:3: not UTF-8"),
        ("a.tsv", b"source\ttarget\na\tA\nb\nc\tC\tD\n\t\n\xff\tX\n", [("a", "A")], 3, "a.tsv:3: 1 cell"),
        ("a.jsonl", b'{}\n{"source": "a", "target": "A"}\n[]\n{\n{"source": 1, "target": "A"}\n', [("a", "A")], 4, "a.jsonl:1: no column"),
    ],
)
def test_bad_rows_can_be_skipped_and_are_counted_once(
    name: str, content: bytes, used: list[tuple[str, str]], skipped: int, first: str, tmp_path: Path
) -> None:
    path, bad = write(tmp_path / name, content), BadRows("skip")
    for _ in range(2):
        assert read_columns(path, COLUMNS, bad_rows=bad) == used
    assert len(bad) == skipped
    assert str(bad.first).startswith(f"{tmp_path}/{first}")


def test_an_empty_label_is_a_bad_row_and_an_empty_text_is_not(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "text,label\n,y\nz,\nq, \n")
    bad = BadRows("skip")
    assert read_columns(path, ["text", "label"], numbers=["label"], bad_rows=bad) == [("", "y")]
    assert len(bad) == 2
    assert bad.first == f"{path}:3: column 'label' is empty"


def test_a_null_in_a_table_of_columns_is_a_bad_row(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    table = pytest.importorskip("pyarrow").table({"text": ["a", None, "c"], "label": [1.0, 0.0, float("nan")]})
    parquet.write_table(table, tmp_path / "a.parquet")
    path, bad = str(tmp_path / "a.parquet"), BadRows("skip")
    assert read_columns(path, ["text", "label"], numbers=["label"], bad_rows=bad) == [("a", "1.0")]
    assert len(bad) == 2
    assert refusal(path, "text").startswith(f"{path}, row 1: column 'text' must be text, but is None")


def test_skipping_every_row_is_an_error_that_shows_the_first(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "source,target\na\nb\n")
    with pytest.raises(ConfigurationError, match=r"a.csv has no usable row. The first skipped row: .*a.csv:2: 1 cell"):
        read_columns(path, COLUMNS, bad_rows=BadRows("skip"))


def test_the_bad_row_policy_is_error_or_skip() -> None:
    with pytest.raises(ConfigurationError, match="on_bad_rows must be error or skip, but is 'ignore'"):
        BadRows("ignore")  # type: ignore[arg-type]


def test_a_duplicate_header_name_is_rejected_if_needed(tmp_path: Path) -> None:
    for name, line in (("a.csv", "source,target,target"), ("a.tsv", "source\ttarget\ttarget")):
        path = write(tmp_path / name, f"{line}\n")
        assert refusal(path) == f"{path}:1: several columns are named 'target': rename all but the one to be read"
        assert "is empty" in refusal(path, "source")


def test_repeated_names_in_parquet_are_rejected(tmp_path: Path) -> None:
    """A row as a mapping would hold the last of the columns."""
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.Table.from_arrays([arrow.array([c]) for c in "abc"], names=[*COLUMNS, "source"]), tmp_path / "a.parquet")
    assert refusal(str(tmp_path / "a.parquet")) == f"{tmp_path}/a.parquet: several columns are named 'source': rename all but one"


def test_missing_header_names_get_a_suggestion(tmp_path: Path) -> None:
    path = write(tmp_path / "a.tsv", "sources\ttarget\na\tA\n")
    assert refusal(path).startswith(f"{path}:1: no column 'source'. Did you mean 'sources'? Columns found: 'sources', 'target'.")
    assert "no column 'word'" in refusal(path, "word", "pronunciation")
    assert "no column 2. " in refusal(path, 0, 2)
    for header in ("Source\tTarget", '"source"\t"target"', "id\tsource \t target"):  # it would be a row, and its label a class
        assert "no column 'source'. Did you mean" in refusal(write(tmp_path / "b.tsv", f"{header}\na\tA\n"))
    headless = write(tmp_path / "a.csv", "a,A\n")
    assert "Without a header line, columns are positions from 0" in refusal(headless)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "not JSON"),
        ('["a"]', "must be a JSON object"),
        ('{"source": 1, "target": "A"}', "column 'source' must be text, but is 1 (int)"),
    ],
)
def test_a_non_row_json_line_is_named_with_its_number(line: str, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", '{"source": "a", "target": "A"}\n' + line)
    assert re.match(re.escape(f"{path}:2: {reason}"), refusal(path))


def test_a_file_that_is_not_parquet_is_rejected(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    assert "a.parquet is damaged, or not a parquet file" in refusal(write(tmp_path / "a.parquet", "a\tA"))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"])
def test_text_in_wide_characters_is_recognised_even_without_a_mark(encoding: str, tmp_path: Path) -> None:
    """Otherwise it is UTF-8 with zeros between the letters."""
    path = write(tmp_path / "a.txt", "Once upon a time\n".encode(encoding))
    for read in (lambda: read_columns(path, ["source"]), lambda: list(next(iter(read_documents(path, None))))):
        with pytest.raises(ConfigurationError, match=r"a\.txt is (UTF-\d\d, )?not UTF-8.*iconv -f (UTF-\d\d|ENCODING) "):
            read()
    assert read_columns(write(tmp_path / "b.txt", "a\0\n"), ["source"]) == [("a\0",)]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('source,target\na,A\n"b\nb","open\nc,C\n', 4),
        ('source,target\n"a,A\n' + "b,B\n" * 50_000, 2),
        ('source,target\na,"', 2),
    ],
)
def test_an_unclosed_quote_is_reported_with_its_line(content: str, line: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", content)
    for policy in (None, "error", "skip"):
        with pytest.raises(ConfigurationError) as refused:
            read_columns(path, COLUMNS, bad_rows=BadRows(policy))
        assert str(refused.value).startswith(f"{path}:{line}: a quote opens in this line, and none closes it. ")


def test_a_malformed_multi_line_row_is_never_skipped(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'source,target\n"a,A\nb,B\n"c",C\n')
    with pytest.raises(ConfigurationError, match=r"a.csv:2: not CSV: the row from this line to line 4 has text after"):
        read_columns(path, COLUMNS, bad_rows=BadRows("skip"))


def test_a_carriage_return_after_a_cell_of_several_lines_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", 'source,target\n"a\nb",A\rB\n')
    with pytest.raises(ConfigurationError, match=r"a.csv:2: not CSV: the row from this line to line 3 has a carriage return outside"):
        read_columns(path, COLUMNS, bad_rows=BadRows("skip"))


def test_cells_may_be_long_up_to_a_limit_of_the_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = csv.field_size_limit()
    long = "x, " * 100_000
    path = write(tmp_path / "a.csv", f'source,target\n"{long}",{"y" * 200_000}\n')
    assert read_columns(path, COLUMNS) == [(long, "y" * 200_000)]
    monkeypatch.setattr(tables, "LONGEST_CELL", 1000)
    assert refusal(path) == f"{path}:2: a cell of more than 1,000 characters, which is the limit"
    path = write(tmp_path / "b.csv", 'source,target\na,"' + "x\n" * 1000)
    assert refusal(path).startswith(f"{path}:2: a quote opens in this line, and none closes it within 1,000 characters")
    assert csv.field_size_limit() == before


def test_line_breaks_in_cells_are_normalised(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", '\ufeffsource,target\r\n"a\r\nb",A\r\n')
    assert read_columns(path, COLUMNS) == [("a\nb", "A")]
