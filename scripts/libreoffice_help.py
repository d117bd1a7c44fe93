"""Write LibreOffice's help for the corpus `libreoffice_help`: English paragraphs aligned with Korean or German ones, a folder for each.

The folder `pages` has the English pages. Each row holds a page's title, its first sentences, the part of LibreOffice that it belongs to,
and its whole text.

The sources are Debian's packages `libreoffice-help-en-us`, `-ko` and `-de`, which are downloaded unless they are already unpacked or
installed.
"""

import html
import re
import unicodedata
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from fetching import main, package_file, write_rows

from attnkit.files import read_text

LARGEST_PAGE = 1 << 20
"""Maximum number of bytes of a help page."""

_LOCALES = {"en": "en-US", "ko": "ko", "de": "de"}
_BLOCKS = ("p", "h1", "h2", "h3", "h4", "h5", "h6")
_CODE = ("code", "codeintable")
_TAG = re.compile(r"<(/?)(\w++)([^<>]*+)>")  # possessive, so that matching takes linear time
_ATTRIBUTE = re.compile(r'(?<![\w-])([\w-]++)="([^"]*+)"')
_HANGUL = re.compile("[가-힣]")


def convert(folder: Path, languages: Sequence[str] = ("ko", "de")) -> None:
    """Write the distinct pairs of English and foreign texts of each split, page by page.

    The CRC-32 of a page's path modulo 20 assigns the page to validation (0), test (1 or 2) or training. Since pages share paragraphs, test
    pairs whose English or foreign text also occurs in training are omitted, and so are validation pairs whose texts occur in either.
    """
    english_pages = pages("en", folder)
    for language in languages:
        foreign_pages = pages(language, folder)
        found: dict[str, dict[tuple[str, str], None]] = {"train": {}, "test": {}, "validation": {}}
        for page in sorted(english_pages.keys() & foreign_pages.keys()):
            english, foreign = english_pages[page], foreign_pages[page]
            pairs = [(english[i], foreign[i]) for i in english if i in foreign]
            found[_part(page)] |= dict.fromkeys(pair for pair in pairs if _is_translation(*pair, language))
        seen: set[str] = set()
        for part, distinct in found.items():
            kept = [pair for pair in distinct if seen.isdisjoint(pair)]
            seen.update(text for pair in kept for text in pair)
            rows = ({"en": source, language: target} for source, target in kept)
            write_rows(folder / "libreoffice_help" / language / f"{part}.jsonl", rows)
    convert_pages(folder)


def convert_pages(folder: Path) -> None:
    """Write the English pages of each split. Pages of validation and test whose first sentences occur in training are omitted."""
    found: dict[str, list[Page]] = {"train": [], "validation": [], "test": []}
    for path, texts in sorted(pages("en", folder).items()):
        if page := Page.of(path, list(texts.values())):
            found[_part(path)].append(page)
    trained = {text for page in found["train"] for text in page.paragraphs}
    for part, kept in found.items():
        rows = (page.row for page in kept if part == "train" or page.lead not in trained)
        write_rows(folder / "libreoffice_help" / "pages" / f"{part}.jsonl", rows)


class Page(NamedTuple):
    """A help page.

    Attributes:
        title: Its first heading.
        module: The part of LibreOffice that it belongs to: the first folder of its path, such as `scalc`.
        lead: The first paragraph of 5 to 40 words that ends like a sentence.
        paragraphs: All paragraphs except the title.
    """

    title: str
    module: str
    lead: str
    paragraphs: list[str]

    @classmethod
    def of(cls, path: str, texts: Sequence[str]) -> Self | None:
        """Return the page with these texts, in order; None if no paragraph can be its lead.

        Example:
            >>> Page.of("scalc/01/05.html", ["Hide", "Format", "Hides selected rows, columns or sheets."]).row["lead"]
            'Hides selected rows, columns or sheets.'
        """
        others = [text for text in texts[1:] if text != texts[0]]
        lead = next((text for text in others if 5 <= len(text.split()) <= 40 and text.endswith((".", ":"))), None)
        return None if lead is None else cls(texts[0], path.partition("/")[0], lead, others)

    @property
    def row(self) -> dict[str, str]:
        """The row of the page."""
        text = "\n".join([self.title, *self.paragraphs])
        return {"title": self.title, "lead": self.lead, "module": self.module, "text": text}


def pages(language: str, folder: Path) -> dict[str, dict[str, str]]:
    """Return the text of each paragraph id of each page."""
    locale = _LOCALES[language]
    root = package_file(f"libreoffice-help-{locale.lower()}", f"usr/share/libreoffice/help/{locale}/text", folder)
    return {path.relative_to(root).as_posix(): paragraphs(read_text(path, limit=LARGEST_PAGE)) for path in root.rglob("*.html")}


def paragraphs(page: str) -> dict[str, str]:
    """Return the text of each paragraph and heading with an id on a help page; code is omitted.

    Example:
        >>> paragraphs('<h1 id="a">Tables</h1><p id="b">Press <span class="emph">Enter</span>.</p><p id="c" class="code">x=1</p>')
        {'a': 'Tables', 'b': 'Press Enter.'}
    """
    texts: dict[str, str] = {}
    current: str | None = None  # id of the open block
    pieces: list[str] = []
    starts: list[int] = []  # number of pieces before each open span
    place = 0
    for tag in _TAG.finditer(page):
        pieces.append(page[place : tag.start()])
        place = tag.end()
        closes, name, attributes = tag[1], tag[2].lower(), dict(_ATTRIBUTE.findall(tag[3]))
        if name in _BLOCKS and not closes:
            current = None if attributes.get("class") in _CODE else attributes.get("id")
            pieces, starts = [], []
        elif name in _BLOCKS and current is not None:
            if text := unicodedata.normalize("NFC", " ".join(html.unescape("".join(pieces)).split())):
                texts.setdefault(current, text)
            current = None
        elif name == "br":
            pieces.append(" ")
        elif name == "span" and not closes:
            if "hidden" in attributes and starts:  # one of several variants, chosen by a script: replaces the previous ones
                del pieces[starts[-1] :]
            starts.append(len(pieces))
        elif name == "span" and starts:
            starts.pop()
    return texts


def _part(path: str) -> str:
    return {0: "validation", 1: "test", 2: "test"}.get(zlib.crc32(path.encode()) % 20, "train")


def _is_translation(english: str, foreign: str, language: str) -> bool:
    if english == foreign or not 3 <= len(english.split()) <= 60:
        return False
    if language == "ko" and not _HANGUL.search(foreign):
        return False
    return all(sum(c.isalpha() or c == " " for c in text) >= 0.7 * len(text) for text in (english, foreign))


if __name__ == "__main__":
    main(convert)
