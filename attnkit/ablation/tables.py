"""The tables of a report as text. A column has a header and a function that formats its cell from a row of `Results.summary`."""

from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import Any, NamedTuple

from matplotlib.ticker import EngFormatter

from attnkit.ablation.measurements import numbers
from attnkit.ablation.progress import clock
from attnkit.ablation.results import Results, p_text, relative, relative_text, word
from attnkit.ablation.statistics import Comparison
from attnkit.ablation.tuning import written
from attnkit.registry import ConfigurationError, nearest
from attnkit.wording import counted

Row = tuple[bool, tuple[str, ...]]  # whether a difference is shown, and the cells


class Table(NamedTuple):
    """A table: its headers, its rows, and the indices of the columns that are bold in a row whose difference is shown."""

    headers: tuple[str, ...]
    rows: Sequence[Row]
    bold: tuple[int, ...] = ()


def _diverged(row: Mapping[str, Any]) -> str:
    return f" ({row['diverged']} diverged)" if row["diverged"] else ""


def _quantile(row: Mapping[str, Any]) -> str:
    """Return the quantile of a variant, or `diverged` if the run at that quantile diverged; - in a study of means."""
    is_lost = "quantile" in row and row["quantile"] is None and row["diverged"]
    return "diverged" if is_lost else or_dash(row.get("quantile"), "{:.4g}")


def difference_text(c: Comparison) -> str:
    """Return the difference of a comparison with its interval, and also in percent of the reference if the margin is a percentage."""
    text, share = or_dash(c.mean, "{:+.3g}") + interval_text(*(c.interval or ())), relative(c)
    return text if share["relative"] is None else f"{text}; {relative_text(share)}"


def interval_text(low: float | None = None, high: float | None = None) -> str:
    """Return an interval to append to a cell; empty if there is none.

    Example:
        >>> interval_text(-0.5, 0.25), interval_text()
        (' [-0.5, 0.25]', '')
    """
    return "" if low is None or high is None else f" [{low:.3g}, {high:.3g}]"


COLUMNS: Mapping[str, tuple[str, Callable[[Mapping[str, Any]], str]]] = {
    "variant": ("variant", lambda row: str(row["variant"])),
    "mean": ("mean", lambda row: or_dash(row["mean"], "{:.4g}") + _diverged(row)),
    "quantile": ("quantile", lambda row: _quantile(row) + _diverged(row)),
    "difference": ("difference [interval]", lambda row: difference_text(row["compared"]) if row["compared"] else ""),
    "p": ("p (adjusted)", lambda row: p_text(row["p_adjusted"])),
    "verdict": ("verdict", lambda row: f"the same as {row['reference']}" if row["verdict"] == "the same" else str(row["verdict"])),
    "effect": ("effect", lambda row: or_dash(row["effect"], "{:+.2f}") if row["compared"] else ""),
    "p_better": ("P(better)", lambda row: or_dash(row["p_better"], "{:.0%}") if row["compared"] else ""),
    "runs": ("runs ok", lambda row: f"{row['runs_ok']}/{row['runs']}"),
    "time": ("time", lambda row: "-" if row["seconds"] is None else clock(row["seconds"])),
    "speed": ("tokens/s", lambda row: _si(row["tokens_per_second"])),
    "memory": ("memory", lambda row: "-" if row["memory"] is None else f"{_si(row['memory'])}B"),
    "parameters": ("parameters", lambda row: or_dash(row["parameters"], "{:,}")),
    "flops_per_token": ("FLOPs/token", lambda row: _si(row["flops_per_token"])),
    "elementwise_per_token": ("element-wise/token", lambda row: _si(row["elementwise_per_token"])),
    "flops": ("FLOPs", lambda row: _si(row["flops"])),
}
"""The available columns of the tables of variants, from rows of `Results.summary` with the comparison that they `compared`, if any."""

VERDICTS = ("variant", "mean", "difference", "p", "verdict", "effect", "p_better", "runs")
COSTS = ("variant", "time", "speed", "memory", "parameters", "flops_per_token", "flops", "elementwise_per_token")
PRINTED = ("variant", "mean", "difference", "p", "verdict")
"""The default columns of the LaTeX table; they fit the width of a page."""

BOLD = ("variant", "difference", "verdict")  # the columns that are bold in a row whose difference is shown

LEGEND = (
    "Bold: a difference that is shown; intervals and p-values are simultaneous over the family, so they agree with the verdicts. "
    "Effect: the difference in standard deviations of the paired differences; - where runs diverged, and with two seeds, from which the "
    "standard deviation cannot be estimated without bias. P(better): the share of seeds for which the variant is better; a tie counts half."
)


def legend(results: Results) -> str:
    """Return the meaning of the columns and, if some differences are over fewer seeds, why they are not differences of the means."""
    counts = {len(numbers(results.values(v.name).values())) for v in results.plan.variants} | {c.pairs for c in results.family}
    if results.study.quantile is not None or len(counts) == 1:
        return LEGEND
    return (
        f"{LEGEND} Means are over all runs of a variant with a number; a difference is over the seeds with which it was decided, so it "
        "is not always the difference of two means."
    )


