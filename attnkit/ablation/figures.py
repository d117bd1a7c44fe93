"""The figures of a report, as SVG text."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from typing import Any

from matplotlib.ticker import EngFormatter, NullFormatter

from attnkit.ablation.canvas import COLOURS, Figure, Line, canvas, if_drawn, legend, legend_height, lines, look, wrapped
from attnkit.ablation.contrasts import balanced
from attnkit.ablation.measurements import lost
from attnkit.ablation.results import Results, relative
from attnkit.ablation.statistics import Comparison
from attnkit.ablation.tables import compared_with
from attnkit.wording import counted
from attnkit.worker.folder import SPECIAL

VERDICT_COLOURS = {"better": "#0072B2", "worse": "#D55E00", "equivalent": "#009E73", "inconclusive": "#777777", "interaction": "#CC79A7"}
VERDICT_MARKERS = {"better": "^", "worse": "v", "equivalent": "s", "inconclusive": "o", "interaction": "D"}


@lru_cache(maxsize=1)  # all formats of a report show the same figures
def figures(results: Results) -> list[Figure]:
    """Return the figures of a report that have data, in order of appearance."""
    found = [forest(results), paired(results), *curves(results), cost_quality(results), lengths(results), *interaction_plots(results)]
    return [figure for figure in found if figure.svg is not None]


def forest(results: Results) -> Figure:
    """Return a forest plot of the differences and their intervals, with 0 and the equivalence margin; in percent if the margin is."""
    in_percent = isinstance(results.study.min_effect, str)
    shown = [c for c in (map(_in_percent, results.family) if in_percent else results.family) if c.mean is not None]
    if not shown:
        return Figure("forest", "Differences", None)
    known = [end for c in shown for end in (0.0, c.mean or 0.0, *(c.interval or ())) if math.isfinite(end)]
    room = 0.2 * (max(known) - min(known))
    ends = min(known) - room, max(known) + room  # where unbounded intervals are cut off
    references = [compared_with(c) for c in shown]
    sides = [(results.study.side(c.variant), f"vs {reference}") for c, reference in zip(shown, references, strict=True)]
    labels = [f"{wrapped(one)}\n{wrapped(other)}" for one, other in reversed(sides)]
    with canvas("forest", height=1.0 + _row_height(labels) * len(shown)) as (axes, svg):
        axes.axvline(0, color="#444444", lw=0.8)
        for i, c in enumerate(reversed(shown)):
            mark = "interaction" if c.kind == "interaction" and c.verdict in ("better", "worse") else c.verdict
            colour = VERDICT_COLOURS[mark]
            if c.min_effect is not None:
                axes.fill_betweenx((i - 0.5, i + 0.5), -c.min_effect, c.min_effect, color="#009E73", alpha=0.12, lw=0)
            if c.interval is not None:
                axes.plot([min(max(end, ends[0]), ends[1]) for end in c.interval], (i, i), color=colour, lw=2)
            axes.plot([c.mean], [i], color=colour, marker=VERDICT_MARKERS[mark], markersize=7)
        axes.set_yticks(range(len(shown)), labels, fontsize=8)
        axes.set_ylim(-0.6, len(shown) - 0.4)
        unit = ", in % of the reference" if in_percent else ""
        axes.set_xlabel(f"difference of {results.study.quantity}{unit}\n({results.study.better} is better)", loc="right")
    title = "Differences and their intervals" + (" (shaded: too small to matter)" if results.study.min_effect else "")
    return Figure("forest", title, svg.getvalue())


def _in_percent(c: Comparison) -> Comparison:
    """Return a comparison with its difference, interval and margin in percent of the reference."""
    share, low, high = (None if x is None else 100 * x for x in relative(c).values())
    interval = None if low is None or high is None else (low, high)
    return replace(c, mean=share, interval=interval, min_effect=None if c.min_share is None else 100 * c.min_share)


def paired(results: Results) -> Figure:
    """Return a plot of every run as a dot, with lines that join runs of the same seed."""
    names = [v.name for v in results.plan.variants]
    values = {name: results.values(name) for name in names}
    if not any(_is_number(v) for runs in values.values() for v in runs.values()):
        return Figure("paired", "Runs", None)
    labels = [wrapped(name) for name in reversed(names)]
    with canvas("paired", height=1.0 + _row_height(labels) * len(names)) as (axes, svg):
        for i, seed in enumerate(results.study.seeds):
            points = [(values[n][seed], len(names) - 1 - row) for row, n in enumerate(names) if _is_number(values[n].get(seed))]
            if points:
                colour = COLOURS[i % len(COLOURS)]
                axes.plot(*zip(*points, strict=True), color=colour, lw=0.7, marker="o", markersize=5, alpha=0.75)
        for row, name in enumerate(names):
            if diverged := lost(values[name].values()):
                axes.annotate(
                    f"{diverged} diverged", (0.99, len(names) - 1 - row), xycoords=("axes fraction", "data"), ha="right", fontsize=8
                )
        axes.set_yticks(range(len(names)), labels, fontsize=8)
        axes.set_ylim(-0.6, len(names) - 0.4)
        axes.set_xlabel(results.study.metric)
    return Figure("paired", "Every run; lines join runs of the same seed", svg.getvalue())


def curves(results: Results) -> Iterator[Figure]:
    """Yield the learning curves by tokens and by time, one line per variant, averaged over seeds; none without tokens."""
    metric = _logged(results)
    for axis, title in (("tokens", "non-padding tokens of training"), ("seconds", _seconds(results))):
        found = []
        for variant, style in _looks(results):
            points, count = _mean_curve(results, variant, axis, metric)
            if len(points) >= 2 and points[-1][0]:  # batches of numbers have no tokens
                found.append(Line(_of(results, variant, count), points, style))
        named = f"Learning curves by {'time' if axis == 'seconds' else axis}"
        yield lines(f"curves_{axis}", named, found, title, metric, height=2.6 + _height_of_legend(results), prefixes=True)


def progress(results: Results) -> Figure:
    """Return the learning curves of all runs so far, including unfinished ones."""
    metric, drawn = _logged(results), []
    for variant, style in _looks(results):
        curves = [results.result[key].get("curve", []) for key in results.keys_of(variant)]
        found = [[(p["step"], p[metric]) for p in curve if _is_number(p.get(metric)) and "step" in p] for curve in curves]
        for i, points in enumerate(points for points in found if points):  # a run may have diverged before its first point
            drawn.append(Line("" if i else variant, points, style | {"lw": 0.8, "alpha": 0.8}))
    title, height = "Learning curve of every run so far", 2.6 + _height_of_legend(results)
    return lines("progress", title, drawn, "optimizer steps", metric, height=height, prefixes=True)


def _seconds(results: Results) -> str:
    return "processor seconds of training" if results.clocks() == {"processor"} else "wall-clock seconds of training"


def _logged(results: Results) -> str:
    """Return the study's validation metric, or the validation counterpart of its test metric if it is logged, or else `val/loss`."""
    if results.study.metric.startswith("val/"):
        return results.study.metric
    wanted = results.study.metric.replace("test/", "val/")
    points = [point for result in results.result.values() for point in result.get("curve", [])]
    return wanted if any(_is_number(point.get(wanted)) for point in points) else "val/loss"


