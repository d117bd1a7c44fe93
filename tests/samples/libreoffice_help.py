"""A small help in the format of Debian's libreoffice-help packages: 60 pages in English, Korean and German, in words of our own;
and its converted files."""

import itertools
from pathlib import Path

from libreoffice_help import convert

LOCALES = ("en-US", "ko", "de")
THINGS = (
    ("table", "표", "Tabelle"), ("chart", "차트", "Grafik"), ("frame", "틀", "Fläche"), ("line", "줄", "Zeile"),
    ("word", "낱말", "Vokabel"), ("page", "쪽", "Seite"), ("title", "제목", "Rubrik"), ("list", "목록", "Liste"),
    ("note", "메모", "Notiz"), ("cell", "칸", "Zelle"), ("map", "지도", "Karte"), ("form", "양식", "Maske"),
)  # fmt: skip
HIDDEN = '<span class="switchinline"><span hidden="true" class="MAC">{}</span><span hidden="true">{}</span></span>'


def write(folder: Path) -> None:
    """Write the packages' files below `folder`, as `dpkg-deb -x` does."""
    couples = list(itertools.permutations(range(len(THINGS)), 2))
    for number, (i, j) in enumerate(couples[:60]):
        for language, locale in enumerate(LOCALES):
            path = folder / "usr/share/libreoffice/help" / locale / f"text/swriter/01/{number}.html"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_page(number, THINGS[i][language], THINGS[j][language], language), encoding="utf-8")
    convert(folder)


def _page(number: int, a: str, b: str, language: int) -> str:
    """Return a page about two things, with one paragraph of each kind that the reader has to tell apart."""
    command = HIDDEN.format("Command", ("Control", "컨트롤", "Steuerung")[language])
    rows = (
        ("h1", 'id="hd_1"', (f"The {a} beside the {b}", f"{b} 옆에 있는 {a}", f"Die {a} neben der {b}")),
        ("p", 'id="par_2" class="paragraph"', (
            f'Puts the <span class="emph">{a}</span> in front of the <a href="en-US/text/x.html">{b}</a>.',
            f'<span class="emph">{a}</span> 앞에\n  <a href="ko/text/x.html">{b}</a> 넣기.',
            f'Stellt die <span class="emph">{a}</span> vor die <a href="de/text/x.html">{b}</a>.',
        )),
        ("p", 'id="par_3" class="listitem"', (
            f"Hold {command} and drag the {a} over the {b}.<br>Then let go.",
            f"{command} 키를 누르고 {a} 끌어서 {b} 위에 놓습니다.<br>그리고 놓습니다.",
            f"Halten Sie {command} und ziehen Sie die {a} über die {b}.<br>Lassen Sie los.",
        )),
        ("p", 'id="par_4" class="paragraph"', ("This one is the same on each page.", "모든 쪽에 같은 글.", "Dies steht überall.")),
        ("p", 'id="par_5" class="paragraph"', (f"Nobody has translated page {number} so far.",) * 3),
        ("p", 'id="par_6" class="code"', (f"Print the {a} now", f"Print {a} 지금", f"Print {a} jetzt")),
        ("p", 'id="par_7" class="paragraph"', ("1, 2, 3, 4 = 10;", "1, 2, 3, 4 = 열;", "1; 2; 3; 4 = 10;")),
        ("p", 'class="embedded"', (f"No id here, {a} or {b}.", f"여기에는 {a} {b} 없음.", f"Ohne Namen, {a} oder {b}.")),
    )  # fmt: skip
    blocks = "\n".join(f'<{tag} {attributes} dir="auto">{texts[language]}</{tag}>' for tag, attributes, texts in rows)
    title = f"<!DOCTYPE html>\n<html>\n<head><title>{a}</title></head>\n<body>\n"
    return f'{title}<header><p dir="auto">Help</p></header>\n<div id="DisplayArea">\n{blocks}\n</div>\n</body>\n</html>\n'
