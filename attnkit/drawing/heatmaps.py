"""Heat maps and bar charts, drawn with matplotlib."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from attnkit.drawing.base import AttentionMap
from attnkit.drawing.figure import font_advice, plotting, require_matplotlib
from attnkit.files import atomic
from attnkit.fonts import families

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIDE = 3.2  # inches of a panel
MANY = 40  # more labels than this are left out
PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ margin: 0 auto; max-width: 76rem; padding: 1rem; }}
figure {{ margin: 0; padding: .5rem; background: #fff; overflow-x: auto; }}
svg {{ max-width: 100%; min-width: {width}rem; height: auto; }}</style>
<figure role="img" aria-label="{title}">
{figure}
</figure>
"""


@dataclass(frozen=True)
class Panel:
    """A heat map, or a bar chart if `values` has one axis."""

    title: str  # the title
    values: Tensor  # [Y, X], or [Y] for horizontal bars
    y: str  # the label of the rows
    x: str  # the label of the columns; for bars, of their length
    rows: Sequence[str] = ()  # labels of the rows (default: their numbers)
    extent: tuple[float, float, float, float] | None = None  # left, right, bottom and top of the axes, in place of labels
    point: tuple[float, float] | None = None  # a point to mark, with `extent`


def write_panels(panels: Sequence[Panel], path: str | Path, *, title: str = "") -> list[str]:
    """Draw panels side by side to a file (`.svg`, `.png` or `.html`) and return notes for the reader, such as about missing fonts.

    In a panel with negative numbers, zero is white. Text in a page stays text, so the browser finds fonts for it.

    Example:
        >>> import tempfile, torch
        >>> path = Path(tempfile.mkdtemp(), "mask.svg")
        >>> write_panels([Panel("causal", torch.ones(3, 3).tril(), "query", "key")], path)
        []
        >>> "<svg" in path.read_text(encoding="utf-8")
        True
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    texts = [title, *(text for p in panels for text in (p.title, *p.rows))]
    fonts, missing = families({c for text in texts for c in text})
    is_page = Path(path).suffix == ".html"
    kind = "svg" if is_page else Path(path).suffix.removeprefix(".")
    style = {"font.family": fonts, "font.size": 8, "text.parse_math": False, "svg.fonttype": "none" if is_page else "path"}
    with plotting({"svg.hashsalt": title, **style}):
        across = min(len(panels), 4)
        down = -(-len(panels) // across)
        figure = Figure(figsize=(SIDE * across, SIDE * down + 0.4), layout="constrained")
        axes = figure.subplots(down, across, squeeze=False).flatten()
        for place, panel in zip(axes, panels, strict=False):
            _draw(place, panel)
        for place in axes[len(panels) :]:
            place.set_axis_off()
        figure.suptitle(title, fontsize=11, wrap=True)
        with atomic(path) as file:
            figure.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
            if is_page:
                svg = file.read_text(encoding="utf-8")
                width = max(24, 14 * across)  # panels scroll on a phone instead of shrinking
                page = PAGE.format(title=escape(title), figure=svg[svg.index("<svg") :], width=width)
                file.write_text(page, encoding="utf-8")
    return [] if is_page else font_advice(missing)


def _draw(axes: "Axes", panel: Panel) -> None:
    values = panel.values.detach().double().cpu().numpy()
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    if values.ndim == 1:
        axes.barh(range(len(values)), values, color="#0072B2")
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    else:
        largest = max(abs(values.min()), abs(values.max())) or 1.0
        has_signs = values.min() < 0
        colours: dict[str, Any] = {"cmap": "RdBu_r" if has_signs else "Blues", "vmin": -largest if has_signs else 0.0, "vmax": largest}
        where: dict[str, Any] = {"extent": panel.extent, "origin": "lower"} if panel.extent else {"interpolation": "nearest"}
        image = axes.imshow(values, aspect="auto", **colours, **where)
        axes.figure.colorbar(image, ax=axes, fraction=0.05)
        if panel.extent is not None:
            axes.contour(values, levels=9, colors="#444444", linewidths=0.5, extent=panel.extent)
    if panel.point is not None:
        axes.annotate("", xy=panel.point, xytext=(0, 0), arrowprops={"arrowstyle": "->", "color": "#000000", "lw": 1.5})
    if 0 < len(panel.rows) <= MANY:
        axes.set_yticks(range(len(panel.rows)), AttentionMap.shown(panel.rows))
