"""The canvas, colours and shapes of figures. The colours are Okabe and Ito's, safe for colour-blind readers; shapes differ too."""

import io
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter

from attnkit.fonts import families

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
WIDTH = 4.8  # inches; narrow, so that text of 8 and 10 points is legible on a phone, where a figure is as wide as the screen
LONG = 26  # a legend with names longer than this many characters has one column
STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Figure(NamedTuple):
    """A figure: the name of its file, its title, and its SVG; None if there is nothing to draw."""

    name: str
    title: str
    svg: str | None


class Line(NamedTuple):
    """A line of a figure: its name, points, plot arguments, and optionally a band: (x, low, high) for each point."""

    name: str
    points: Sequence[tuple[float, float]]
    look: Mapping[str, Any]
    band: Sequence[tuple[float, float, float]] = ()


def lines(
    name: str,
    title: str,
    drawn: Sequence[Line],
    x_label: str,
    y_label: str,
    *,
    height: float,
    prefixes: bool = False,
    log: bool = False,
    ticks: Sequence[str] = (),
    mark: float | None = None,
) -> Figure:
    """Return a figure of lines; the x-axis has SI prefixes (`prefixes`), a log2 scale (`log`), or names at 0, 1, ... (`ticks`)."""
    with canvas(name, height=height) as (axes, svg):
        for line in drawn:
            axes.plot(*zip(*line.points, strict=True), label=wrapped(line.name), **line.look)
            if line.band:
                axes.fill_between(*zip(*line.band, strict=True), color=line.look["color"], alpha=0.12, lw=0)
        if mark is not None:
            axes.axvline(mark, color="#444444", lw=0.8, ls="--")
        if log:
            axes.set_xscale("log", base=2)
        if log or prefixes:
            axes.xaxis.set_major_formatter(EngFormatter())
        if ticks:
            axes.set_xticks(range(len(ticks)), ticks, fontsize=8, rotation=20, ha="right")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        legend(axes)
    return Figure(name, title, if_drawn(axes, svg))


def look(colour: int, style: int, marker: int) -> dict[str, Any]:
    """Return the plot arguments for a colour, a line style and a marker, given by index."""
    return {
        "color": COLOURS[colour % len(COLOURS)],
        "ls": STYLES[style % len(STYLES)],
        "marker": MARKERS[marker % len(MARKERS)],
        "markersize": 4,
        "lw": 1.2,
    }


def legend_height(names: Sequence[str]) -> float:
    """Return the height in inches of a legend of these names."""
    return sum(0.2 + 0.14 * wrapped(name).count("\n") for name in names) / _columns(names) + 0.2


def _columns(names: Iterable[str]) -> int:
    return 1 if max(map(len, names)) > LONG else 2


def legend(axes: Any) -> None:
    """Draw the legend below the axes, if anything is drawn."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.figure.legend(loc="outside lower center", ncols=_columns(labels), frameon=False, fontsize=8, handlelength=3)


def if_drawn(axes: Any, svg: io.StringIO) -> str | None:
    """Return the SVG of a canvas, or None if nothing with a label is drawn on it."""
    return svg.getvalue() if axes.get_legend_handles_labels()[0] else None


def wrapped(name: str) -> str:
    """Wrap a name into lines short enough to leave room for the data; names are never truncated, so no two look alike.

    Matplotlib omits labels that start with an underscore from legends, so such a name gets a zero-width space in front.
    """
    return "\n".join(textwrap.wrap(f"\u200b{name}" if name.startswith("_") else name, 34, break_on_hyphens=False))


@contextmanager
def canvas(name: str, *, height: float) -> Iterator[tuple[Any, io.StringIO]]:
    """Yield the axes of a figure and the buffer that holds the SVG afterwards. Text stays text: small, and readable by screen readers.

    Ids in the SVG are hashed from `name`, because figures on one page must not share them. Characters missing from matplotlib's font are
    measured with an installed font that has them, if there is one; the reader's browser chooses its own.
    """
    svg = io.StringIO()
    with (
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "text.parse_math": False}),
        warnings.catch_warnings(),
    ):
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure = MatplotlibFigure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        yield axes, svg
        labels = [label for label in figure.findobj(Text) if isinstance(label, Text)]
        _, *others = families({c for label in labels for c in label.get_text()})[0]
        for label in labels if others else ():
            label.set_fontfamily(["sans-serif", *others])
        drawing = io.StringIO()
        metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        FigureCanvasSVG(figure).print_svg(drawing, metadata=metadata)  # type: ignore[no-untyped-call]  # `savefig` draws twice
        text = drawing.getvalue()
        svg.write(text[text.index("<svg") :])
