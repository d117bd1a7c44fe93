"""SVG plots: lines, and labelled points in a plane.

Lines use the colours of Okabe and Ito, and also differ in dashes and markers.
"""

import io
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle
from typing import TYPE_CHECKING, Any

from attnkit.drawing.base import AttentionMap
from attnkit.drawing.figure import plotting, require_matplotlib
from attnkit.fonts import families

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")
WIDTH, PANEL, LEGEND = 4.8, 2.4, 0.17  # inches: width of a figure, height of a panel, height of a legend line
SIDE = 6.4  # inches: size of a plot of points


def draw_lines(
    rows: Sequence[Mapping[str, Any]], *, x: str, y: Sequence[str], lines: str | None = None, log: str = "", title: str = ""
) -> str:
    """Plot the columns `y` of a table against its column `x`, one panel per column, and return the SVG.

    A missing or None value of `y` is left out. Each value of the column `lines` gets a line. `log` names the logarithmic axes, such as
    `xy`; an x axis is linear near zero, and a line to a zero of `y` leaves its panel at the bottom. The ids inside the SVG are hashed from
    the title, so titles must differ between the figures of a page.

    Example:
        >>> svg = draw_lines([{"distance": 0, "gradient": 1.0}, {"distance": 1, "gradient": 0.5}], x="distance", y=["gradient"])
        >>> svg[:4], "gradient" in svg
        ('<svg', True)
    """
    names: list[Any] = list(dict.fromkeys(row[lines] for row in rows)) if lines is not None else [None]

    def draw(figure: "Figure") -> None:
        panels = figure.subplots(len(y), 1, sharex=True, squeeze=False)[:, 0]
        for axes, column in zip(panels, y, strict=True):
            for name, colour, dash, marker in zip(names, cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False):
                shown = [row for row in rows if (lines is None or row[lines] == name) and row.get(column) is not None]
                points = ([row[x] for row in shown], [row[column] for row in shown])
                label = None if name is None else str(name)
                axes.plot(*points, color=colour, linestyle=dash, marker=marker, markersize=4, lw=1.3, label=label)
            if "x" in log:
                axes.set_xscale("symlog" if any(row[x] == 0 for row in rows) else "log", base=2)
                axes.xaxis.set_major_formatter("{x:g}")
            elif all(isinstance(row[x], int) for row in rows):
                axes.xaxis.get_major_locator().set_params(integer=True)  # no ticks at layer 1.5
            if "y" in log:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")  # the default format is TeX, which is not parsed here
                axes.yaxis.set_minor_formatter(partial(_between_powers, axes))
            axes.set_ylabel(column.replace("_", " "))
        panels[-1].set_xlabel(x)
        if lines is not None:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, handlelength=3)

    legend = LEGEND * len(names) + 0.1 if lines is not None else 0
    return _svg(draw, title, (WIDTH, PANEL * len(y) + legend + 0.4), "sans-serif")


def draw_points(rows: Sequence[Mapping[str, Any]], *, label: str, x: str, y: str, title: str = "") -> str:
    """Plot each row of a table as a labelled point, with equal scales on both axes, and return the SVG; `label`, `x`, `y` are columns.

    Example:
        >>> svg = draw_points([{"word": "왕", "first": 0.5, "second": 1.0}], label="word", x="first", y="second")
        >>> svg[:4], "왕" in svg
        ('<svg', True)
    """
    require_matplotlib()
    labels = AttentionMap.shown([str(row[label]) for row in rows])

    def draw(figure: "Figure") -> None:
        axes = figure.subplots()
        axes.scatter([row[x] for row in rows], [row[y] for row in rows], s=12, color="#0072B2")
        for text, row in zip(labels, rows, strict=True):
            axes.annotate(text, (row[x], row[y]), xytext=(3, 3), textcoords="offset points", fontsize=8)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel(x)
        axes.set_ylabel(y)

    return _svg(draw, title, (SIDE, SIDE), families({c for text in labels for c in text})[0])


def _between_powers(axes: "Axes", value: float, _: int | None = None) -> str:
    """Return the label of a tick between powers of ten on a logarithmic y axis: none if two powers are visible, which say enough."""
    low, high = axes.get_ylim()
    if math.ceil(math.log10(low)) < math.floor(math.log10(high)):
        return ""
    return f"{value:g}" if high < 10 * low or f"{value:e}"[0] in "25" else ""


def _svg(draw: Callable[["Figure"], None], title: str, size: tuple[float, float], fonts: str | list[str]) -> str:
    """Return the drawing as SVG with its text kept as text."""
    require_matplotlib()
    from matplotlib.figure import Figure

    drawing, settings = io.StringIO(), {"svg.fonttype": "none", "svg.hashsalt": title, "font.family": fonts, "text.parse_math": False}
    with plotting(settings):
        figure = Figure(figsize=size, layout="constrained")
        draw(figure)
        for axes in figure.axes:
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title, fontsize=11)
        figure.savefig(drawing, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = drawing.getvalue()
    return text[text.index("<svg") :]
