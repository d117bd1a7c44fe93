"""Attention figures, drawn with matplotlib."""

import unicodedata
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnkit.drawing.base import AttentionMap
from attnkit.files import atomic
from attnkit.fonts import families
from attnkit.registry import ConfigurationError
from attnkit.wording import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LARGEST = 40.0  # maximum width and height of a figure, in inches
CELL, READABLE, SMALLEST = 0.21, 0.075, 0.008  # cell sizes in inches: maximum, minimum with labels, minimum without
GAP, LINE, BAR = 0.15, 0.24, 0.9  # inches: between maps, a line of text, the colour bar
LONGEST = 14  # maximum length of a label


def require_matplotlib() -> None:
    """Raise a `ConfigurationError` with the install command if matplotlib is missing."""
    if find_spec("matplotlib") is None:
        raise ConfigurationError("drawing needs matplotlib: pip install 'attnkit[plot]'; `attnkit attention` writes .html without it")


@contextmanager
def plotting(settings: dict[str, Any]) -> Iterator[None]:
    """Use these matplotlib settings inside the `with` block; raise if matplotlib is missing."""
    require_matplotlib()
    import matplotlib

    with matplotlib.rc_context(settings), warnings.catch_warnings():  # type: ignore[arg-type]
        warnings.filterwarnings("ignore", message="Glyph .* missing from")  # our notes say more; browsers have other fonts
        yield


def write_figure(maps: Sequence[AttentionMap], path: str | Path, *, title: str = "") -> list[str]:
    """Draw maps to a file (`.png`, `.svg` or another matplotlib format) and return notes for the reader; see `draw`."""
    figure, notes = draw(maps, title=title)
    kind = Path(path).suffix.removeprefix(".")
    with atomic(path) as file, plotting({"svg.hashsalt": "attnkit"}):
        figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return notes


def draw(maps: Sequence[AttentionMap], *, title: str = "") -> tuple["Figure", list[str]]:
    """Draw maps: one row per map (equal names adjacent), one column per head, darker for larger weights, on one scale for all.

    Returns the figure and notes for the reader, such as that labels were omitted. Raises if the texts are too long for a figure.

    Example:
        >>> import torch
        >>> weights = torch.rand(2, 3, 3).softmax(-1)
        >>> figure, notes = draw([AttentionMap("encoder", "self", 0, weights, "abc", "abc", "tokens", "tokens")])
        >>> len(figure.axes), notes  # two heads and the colour bar
        (3, [])
    """
    require_matplotlib()
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    labels = [label for m in maps for label in (*m.shown(m.queries), *m.shown(m.keys))]
    fonts, missing = families({c for text in (*labels, title) for c in text})
    notes = font_advice(missing)
    groups = [list(group) for _, group in groupby(maps, key=lambda m: m.name)]
    columns, widest = max(len(m.heads) for m in maps), max(len(m.keys) for m in maps)
    label = 0.09 * max(_width(_short(text)) for text in labels) + 0.1
    lines = len(maps) + len(groups) * 2 + (2 if title else 1)
    room = (LARGEST - label - LINE - BAR - columns * GAP) / (columns * widest)
    high = (LARGEST - len(groups) * label - lines * LINE) / sum(len(m.queries) for m in maps)
    cell = min(CELL, room, high)
    if cell < SMALLEST:
        raise ConfigurationError(
            f"{counted(widest, 'token')} in {counted(columns, 'head')} of {counted(len(maps), 'layer')} do not fit in one figure: "
            f"select some with --kind, --layer and --head, shorten the text, or write .html"
        )
    readable = cell >= READABLE
    if not readable:
        label = 0.1
        notes.append("the texts are too long for labels in this figure; select some maps with --kind, --layer and --head, or write .html")
    side = widest * cell + GAP
    # titles must fit
    width = max(label + LINE + columns * side + BAR, max(0.085 * _width(text) + 0.3 for text in (title, *map(_heading, maps))))
    height = max(len(groups) * (label + LINE / 2) + (lines - len(groups)) * LINE + sum(len(m.queries) for m in maps) * cell, 2.7)
    figure = Figure(figsize=(width, height))
    norm = Normalize(0, max(float(m.weights.max()) for m in maps) or 1.0)

    def write(text: str, x: float, top: float, size: float, **how: Any) -> None:
        figure.text(x / width, 1 - top / height, text, fontsize=size, parse_math=False, va="center", **how)

    top = LINE * 0.8
    if title:
        write(title, 0.15, top, 11, fontfamily=fonts)
        top += LINE
    first = top
    for group in groups:
        write(_heading(group[0]), 0.15, top, 10, fontweight="bold")
        top += LINE
        for m in group:
            top += LINE
            tall, wide = len(m.queries) * cell, len(m.keys) * cell
            write(f"layer {m.layer}", 0.15, top + tall / 2, 9, rotation=90, ha="center")
            for column, (head, weights) in enumerate(zip(m.heads, m.weights, strict=True)):
                left = label + LINE + column * side
                write(f"head {head}", left + wide / 2, top - LINE / 2, 9, ha="center")
                axes = figure.add_axes((left / width, 1 - (top + tall) / height, wide / width, tall / height))
                axes.imshow(weights.float().cpu().numpy(), norm=norm, cmap="Blues", aspect="auto", interpolation="nearest")
                is_left, is_last = readable and column == 0, readable and m is group[-1]
                _label(axes, m, rows=is_left, columns=is_last, size=min(9.0, cell * 72 * 0.75), fonts=fonts)
            top += tall
        top += label + LINE * 0.5
    bar = figure.add_axes(
        ((label + LINE + columns * side + 0.1) / width, 1 - (first + LINE * 2 + 1.5) / height, 0.14 / width, 1.5 / height)
    )
    figure.colorbar(ScalarMappable(norm, "Blues"), cax=bar).set_label("weight", fontsize=9)
    bar.tick_params(labelsize=8)
    return figure, notes


def _label(axes: "Axes", m: AttentionMap, *, rows: bool, columns: bool, size: float, fonts: list[str]) -> None:
    axes.tick_params(length=0, pad=2)
    axes.spines[:].set_linewidth(0.5)
    axes.spines[:].set_color("#888888")
    axes.set_xticks(range(len(m.keys)) if columns else [])
    axes.set_yticks(range(len(m.queries)) if rows else [])
    style: dict[str, Any] = {"fontsize": size, "fontfamily": fonts, "parse_math": False}
    if columns:
        axes.set_xticklabels([_short(label) for label in m.shown(m.keys)], rotation=90, **style)
    if rows:
        axes.set_yticklabels([_short(label) for label in m.shown(m.queries)], **style)


def _heading(m: AttentionMap) -> str:
    return f"{m.name} (rows: {m.rows}; columns: {m.columns}{m.note and f'; {m.note}'})"


def _short(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[: LONGEST - 1]}…"


def _width(text: str) -> int:
    """Return the display width of a text in columns; CJK characters take two."""
    return sum(2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text)


def font_advice(missing: str) -> list[str]:
    """Return a note about characters missing from all fonts, if any."""
    if not missing:
        return []
    hangul = any("가" <= c <= "힣" or "\u1100" <= c <= "\u318f" for c in missing)
    package = (
        "fonts-nanum (Korean) or fonts-noto-cjk (Korean, Chinese, Japanese)" if hangul else "fonts-noto-cjk (Chinese, Japanese, Korean)"
    )
    shown = missing if len(missing) <= 12 else f"{missing[:12]}…"
    return [f"no installed font has {shown}, drawn as boxes; apt-get install {package} or another font for the language, or write .html"]
