"""`attnkit new`: what it sees in a file, the recipe that it writes, and what it refuses."""

import os
import sys
import unicodedata
from pathlib import Path

import pytest

from attnkit.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore")
ODD = [
    "왕이 온다",
    "a\u200bb",
    "e\u0301té",
    "🤖 robot",
    "\u202eabc",
    "ﬁn",
    "naïve “quote”",
    "x" * 70,
    "#: {yaml}",
    "[1, 2]",
    "& *anchor",
    "% @ `",
]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))


def write(name: str, lines: list[str]) -> None:
    Path(name).write_text("\n".join(lines) + "\n", encoding="utf-8")


def trains(recipe: str) -> bool:
    return (
        main(["fit", "--config", recipe, "--trainer.max_steps", "2", "--trainer.limit_val_batches", "1", "--trainer.accelerator", "cpu"])
        == 0
    )


def test_a_recipe_for_pairs_with_odd_characters_trains(capsys: pytest.CaptureFixture[str]) -> None:
    write('own #1: "pairs".tsv', [f"{a}\t{b}" for a in ODD for b in ODD[:4]] + ["alone"])
    assert main(["new", "translation", "--train", './own #1: "pairs".tsv']) == 0
    said = capsys.readouterr().out
    assert "48 usable rows" in said
    assert "1 unreadable row skipped; the first: " in said
    assert "36 rows share their source with a row that has another target" in said
    assert "U+200B" in said or "U+202E" in said
    assert trains("translation.yaml")


def test_a_korean_text_is_summarised_with_its_rare_and_invisible_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [f"row {i}\t{word}" for i in range(30) for word in ("세상", "바다", "학교", unicodedata.normalize("NFD", "친구"))]
    write("own.tsv", [*rows, "last\t늘\u200b"])
    assert main(["new", "translation", "--train", "own.tsv"]) == 0
    [targets] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  targets: ")]
    assert targets.startswith(f"  targets: {2 * 120 + 2} characters (10 distinct) in ")
    assert targets.endswith("; 2 that occur once, such as '늘' (U+B298), U+200B; 1 that cannot be seen, such as U+200B")


