"""Figures of labelled points in a plane, as SVG."""

import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from attnkit.drawing.base import AttentionMap
from attnkit.drawing.figure import require_matplotlib
from attnkit.drawing.fonts import families

SIDE = 6.4  # inches


def draw_points(rows: Sequence[Mapping[str, Any]], *, label: str, x: str, y: str, title: str = "") -> str:
    """Draw each row of a table as a labelled point and return the SVG.

    Args:
        rows: The table.
        label: The column of the labels.
        x: The column of the horizontal axis.
        y: The column of the vertical axis, on the same scale.
        title: The title, from which the ids inside the SVG are hashed.

    Raises:
        ConfigurationError: matplotlib is not installed.

    Example:
        >>> svg = draw_points([{"word": "왕", "first": 0.5, "second": 1.0}], label="word", x="first", y="second")
        >>> svg[:4], "왕" in svg
        ('<svg', True)
    """
    require_matplotlib()
    import matplotlib
    from matplotlib.figure import Figure

    labels = AttentionMap.shown([str(row[label]) for row in rows])
    fonts, _ = families({c for text in labels for c in text})
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.family": fonts, "text.parse_math": False}):
        figure = Figure(figsize=(SIDE, SIDE), layout="constrained")
        axes = figure.subplots()
        axes.scatter([row[x] for row in rows], [row[y] for row in rows], s=12, color="#0072B2")
        for text, row in zip(labels, rows, strict=True):
            axes.annotate(text, (row[x], row[y]), xytext=(3, 3), textcoords="offset points", fontsize=8)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_xlabel(x)
        axes.set_ylabel(y)
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        figure.suptitle(title, fontsize=11)
        drawing = io.StringIO()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing from")  # the text of an SVG is drawn by the browser
            figure.savefig(drawing, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    text = drawing.getvalue()
    return text[text.index("<svg") :]
