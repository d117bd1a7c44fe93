import json
import unicodedata
import zlib
from pathlib import Path

from libreoffice_help import Page, convert_pages, paragraphs

HELP = "usr/share/libreoffice/help/en-US/text"


def test_korean_text_is_normalised_to_composed_form() -> None:
    decomposed = unicodedata.normalize("NFD", "표 앞에 차트 넣기")
    assert len(decomposed) > 10
    assert paragraphs(f'<p id="a">{decomposed}</p>') == {"a": "표 앞에 차트 넣기"}


def test_a_variant_without_alternatives_is_kept_in_the_text() -> None:
    switch = '<span class="switchinline"><span hidden="true">only <span>one</span></span></span>'
    assert paragraphs(f'<p id="a">x &amp; y {switch} end</p><span hidden="true">z</span>') == {"a": "x & y only one end"}


def test_pages_without_sentences_of_5_to_40_words_yield_no_row() -> None:
    long = " ".join(["word"] * 41)
    assert Page.of("scalc/1.html", ["Hide", "Hides it.", f"{long}.", "five words but no end"]) is None


def test_pages_are_split_like_pairs_and_held_out_leads_not_trained_on(tmp_path: Path) -> None:
    for number in range(200):
        lead = "This sentence is on every page." if number % 2 else f"This sentence is on page {number}."
        path = tmp_path / HELP / "scalc" / f"{number}.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f'<h1 id="a">Page {number}</h1><p id="b">{lead}</p><p id="c">{number}</p>', encoding="utf-8")
    convert_pages(tmp_path)
    found = {
        part: [json.loads(line) for line in (tmp_path / "libreoffice_help/pages" / f"{part}.jsonl").read_text().splitlines()]
        for part in ("train", "validation", "test")
    }
    places = {"train": range(3, 20), "validation": [0], "test": [1, 2]}
    for part, rows in found.items():
        numbers = [n for n in range(200) if zlib.crc32(f"scalc/{n}.html".encode()) % 20 in places[part] and (part == "train" or n % 2 == 0)]
        assert numbers
        assert sorted(row["title"] for row in rows) == sorted(f"Page {n}" for n in numbers)
        assert {row["module"] for row in rows} == {"scalc"}
    row = found["test"][0]
    assert row["text"] == f"{row['title']}\n{row['lead']}\n{row['title'].split()[1]}"