def test_bare_carriage_returns_are_rejected_with_a_conversion_command(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.tsv").write_bytes(b"".join(b"row %d\tworld\r" % i for i in range(9)))
    assert main(["new", "translation", "--train", "own.tsv"]) == 2
    assert "the lines of own.tsv end with a carriage return alone; convert it, as with: tr '\\r' '\\n'" in capsys.readouterr().err


def test_utf_16_is_rejected_with_a_conversion_command(capsys: pytest.CaptureFixture[str]) -> None:
    Path("own.tsv").write_text("".join(f"row {i}\t세상\n" for i in range(9)), encoding="utf-16")
    assert main(["new", "translation", "--train", "own.tsv"]) == 2
    assert "own.tsv is UTF-16, not UTF-8; convert it, as with: iconv -f UTF-16 -t UTF-8" in capsys.readouterr().err


def test_recipes_for_a_text_and_for_classes_train(capsys: pytest.CaptureFixture[str]) -> None:
    write("text.txt", [f"{line} {i}" for i in range(30) for line in ODD])
    write("rows.csv", ["review,stars", *(f'"{line.replace(chr(34), "")}, {i}",{i % 2}' for i in range(5) for line in ODD), '"",1'])
    assert main(["new", "language_model", "--train", "text.txt", "--out", "a.yaml"]) == 0
    assert main(["new", "classification", "--train", "rows.csv", "--columns", "review", "stars"]) == 0
    said = capsys.readouterr().out
    assert "2 classes: '0' 59%, '1' 41%" in said
    assert "1 row with an empty cell" in said
    assert trains("a.yaml")
    assert trains("classification.yaml")


def test_nothing_is_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    write("a.tsv", [f"{i}\t{i}" for i in range(9)])
    write("translation.yaml", ["mine"])
    assert main(["new", "translation", "--train", "a.tsv"]) == 2
    assert "translation.yaml exists and is not overwritten: choose another name with --out" in capsys.readouterr().err
    assert Path("translation.yaml").read_text() == "mine\n"


@pytest.mark.parametrize(
    ("kind", "name", "content", "message"),
    [
        ("translation", "a.tsv", b"", "the training data are empty: a.tsv has no rows"),
        ("translation", "a.tsv", b"\xff\xfe\x00\n\xff\n", "a.tsv"),
        ("translation", "a.tsv", b"a\tb\na\tb\n", "fewer than 4 different rows"),
        ("translation", "a.csv", b"english,korean\na,b\n", "no column 'source'"),
        ("translation", "a.jsonl", b'{"t": {"en": "a", "ko": "b"}}\n', "Name yours, as in: --columns t.en t.ko"),
        ("translation", "a.doc", b"a", "unknown suffix '.doc'"),
        ("classification", "a.tsv", b"a\tx\nb\tx\nc\tx\nd\tx\n", "a single class, 'x'"),
        ("language_model", "a.txt", b" \n\n", "the text is empty or only white space"),
        ("language_model", "b.txt", None, "there is no data file 'b.txt'"),
    ],
)
def test_a_hostile_file_gets_one_error_and_no_recipe(
    kind: str, name: str, content: bytes | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        Path(name).write_bytes(content)
    assert main(["new", kind, "--train", name]) == 2
    error = capsys.readouterr().err
    assert error.startswith("attnkit: error: ")
    assert error.count("\n") == 1
    assert message in error
    assert not Path(f"{kind}.yaml").exists()


def test_numeric_labels_are_redirected_to_regression_which_trains(capsys: pytest.CaptureFixture[str]) -> None:
    write("own.csv", ["text,label", *(f"row {i},{i / 7:.3f}" for i in range(60))])
    assert main(["new", "classification", "--train", "own.csv"]) == 2
    assert "the labels of own.csv look like numbers (60 in 60 rows); for the task regression: attnkit new regression --train own.csv" in (
        capsys.readouterr().err
    )
    assert main(["new", "regression", "--train", "own.csv"]) == 0
    assert "  numbers from 0 to 8.429, 60 different ones" in capsys.readouterr().out
    assert trains("regression.yaml")


def test_regression_rejects_labels_that_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    write("own.csv", ["text,label", *(f"row {i},{i}" for i in range(9)), "row,two"])
    assert main(["new", "regression", "--train", "own.csv"]) == 2
    assert "the label 'two' is not a finite number; for classes: attnkit new classification" in capsys.readouterr().err


def test_leaked_validation_rows_and_similar_labels_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["good", "Good", "bad", "bad ", "caf\\u00e9", "cafe\\u0301"]
    write("own.jsonl", [f'{{"text": "row {i}", "label": "{labels[i % 6]}"}}' for i in range(40)] + ['{"text": "", "label": "bad"}'])
    write("other.jsonl", [f'{{"text": "row {i}", "label": "good"}}' for i in range(30, 60)])
    assert main(["new", "classification", "--train", "own.jsonl", "--validation", "other.jsonl"]) == 0
    said = capsys.readouterr().out
    assert "  10 of 30 validation texts also occur in the training data\n" in said
    alike = r"'bad' and 'bad ', 'good' and 'Good', 'café' and 'cafe\u0301'"
    assert f"  labels that differ only in case, spaces or Unicode form are different classes: {alike}\n" in said
    assert "  1 row with an empty cell: remove such rows\n" in said
    assert main(["new", "classification", "--train", "own.jsonl", "--validation", "own.jsonl", "--out", "same.yaml"]) == 0
    assert "the validation file is the training file" in capsys.readouterr().out


def test_a_running_text_has_no_row_statistics(capsys: pytest.CaptureFixture[str]) -> None:
    write("text.txt", ["a story of many words"] * 50)
    assert main(["new", "language_model", "--train", "text.txt"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("text.txt: 1 document\n  text: 1,100 characters (")
    assert "median" not in said


@pytest.mark.parametrize(
    ("kind", "header", "flags"),
    [
        ("classification", "document,label", "document label"),
        ("classification", '"what the customers wrote. Really, all of it",label', "'what the customers wrote. Really, all of it' label"),
        ("translation", "en text,ko", "'en text' ko"),
        ("regression", "x,y", "x y"),
    ],
)
def test_unrecognised_columns_are_shown_in_flag_syntax(kind: str, header: str, flags: str, capsys: pytest.CaptureFixture[str]) -> None:
    write("own.csv", [header, *(f"row {i},{i}" for i in range(9))])
    assert main(["new", kind, "--train", "own.csv"]) == 2
    assert capsys.readouterr().err.rstrip().endswith(f"Name yours, as in: --columns {flags}")


def test_columns_are_found_even_if_all_rows_were_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    write("own.jsonl", [f'{{"it\'s, said": "row {i}", "label": "no"}}' for i in range(9)])
    assert main(["new", "classification", "--train", "own.jsonl"]) == 2
    assert capsys.readouterr().err.rstrip().endswith("""Name yours, as in: --columns 'it'"'"'s, said' label""")


def test_a_file_whose_name_is_not_text_is_refused_before_the_recipe_exists(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(b"d\xe9.tsv")  # as in an ASCII locale, where Python cannot read any name beyond ASCII
    write(name, ["source\ttarget", *(f"{a}{b}\t{b}{a}" for a in "abcd" for b in "abcd")])
    monkeypatch.setattr(sys, "argv", ["attnkit", "new", "translation", "--train", name])
    assert main(sys.argv[1:]) == 2
    assert "attnkit: error: an argument is not text in utf-8, the encoding of this locale: rename the file" in capsys.readouterr().err
    assert not Path("translation.yaml").exists()
