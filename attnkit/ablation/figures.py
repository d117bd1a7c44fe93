"""The figures of a report, as SVG text. Colours are Okabe and Ito's, which the colour-blind can tell apart; shapes differ too."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from attnkit.ablation.results import Results

VERDICT_COLOURS = {"better": "#0072B2", "worse": "#D55E00", "equivalent": "#009E73", "inconclusive": "#777777"}
VERDICT_MARKERS = {"better": "^", "worse": "v", "equivalent": "s", "inconclusive": "o"}
COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
WIDTH = 4.8
"""Inches: narrow, so that its 8 and 10 points are still read on a phone, where a figure is as wide as the screen."""
STYLES = ("-", "--", "-.", ":")

Titled = tuple[str, str | None]


def forest(results: "Results") -> Titled:
    """Return the differences with their intervals; beyond 0 or within the margin of equivalence."""
    shown = [c for c in results.comparisons if c.mean is not None and not any(c.diverged)]
    if not shown:
        return "Differences", None
    with _figure("forest", height=1.0 + 0.36 * len(shown)) as (axes, svg):
        if results.study.min_effect is not None:
            axes.axvspan(-results.study.min_effect, results.study.min_effect, color="#009E73", alpha=0.12, lw=0)
        axes.axvline(0, color="#444444", lw=0.8)
        for i, c in enumerate(reversed(shown)):
            colour = VERDICT_COLOURS[c.verdict]
            if c.interval is not None:
                axes.plot(c.interval, (i, i), color=colour, lw=2)
            axes.plot([c.mean], [i], color=colour, marker=VERDICT_MARKERS[c.verdict], markersize=7)
        axes.set_yticks(range(len(shown)), [f"{_short(c.variant)}\nvs {_short(c.reference)}" for c in reversed(shown)], fontsize=8)
        axes.set_ylim(-0.6, len(shown) - 0.4)
        axes.set_xlabel(f"difference of {results.study.metric} ({results.study.better} is better)")
    return "Differences and their intervals" + (" (shaded: too small to matter)" if results.study.min_effect else ""), svg.getvalue()


def paired(results: "Results") -> Titled:
    """Return every run as a dot; runs of one seed are joined."""
    names = [v.name for v in results.plan.variants]
    values = {name: results.values(name) for name in names}
    if not any(_is_number(v) for runs in values.values() for v in runs.values()):
        return "Runs", None
    with _figure("paired", height=1.0 + 0.36 * len(names)) as (axes, svg):
        for i, seed in enumerate(results.study.seeds):
            points = [(values[n][seed], len(names) - 1 - row) for row, n in enumerate(names) if _is_number(values[n][seed])]
            if points:
                colour = COLOURS[i % len(COLOURS)]
                axes.plot(*zip(*points, strict=True), color=colour, lw=0.7, marker="o", markersize=5, alpha=0.75)
        for row, name in enumerate(names):
            lost = sum(v is not None and math.isnan(v) for v in values[name].values())
            if lost:
                axes.annotate(f"{lost} diverged", (0.99, len(names) - 1 - row), xycoords=("axes fraction", "data"), ha="right", fontsize=8)
        axes.set_yticks(range(len(names)), [_short(n) for n in reversed(names)], fontsize=8)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel(results.study.metric)
    return "Every run; lines join those of one seed", svg.getvalue()


def curves(results: "Results") -> Iterator[Titled]:
    """Yield the learning curves by tokens and by time: a line for each variant, its mean over seeds."""
    metric = results.study.metric if results.study.metric.startswith("val/") else "val/loss"
    for axis, title in (("tokens", "training tokens (no padding)"), ("seconds", "seconds of training")):
        drawn = 0
        with _figure(axis, height=2.8 + 0.09 * len(results.plan.variants)) as (axes, svg):
            for i, variant in enumerate(results.plan.variants):
                points = _mean_curve(results, variant.name, axis, metric)
                if len(points) < 2:
                    continue
                colour, style = COLOURS[i % len(COLOURS)], STYLES[(i // len(COLOURS)) % len(STYLES)]
                axes.plot(*zip(*points, strict=True), color=colour, ls=style, marker=".", label=_short(variant.name))
                drawn += 1
            axes.set_xlabel(title)
            axes.set_ylabel(metric)
            if drawn:
                axes.figure.legend(loc="outside lower center", ncols=2 if drawn <= 12 else 3, frameon=False, fontsize=8)
        yield f"Learning curves by {axis}", svg.getvalue() if drawn else None


def _mean_curve(results: "Results", variant: str, axis: str, metric: str) -> list[tuple[float, float]]:
    keys = results.plan.key_by_variant
    found = [results.result[keys[variant, seed]].get("curve", []) for seed in results.study.seeds]
    lines: list[list[dict[str, Any]]] = [curve for curve in found if curve and all(_is_number(p.get(metric)) for p in curve)]
    return [
        (sum(p[axis] for p in points) / len(points), sum(p[metric] for p in points) / len(points)) for points in zip(*lines, strict=False)
    ]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short(name: str) -> str:
    return name if len(name) <= 34 else f"{name[:16]}…{name[-17:]}"


@contextmanager
def _figure(name: str, *, height: float) -> Iterator[tuple[Any, io.StringIO]]:
    """Yield the axes of a figure, and the buffer that has the SVG afterwards. Text stays text: small, and readable aloud.

    Ids inside the SVG are hashed from `name`: figures of one page must not share them.
    """
    svg = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        axes = figure.subplots()
        axes.grid(axis="x", alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
        yield axes, svg
        drawing = io.StringIO()
        figure.savefig(drawing, format="svg", transparent=True, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
        text = drawing.getvalue()
        svg.write(text[text.index("<svg") :])
