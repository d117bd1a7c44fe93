"""Figures of numbers: lines over an axis, as SVG. Colours are those of Okabe and Ito; dashes and markers differ too."""

import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

from attnkit.drawing.figure import require_matplotlib

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES, MARKERS = ("-", "--", ":", "-."), ("o", "s", "^", "D", "v", "P", "X")
WIDTH, PANEL, LEGEND = 4.8, 2.4, 0.17  # inches: the width of a figure, the height of a panel and of a line of the legend


def draw_lines(
    rows: Sequence[Mapping[str, Any]], *, x: str, y: Sequence[str], lines: str | None = None, log: str = "", title: str = ""
) -> str:
    """Draw columns of a table and return the SVG.

    Args:
        rows: The table; a missing or None value of `y` is left out.
        x: The column of the horizontal axis.
        y: The columns to draw, each in a panel of its own.
        lines: The column of which each value is a line (default: one line).
        log: The axes with a logarithmic scale, such as `xy`; zeros are drawn on a linear stretch.
        title: The title, from which the ids inside the SVG are hashed: figures of one page must not share them.

    Raises:
        ConfigurationError: matplotlib is not installed.

    Example:
        >>> svg = draw_lines([{"distance": 0, "gradient": 1.0}, {"distance": 1, "gradient": 0.5}], x="distance", y=["gradient"])
        >>> svg[:4], "gradient" in svg
        ('<svg', True)
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    names: list[Any] = list(dict.fromkeys(row[lines] for row in rows)) if lines is not None else [None]
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": "sans-serif", "text.parse_math": False}):
        legend = LEGEND * len(names) + 0.1 if lines is not None else 0
        figure = Figure(figsize=(WIDTH, PANEL * len(y) + legend + 0.4), layout="constrained")
        panels = figure.subplots(len(y), 1, sharex=True, squeeze=False)[:, 0]
        for axes, column in zip(panels, y, strict=True):
            for name, colour, dash, marker in zip(names, cycle(COLOURS), cycle(DASHES), cycle(MARKERS), strict=False):
                shown = [row for row in rows if (lines is None or row[lines] == name) and row.get(column) is not None]
                points = ([row[x] for row in shown], [row[column] for row in shown])
                axes.plot(
                    *points, color=colour, linestyle=dash, marker=marker, markersize=4, lw=1.3, label=None if name is None else str(name)
                )
            if "x" in log:
                axes.set_xscale("symlog" if any(row[x] == 0 for row in rows) else "log", base=2)
                axes.xaxis.set_major_formatter("{x:g}")
            elif all(isinstance(row[x], int) for row in rows):
                axes.xaxis.get_major_locator().set_params(integer=True)  # there is no layer 1.5
            if "y" in log:
                axes.set_yscale("log")
                axes.yaxis.set_major_formatter("{x:g}")  # the default is mathematics, which is not parsed
                axes.yaxis.set_minor_formatter("")
            axes.set_ylabel(column.replace("_", " "))
            axes.grid(alpha=0.25)
            axes.spines[["top", "right"]].set_visible(False)
        panels[-1].set_xlabel(x)
        figure.suptitle(title, fontsize=11)
        if lines is not None:
            figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", frameon=False, fontsize=8, handlelength=3)
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = drawing.getvalue()
    return text[text.index("<svg") :]
