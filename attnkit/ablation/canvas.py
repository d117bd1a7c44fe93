"""The canvas, colours and shapes of figures. Colours are those of Okabe and Ito, safe for colour-blind readers; shapes differ too."""

import io
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import matplotlib
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.ticker import EngFormatter

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
WIDTH = 4.8
"""Inches: narrow, so that 8 and 10 points are legible on a phone, where a figure is as wide as the screen."""
LONG = 26
"""A legend with names longer than this many characters has one column."""
STYLES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


class Figure(NamedTuple):
    """A figure: the name of its file, its title, and its SVG; None if there is nothing to draw."""

    name: str
    title: str
    svg: str | None


def lines(
    name: str,
    title: str,
    points: Mapping[str, Sequence[tuple[float, float]]],
    across: str,
    up: str,
    *,
    log: bool = False,
    marked: bool = True,
    bands: Mapping[str, Sequence[tuple[float, float, float]]] | None = None,
) -> Figure:
    """Return a figure with a line for each name, and a band from low to high; `log`: the axis across has powers of 2."""
    with canvas(name, height=2.6 + legend_height(list(points))) as (axes, svg):
        for i, (label, line) in enumerate(points.items()):
            drawn = look(i, i // len(COLOURS), i)
            axes.plot(*zip(*line, strict=True), label=wrapped(label), **drawn if marked else drawn | {"marker": ""})
            if bands is not None:
                axes.fill_between(*zip(*bands[label], strict=True), color=drawn["color"], alpha=0.12, lw=0)
        if log:
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter(EngFormatter())
        axes.set_xlabel(across)
        axes.set_ylabel(up)
        legend(axes)
    return Figure(name, title, if_drawn(axes, svg))


def look(colour: int, style: int, marker: int) -> dict[str, Any]:
    """Return the arguments of a plot by numbers of a colour, a line and a marker."""
    return {
        "color": COLOURS[colour % len(COLOURS)],
        "ls": STYLES[style % len(STYLES)],
        "marker": MARKERS[marker % len(MARKERS)],
        "markersize": 4,
        "lw": 1.2,
    }


def legend_height(names: Sequence[str]) -> float:
    """Return the height of a legend of these names, in inches."""
    return sum(0.2 + 0.14 * wrapped(name).count("\n") for name in names) / _columns(names) + 0.2


def _columns(names: Iterable[str]) -> int:
    return 1 if max(map(len, names)) > LONG else 2


def legend(axes: Any) -> None:
    """Draw the legend below the axes, if anything is drawn."""
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        axes.figure.legend(loc="outside lower center", ncols=_columns(labels), frameon=False, fontsize=8, handlelength=3)


def if_drawn(axes: Any, svg: io.StringIO) -> str | None:
    """Return the SVG of a canvas; None if nothing with a label is drawn on it."""
    return svg.getvalue() if axes.get_legend_handles_labels()[0] else None


def wrapped(name: str) -> str:
    """Return a name on lines short enough to leave room for the data; it is never cut, so that no two names look alike.

    Matplotlib leaves labels that begin with an underscore out of legends, so that a character without width comes before it.
    """
    return "\n".join(textwrap.wrap(f"\u200b{name}" if name.startswith("_") else name, 34, break_on_hyphens=False))


@contextmanager
def canvas(name: str, *, height: float) -> Iterator[tuple[Any, io.StringIO]]:
    """Yield the axes of a figure, and the buffer that has the SVG afterwards. Text stays text: small, and readable aloud.

    Ids inside the SVG are hashed from `name`: figures of one page must not share them.
    """
    svg = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif", "text.parse_math": False}):
        figure = MatplotlibFigure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        yield axes, svg
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        text = drawing.getvalue()
        svg.write(text[text.index("<svg") :])
