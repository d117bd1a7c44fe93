"""The help pages of LibreOffice: English beside Korean or German, paragraph by paragraph."""

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
_TAG = re.compile(r"<(/?)(\w++)([^<>]*+)>")  # possessive: no text takes long
_ATTRIBUTE = re.compile(r'(?<![\w-])([\w-]++)="([^"]*+)"')
_HANGUL = re.compile("[가-힣]")


@corpora.register("libreoffice_help")
class LibreOfficeHelp(PairCorpus):
    """Paragraphs of LibreOffice's help in English and Korean (14,300 distinct pairs) or German (28,200).

    A page has the same paragraph ids in every language, so paragraphs are aligned exactly. Kept are paragraphs, headings, list items and
    cells of tables that have 3 to 60 English words, are translated, and consist of letters and spaces to at least 70 % in both
    languages (formulas, codes and tables of numbers do not); a Korean one has Hangul in it. Each pair counts once. Where a text has
    variants for operating systems or programs, the last one, which is the general one, is read. Korean is in Unicode's form NFC.

    Pages, not paragraphs, are split: by the CRC-32 of its path modulo 20 a page is for validation (0), test (1 or 2) or training. As pages
    share paragraphs, those in the test part with an English or foreign text that is in the training part too are left out, and those in
    the validation part that are in either:

    | | training | validation | test | left out of validation and test |
    |---|---|---|---|---|
    | English and Korean | 12,345 | 761 | 1,149 | 228 and 353 |
    | English and German | 24,079 | 1,690 | 2,294 | 630 and 837 |

    Source: Debian's packages `libreoffice-help-en-us`, `libreoffice-help-ko` and `libreoffice-help-de` (MPL-2.0).

    Args:
        source: The language to translate from: `en`, `ko` or `de`.
        target: The language to translate into. Exactly one of the two is `en`.
        folder: Where the packages were unpacked; installed ones are found too.

    Raises:
        ConfigurationError: The languages are not English and another one, or a package is missing.
    """

    def __init__(self, *, source: Language = "en", target: Language = "ko", folder: str = "data") -> None:
        super().__init__()
        if (source == "en") == (target == "en"):
            raise ConfigurationError(
                f"libreoffice_help has English beside Korean or German, but source={source} and target={target}: "
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
        """The distinct pairs of English and foreign texts of each part, page by page."""
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
    """Return the text of each paragraph and heading of a help page that has an id; code is left out.

    Example:
        >>> paragraphs('<h1 id="a">Tables</h1><p id="b">Press <span class="emph">Enter</span>.</p><p id="c" class="code">x=1</p>')
        {'a': 'Tables', 'b': 'Press Enter.'}
    """
    texts: dict[str, str] = {}
    current: str | None = None  # the id of the block that is open
    pieces: list[str] = []
    starts: list[int] = []  # of each open span: how many pieces came before it
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
            if "hidden" in attributes and starts:  # one of several variants, which scripts choose from: it replaces those before it
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
