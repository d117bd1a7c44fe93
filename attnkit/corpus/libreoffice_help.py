"""LibreOffice's help pages: English paragraphs aligned with Korean or German ones."""

from typing import ClassVar, Literal

from typing_extensions import override

from attnkit.corpus.base import Pair, PairCorpus, Part
from attnkit.corpus.named import Named
from attnkit.registry import ConfigurationError, corpora

Language = Literal["en", "ko", "de"]


@corpora.register("libreoffice_help")
class LibreOfficeHelp(Named, PairCorpus):
    """Paragraphs of LibreOffice's help in English and Korean (14,300 distinct pairs) or German (28,200).

    A page has the same paragraph ids in every language, so paragraphs are aligned exactly. Paragraphs, headings, list items and table
    cells are kept if they have 3 to 60 English words, are translated, and consist of at least 70 % letters and spaces in both languages
    (unlike formulas, codes and tables of numbers); Korean ones must contain Hangul. Duplicate pairs are dropped. If a text has variants for
    operating systems or programs, the last one, which is the general one, is used. Korean is normalised to NFC.

    Pages, not paragraphs, are split: the CRC-32 of its path modulo 20 assigns a page to validation (0), test (1 or 2) or training. Since
    pages share paragraphs, test pairs whose English or foreign text also occurs in training are omitted, and so are validation pairs
    whose texts occur in either:

    | | training | validation | test | omitted from validation and test |
    |---|---|---|---|---|
    | English and Korean | 12,345 | 761 | 1,149 | 228 and 353 |
    | English and German | 24,079 | 1,690 | 2,294 | 630 and 837 |

    Source: Debian's packages `libreoffice-help-en-us`, `libreoffice-help-ko` and `libreoffice-help-de` (MPL-2.0). No copy on
    the hub is known.

    Args:
        source: The language to translate from: `en`, `ko` or `de`.
        target: The language to translate into. Exactly one of the two is `en`.
        folder: The folder with the files of `python scripts/libreoffice_help.py`.

    Raises:
        ConfigurationError: The languages are not English and another one, the files are missing (the message has the command that creates
            them), or a file is damaged.
    """

    script: ClassVar = "libreoffice_help"
    digests: ClassVar = {
        "ko/train": "eb4495bb16b8a033",
        "ko/validation": "a6d7f5c17928bf61",
        "ko/test": "2294e7fe4b994202",
        "de/train": "f3208467f1f22411",
        "de/validation": "fb7865617a20ee70",
        "de/test": "63ae37128d0bc894",
    }

    def __init__(self, *, source: Language = "en", target: Language = "ko", folder: str = "data") -> None:
        if (source == "en") == (target == "en"):
            raise ConfigurationError(
                f"libreoffice_help pairs English with Korean or German, but source={source} and target={target}: "
                f"set one of them to en, and the other to ko or de"
            )
        self.from_english = source == "en"
        super().__init__(folder=folder, variant=target if self.from_english else source)

    @override
    def pairs(self, part: Part) -> list[Pair]:
        rows = self.read(part, ["en", self.variant])
        return [(english, foreign) if self.from_english else (foreign, english) for english, foreign in rows]
