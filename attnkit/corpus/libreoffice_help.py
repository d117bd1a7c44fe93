"""LibreOffice's help pages: English paragraphs aligned with Korean or German ones."""

import html
import re
import unicodedata
import zlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Literal

from typing_extensions import override

from attnkit.corpus.base import Pair, PairCorpus, Part
from attnkit.corpus.packages import find_package_file
from attnkit.files import read_text
from attnkit.registry import ConfigurationError, corpora

LARGEST_PAGE = 1 << 20
"""Bytes of a help page."""

Language = Literal["en", "ko", "de"]

_LOCALES: Mapping[Language, str] = {"en": "en-US", "ko": "ko", "de": "de"}
_PARTS: dict[int, Part] = {0: "validation", 1: "test", 2: "test"}
_BLOCKS = ("p", "h1", "h2", "h3", "h4", "h5", "h6")
_CODE = ("code", "codeintable")
_TAG = re.compile(r"<(/?)(\w++)([^<>]*+)>")  # possessive, so that matching takes linear time
_ATTRIBUTE = re.compile(r'(?<![\w-])([\w-]++)="([^"]*+)"')
_HANGUL = re.compile("[가-힣]")


@corpora.register("libreoffice_help")
class LibreOfficeHelp(PairCorpus):
    """Paragraphs of LibreOffice's help in English and Korean (14,300 distinct pairs) or German (28,200).

    A page has the same paragraph ids in every language, so paragraphs are aligned exactly. Paragraphs, headings, list items and table
    cells are kept if they have 3 to 60 English words, are translated, and consist of at least 70 % letters and spaces in both languages
    (unlike formulas, codes and tables of numbers); Korean ones must contain Hangul. Each pair counts once. If a text has variants for
    operating systems or programs, the last one, which is the general one, is read. Korean is normalised to NFC.

    Pages, not paragraphs, are split: the CRC-32 of its path modulo 20 assigns a page to validation (0), test (1 or 2) or training. Since
    pages share paragraphs, test pairs whose English or foreign text also occurs in training are omitted, and so are validation pairs
    whose texts occur in either:

    | | training | validation | test | omitted from validation and test |
    |---|---|---|---|---|
    | English and Korean | 12,345 | 761 | 1,149 | 228 and 353 |
    | English and German | 24,079 | 1,690 | 2,294 | 630 and 837 |

    Source: Debian's packages `libreoffice-help-en-us`, `libreoffice-help-ko` and `libreoffice-help-de` (MPL-2.0).

    Args:
        source: The language to translate from: `en`, `ko` or `de`.
        target: The language to translate into. Exactly one of the two is `en`.
        folder: The folder with the unpacked packages; installed packages are found too.

    Raises:
        ConfigurationError: The languages are not English and another one, or a package is missing.
    """

    def __init__(self, *, source: Language = "en", target: Language = "ko", folder: str = "data") -> None:
        super().__init__()
        if (source == "en") == (target == "en"):
            raise ConfigurationError(
                f"libreoffice_help pairs English with Korean or German, but source={source} and target={target}: "
                f"set one of them to en, and the other to ko or de"
            )
        self.source, self.target, self.folder = source, target, folder

    @override
    def check(self, part: Part) -> None:
        for language in (self.source, self.target):
            self._folder(language)

    @override
    def pairs(self, part: Part) -> list[Pair]:
        pairs = self._pairs[part]
        return pairs if self.source == "en" else [(foreign, english) for english, foreign in pairs]

    @cached_property
    def _pairs(self) -> dict[Part, list[Pair]]:
        """The distinct pairs of English and foreign texts of each split, page by page."""
        foreign_language = self.target if self.source == "en" else self.source
        english_pages, foreign_pages = self._pages("en"), self._pages(foreign_language)
        found: dict[Part, dict[Pair, None]] = {"train": {}, "test": {}, "validation": {}}
        for page in sorted(english_pages.keys() & foreign_pages.keys()):
            english, foreign = english_pages[page], foreign_pages[page]
            pairs = [(english[i], foreign[i]) for i in english if i in foreign]
            part = _PARTS.get(zlib.crc32(page.encode()) % 20, "train")
            found[part] |= dict.fromkeys(pair for pair in pairs if _is_translation(*pair, foreign_language))
        seen: set[str] = set()
        kept: dict[Part, list[Pair]] = {}
        for part, distinct in found.items():
            kept[part] = [pair for pair in distinct if seen.isdisjoint(pair)]
            seen.update(text for pair in kept[part] for text in pair)
        return kept

    def _pages(self, language: Language) -> dict[str, dict[str, str]]:
        """Return the text of each paragraph id of each page."""
        folder = self._folder(language)
        return {path.relative_to(folder).as_posix(): paragraphs(read_text(path, limit=LARGEST_PAGE)) for path in folder.rglob("*.html")}

    def _folder(self, language: Language) -> Path:
        locale = _LOCALES[language]
        return find_package_file(f"libreoffice-help-{locale.lower()}", f"usr/share/libreoffice/help/{locale}/text", folder=self.folder)


def paragraphs(page: str) -> dict[str, str]:
    """Return the text of each paragraph and heading with an id on a help page; code is omitted.

    Example:
        >>> paragraphs('<h1 id="a">Tables</h1><p id="b">Press <span class="emph">Enter</span>.</p><p id="c" class="code">x=1</p>')
        {'a': 'Tables', 'b': 'Press Enter.'}
    """
    texts: dict[str, str] = {}
    current: str | None = None  # the id of the open block
    pieces: list[str] = []
    starts: list[int] = []  # the number of pieces before each open span
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
            if "hidden" in attributes and starts:  # one of several variants, from which a script chooses: it replaces the previous ones
                del pieces[starts[-1] :]
            starts.append(len(pieces))
        elif name == "span" and starts:
            starts.pop()
    return texts


def _is_translation(english: str, foreign: str, language: Language) -> bool:
    if english == foreign or not 3 <= len(english.split()) <= 60:
        return False
    if language == "ko" and not _HANGUL.search(foreign):
        return False
    return all(sum(c.isalpha() or c == " " for c in text) >= 0.7 * len(text) for text in (english, foreign))
