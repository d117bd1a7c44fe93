"""Fonts for any language."""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

DEFAULT = "DejaVu Sans"  # comes with matplotlib
STYLED = re.compile("thin|light|medium|bold|black|heavy|italic|oblique", re.IGNORECASE)


def families(characters: Iterable[str]) -> tuple[list[str], str]:
    """Return font families that cover the characters, in matplotlib's order of preference, and the characters that no font has.

    Includes fonts installed after matplotlib built its font cache.

    Example:
        >>> families("abc")
        (['DejaVu Sans'], '')
    """
    from matplotlib import font_manager
    from matplotlib.ft2font import FT2Font

    chosen = [DEFAULT]
    missing = {c for c in characters if c.isprintable()}
    missing -= _covered(FT2Font(font_manager.findfont(DEFAULT)), missing)
    files = sorted(font_manager.findSystemFonts(), key=_rank) if missing else []
    best: tuple[set[str], str] | None = None
    for file in files:
        try:
            found = _covered(FT2Font(file), missing)
        except (OSError, RuntimeError):  # not a scalable font
            continue
        if found and (best is None or len(found) > len(best[0])):
            best = (found, file)
        if best is not None and len(best[0]) == len(missing):
            break
    if best is not None:
        found, file = best
        font_manager.fontManager.addfont(file)
        chosen.append(FT2Font(file).family_name)
        missing -= found
    return chosen, "".join(sorted(missing))


def _rank(file: str) -> tuple[bool, int, str]:
    """Rank plain faces before bold and slanted ones, and families before their longer-named variants."""
    name = Path(file).stem
    return bool(STYLED.search(name)), len(name), file


def _covered(font: "FT2Font", characters: set[str]) -> set[str]:
    charmap = font.get_charmap()  # from code point to glyph
    return {c for c in characters if ord(c) in charmap}