def _of(results: Results, variant: str, count: int) -> str:
    """Return the label of a mean over a variant's runs, which says how many diverged runs it leaves out."""
    diverged = lost(results.values(variant).values())
    return f"{variant} ({counted(count, 'run')}, {diverged} diverged)" if diverged else variant


def _mean_curve(results: Results, variant: str, axis: str, metric: str) -> tuple[list[tuple[float, float]], int]:
    """Return the points of the mean learning curve of a variant, and the number of runs averaged."""
    found = [results.result[key].get("curve", []) for key in results.keys_of(variant)]
    curves = [[(p.get(axis), p.get(metric)) for p in curve] for curve in found if curve]
    whole = [curve for curve in curves if all(_is_number(number) for point in curve for number in point)]
    return [tuple(sum(ns) / len(ns) for ns in zip(*points, strict=True)) for points in zip(*whole, strict=False)], len(whole)


def cost_quality(results: Results) -> Figure:
    """Return a plot of the metric against the measured training time, or against parameters if the time is unknown."""
    names = [v.name for v in results.plan.variants]
    label = _seconds(results)
    costs = {name: cost for name in names if (cost := results.mean_cost(name, "seconds"))}
    if not costs:
        label = "parameters"
        costs = {name: float(size) for name in names if (size := results.parameters(name))}
    with canvas("cost_quality", height=2.8 + _height_of_legend(results)) as (axes, svg):
        for variant, style in _looks(results):
            values = [v for v in results.values(variant).values() if v is not None and math.isfinite(v)]
            if values and variant in costs:
                axes.plot([costs[variant]] * 2, [min(values), max(values)], color=style["color"], lw=1)
                named = wrapped(_of(results, variant, len(values)))
                axes.plot([costs[variant]], [sum(values) / len(values)], **style | {"ls": "", "markersize": 7}, label=named)
        if costs and max(costs.values()) > 10 * min(costs.values()):  # a log axis that spans less than a decade has few ticks or none
            axes.set_xscale("log")
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.set_xlabel(label)
        axes.set_ylabel(results.study.metric)
        legend(axes)
    return Figure("cost_quality", "Cost and quality; bars from the best seed to the worst", if_drawn(axes, svg))


