"""The help pages of LibreOffice: English beside Korean or German, paragraph by paragraph."""

import re
import unicodedata
import zlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

import numpy as np
from typing_extensions import override

from attnkit.data.base import Pair, Seq2SeqData, references
from attnkit.data.packages import find_package_file
from attnkit.data.reading import read_columns
from attnkit.files import read_text
from attnkit.registry import ConfigurationError, TokenizerSpec, datasets

LARGEST_PAGE = 1 << 20
"""Bytes of a help page."""

Language = Literal["en", "ko", "de"]
Part = Literal["train", "validation", "test"]

_LOCALES: Mapping[Language, str] = {"en": "en-US", "ko": "ko", "de": "de"}
_BLOCKS = ("p", "h1", "h2", "h3", "h4", "h5", "h6")
_CODE = ("code", "codeintable")
_HANGUL = re.compile("[가-힣]")
_BPE: TokenizerSpec = {"name": "bpe", "vocab_size": 4000}


@datasets.register("libreoffice_help")
class LibreOfficeHelp(Seq2SeqData):
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

    Data: Debian's packages `libreoffice-help-en-us`, `libreoffice-help-ko` and `libreoffice-help-de` (MPL-2.0).

    Args:
        source: The language to translate from: `en`, `ko` or `de`.
        target: The language to translate into. Exactly one of the two is `en`.
        folder: Where the packages were unpacked (installed ones are found too).
        max_validation_pairs: Validate on so many sources of the validation part, a random sample that is always the same (default: all).
        predict: A file with texts to translate: `.txt` with one per line, or a table with a column `source`. Their order is kept.
        src_tokenizer: Spec of the source tokenizer; an untrained one is trained on the sources of the training part.
        tgt_tokenizer: Spec of the target tokenizer, likewise. `None`: one tokenizer for both languages, trained on both.
        batch_tokens: The budget of source and target positions in a batch over all processes, padding included.
        max_length: Training pairs are left out where either side has more tokens, special ones included (default: no limit).
        seed: Of the order of the data and of `max_validation_pairs`; global random states play no part.
        num_workers: Processes that prepare batches (0: the main process does).

    Raises:
        ConfigurationError: The languages are not English and another one, a package is missing, or `predict` cannot be read.
    """

    def __init__(
        self,
        *,
        source: Language = "en",
        target: Language = "ko",
        folder: str = "data",
        max_validation_pairs: int | None = None,
        predict: str | None = None,
        src_tokenizer: TokenizerSpec = _BPE,
        tgt_tokenizer: TokenizerSpec | None = _BPE,
        batch_tokens: int = 4096,
        max_length: int | None = None,
        seed: int = 0,
        num_workers: int = 0,
    ) -> None:
        super().__init__(
            src_tokenizer=src_tokenizer,
            tgt_tokenizer=tgt_tokenizer,
            batch_tokens=batch_tokens,
            max_length=max_length,
            seed=seed,
            num_workers=num_workers,
        )
        if (source == "en") == (target == "en"):
            raise ConfigurationError(
                f"libreoffice_help has English beside Korean or German, but source={source} and target={target}: "
                f"set one of them to en, and the other to ko or de"
            )
        if max_validation_pairs is not None and max_validation_pairs < 1:
            raise ConfigurationError(f"max_validation_pairs must be at least 1, but is {max_validation_pairs}")
        self.source, self.target = source, target
        self.folder = folder
        self.max_validation_pairs = max_validation_pairs
        self.predict = predict

    @override
    def setup(self, stage: str) -> None:
        for language in (self.source, self.target) if stage != "predict" else ():  # before anything is trained
            self._folder(language)

    @override
    def training_pairs(self) -> Sequence[Pair]:
        return self.part("train")

    @override
    def evaluation_set(self, part: Literal["validation", "test"]) -> Mapping[str, list[str]]:
        texts = references(self.part(part))
        if part == "validation" and self.max_validation_pairs is not None and self.max_validation_pairs < len(texts):
            chosen = np.random.default_rng(self.seed).choice(len(texts), size=self.max_validation_pairs, replace=False)
            sources = list(texts)
            texts = {sources[i]: texts[sources[i]] for i in chosen}
        return texts

    @override
    def prediction_sources(self) -> Sequence[str]:
        if self.predict is None:
            raise ConfigurationError("libreoffice_help has no texts to predict for: set predict to a .txt file with one text per line")
        return [text for (text,) in read_columns(self.predict, ["source"])]

    def part(self, part: Part) -> list[Pair]:
        """Return the distinct pairs of source and target of a part, page by page."""
        forward = self.source == "en"
        return [(english, foreign) if forward else (foreign, english) for english, foreign in self._parts[part]]

    @cached_property
    def _parts(self) -> dict[Part, list[Pair]]:
        foreign_language = self.target if self.source == "en" else self.source
        english_pages, foreign_pages = self._pages("en"), self._pages(foreign_language)
        parts: dict[Part, dict[Pair, None]] = {"train": {}, "validation": {}, "test": {}}
        for page in sorted(english_pages.keys() & foreign_pages.keys()):
            english, foreign = english_pages[page], foreign_pages[page]
            pairs = [(english[i], foreign[i]) for i in english if i in foreign]
            parts[_part_of(page)] |= dict.fromkeys(pair for pair in pairs if _is_translation(*pair, foreign_language))
        seen: set[str] = set()
        kept: dict[Part, list[Pair]] = {}
        for part in ("train", "test", "validation"):
            kept[part] = [pair for pair in parts[part] if seen.isdisjoint(pair)]
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
    parser = _Paragraphs()
    try:
        parser.feed(page)
        parser.close()
    except AssertionError as error:  # of a declaration that HTML does not have, such as <![x
        raise ConfigurationError(f"a help page is not HTML: {error}") from error
    return parser.texts


class _Paragraphs(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self._id: str | None = None
        self._pieces: list[str] = []
        self._starts: list[int] = []  # of each open span: how many pieces came before it

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in _BLOCKS:
            self._id = None if attributes.get("class") in _CODE else attributes.get("id")
            self._pieces, self._starts = [], []
        elif tag == "br":
            self._pieces.append(" ")
        elif tag == "span":
            if "hidden" in attributes and self._starts:  # one of several variants, which scripts choose from: it replaces those before it
                del self._pieces[self._starts[-1] :]
            self._starts.append(len(self._pieces))

    @override
    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and self._starts:
            self._starts.pop()
        elif tag in _BLOCKS and self._id is not None:
            text = unicodedata.normalize("NFC", " ".join("".join(self._pieces).split()))
            if text:
                self.texts.setdefault(self._id, text)
            self._id = None

    @override
    def handle_data(self, data: str) -> None:
        self._pieces.append(data)


def _is_translation(english: str, foreign: str, language: Language) -> bool:
    if english == foreign or not 3 <= len(english.split()) <= 60:
        return False
    if language == "ko" and not _HANGUL.search(foreign):
        return False
    return all(sum(c.isalpha() or c == " " for c in text) >= 0.7 * len(text) for text in (english, foreign))


def _part_of(page: str) -> Part:
    remainder = zlib.crc32(page.encode()) % 20
    if remainder == 0:
        return "validation"
    return "test" if remainder in (1, 2) else "train"
