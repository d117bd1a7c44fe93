"""Plots of attention: an interactive page, or a matplotlib figure."""

from attnkit.drawing.base import AttentionMap
from attnkit.drawing.figure import draw, require_matplotlib, write_figure
from attnkit.drawing.page import write_page, write_pages
from attnkit.drawing.plots import draw_lines, draw_points

__all__ = ["AttentionMap", "draw", "draw_lines", "draw_points", "require_matplotlib", "write_figure", "write_page", "write_pages"]