def variants_table(results: Results, columns: Sequence[str] = VERDICTS, *, bold: Sequence[str] = BOLD) -> Table:
    """Return a row for each variant, with some of `COLUMNS`. In a study of a quantile, the quantile replaces the mean."""
    if unknown := [name for name in columns if name not in COLUMNS]:
        raise ConfigurationError(f"no column {unknown[0]!r}.{nearest(unknown[0], COLUMNS)} Columns: {', '.join(COLUMNS)}.")
    if results.study.quantile is not None:
        columns = ["quantile" if name == "mean" else name for name in columns]
    compared = results.by_variant
    rows = [{**row, "compared": compared.get(row["variant"])} for row in results.summary().to_dict("records")]
    cells = [(row["verdict"] in ("better", "worse"), tuple(COLUMNS[name][1](row) for name in columns)) for row in rows]
    return Table(tuple(COLUMNS[name][0] for name in columns), cells, tuple(i for i, name in enumerate(columns) if name in bold))


def costs_table(results: Results) -> Table:
    """Return the table of the costs of each variant."""
    return variants_table(results, COSTS, bold=())


EFFECTS = ("compared with", "difference [interval]", "p (adjusted)", "verdict", "effect", "P(better)")


def compared_with(c: Comparison) -> str:
    """Return what a contrast is compared with, in words."""
    return c.reference if c.kind == "difference" else "the sum of the two effects"


def effects_table(results: Results) -> Table:
    """Return a row for each contrast of a full factorial design; for other designs, for each pair of `compare`."""
    factorial, rows = results.study.design == "full_factorial", list[Row]()
    if len(results.by_variant) == len(results.family):
        return Table((), rows)
    for c in (c for c in results.family if factorial or c.variant in results.study.pairs):
        signed = c.kind == "difference"
        named, wins = results.study.side(c.variant), or_dash(c.wins, "{:.0%}") if signed else "-"
        cells = (named, compared_with(c), difference_text(c), p_text(c.p_adjusted), word(c), or_dash(c.effect, "{:+.2f}"), wins)
        rows.append((signed and c.verdict in ("better", "worse"), cells))
    return Table(("effect of" if factorial else "variant", *EFFECTS), rows, (0, 2, 4))


def effects_title(results: Results) -> str:
    """Return the title of `effects_table`."""
    return "Effects" if results.study.design == "full_factorial" else "Further comparisons"


WIDE = 6  # maximum number of values with a column each


def tuning_means(results: Results) -> str:
    """Return the meaning of the table of tuning, and from what it can be recomputed."""
    text = "The metric of tuning for each value, averaged over the seeds of tuning; the range, if there are many values."
    if results.trials is None:
        return f"{text} The file of all runs has no trials."
    return f"{text} All can be recomputed from the {counted(len(results.trials.runs), 'trial')} in the file of all runs."


def tuning_table(results: Results) -> Table:
    """Return the chosen values and all trials of each variant; no rows if nothing was tuned."""
    tuned = results.plan.tuned
    values = [written(values) for values, _ in next(iter(tuned.values())).means] if tuned else []  # shared by all variants up to EVEN
    if len(values) <= WIDE:
        cells = {name: tuple("diverged" if mean is None else f"{mean:.4g}" for _, mean in found.means) for name, found in tuned.items()}
        headers = tuple(values)
    else:
        numbers = {name: sorted(mean for _, mean in found.means if mean is not None) for name, found in tuned.items()}
        headers = ("lowest", "median", "highest", "diverged")
        cells = {
            name: (*(f"{n[i]:.4g}" if n else "-" for i in (0, len(n) // 2, -1)), f"{len(values) - len(n)}/{len(values)}")
            for name, n in numbers.items()
        }
    return Table(("variant", "chosen", *headers), [(False, (name, written(found.chosen), *cells[name])) for name, found in tuned.items()])


def runs_table(results: Results) -> Table:
    """Return a row for each run: variant, seed, status, and the command that repeats it."""
    file = quote(file_of(results))
    rows: list[Row] = []
    for run in results.runs:
        command = f"attnkit ablate reproduce {file} {quote(f'{run.variants[0]}:{run.seed}')}"
        rows.append((False, (", ".join(run.variants), str(run.seed), results.status[run.key]["status"], command)))
    return Table(("variant", "seed", "status", "the command that repeats it"), rows)


def file_of(results: Results) -> str:
    """Return the name of the study file for use in commands."""
    return results.study.file or "STUDY.yaml"


def or_dash(value: Any, form: str) -> str:
    """Return a formatted number, or - if there is none."""
    return "-" if value is None else form.format(value)


def _si(value: float | None) -> str:
    """Return a number with an SI prefix.

    Example:
        >>> _si(17765.1), _si(6.757e11), _si(850), _si(None)
        ('17.8 k', '675.7 G', '850.0', '-')
    """
    return "-" if value is None else EngFormatter(places=1).format_eng(value)