def lengths(results: Results) -> Figure:
    """Return a plot of the metric by length of the source or the target, if the study asks for it."""
    side = results.study.lengths
    title = f"By length of the {side}"
    if side is None:
        return Figure("lengths", title, None)
    found = [(variant, style, *results.by_length(variant, side)) for variant, style in _looks(results)]
    data = (results.plan.inspections[results.plan.variants[0].name].recipe or {}).get("data", {})
    mark = None
    if longest := data.get("max_length"):
        mark = longest - SPECIAL[side] + 0.5
        title += " (dashed: the longest in training)"
    drawn = [Line(variant, points, style) for variant, style, _, points in found if points]
    if any(math.isnan(value) for line in drawn for _, value in line.points):
        title += " (a gap: no finite value in some run)"
    return lines("lengths", title, drawn, f"tokens of the {side}", found[-1][2], height=2.6 + _height_of_legend(results), mark=mark)


def interaction_plots(results: Results) -> Iterator[Figure]:
    """Yield a figure for each pair of factors of a full factorial design: means over seeds and over the other factors (see `balanced`)."""
    if not results.interactions:
        return
    levels = {f.name: f.labels for f in results.study.factors}
    names = {variant.choices: variant.name for variant in results.plan.variants}
    for pair in combinations(levels, 2):
        cells = balanced(names, pair)
        across, each = sorted(pair, key=lambda factor: -len(levels[factor]))
        drawn = []
        for i, level in enumerate(levels[each]):
            at = [[cell for cell in cells if {(across, x), (each, level)} <= set(cell)] for x in levels[across]]
            means = [results.mean_of(names[cell] for cell in found) for found in at]
            if points := [(x, mean) for x, mean in enumerate(means) if mean is not None]:
                drawn.append(Line(f"{each} {level}", points, look(i, i, i)))
        title = f"{across} and {each}: non-parallel lines show an interaction"
        yield lines(f"interaction_{across}_{each}", title, drawn, across, results.study.metric, height=3.0, ticks=levels[across])


def _looks(results: Results) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each variant and its look; in a full factorial design, colour, line and marker show the levels of the first three factors."""
    factors = results.study.factors if results.study.design == "full_factorial" else ()
    levels = {f.name: f.labels for f in factors}
    for i, variant in enumerate(results.plan.variants):
        places = [levels[factor].index(level) for factor, level in variant.choices if factor in levels]
        if len(places) >= 2:
            yield variant.name, look(places[0], places[1], places[2] if len(places) > 2 else places[1])
        else:
            yield variant.name, look(i, i // len(COLOURS), i)


def _height_of_legend(results: Results) -> float:
    return legend_height([variant.name for variant in results.plan.variants])


def _row_height(labels: Sequence[str]) -> float:
    """Return the height in inches of a row that fits the tallest label."""
    return max(0.36, 0.08 + 0.14 * max(label.count("\n") + 1 for label in labels))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
