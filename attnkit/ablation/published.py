"""Compares results with a published table: whether the paper's differences point in the same direction as ours."""

from typing import NamedTuple

from scipy import stats

from attnkit.ablation.results import Results
from attnkit.ablation.tables import Row, Table, or_dash

HEADERS = ("variant", "ours", "difference", "verdict", "published as", "published", "published difference", "same direction")


class PublishedTable(NamedTuple):
    """The table in the report, with its source and a summary."""

    source: str
    table: Table
    summary: str


def published(results: Results) -> PublishedTable | None:
    """Return the comparison of our table with a paper's; None if the study names no paper.

    Directions are compared where our verdict is better or worse and the paper also has the reference of the comparison. All comparisons of
    two variants count, whatever their names, including the simple effects of a full factorial design. If at least four variants have a
    number in both tables, Spearman's rank correlation measures how well the orders agree.
    """
    study = results.study
    if study.published is None:
        return None
    theirs = {variant: next(iter(row.items())) for variant, row in study.published.rows.items()}
    summary = {row["variant"]: row for row in results.summary().to_dict("records")}
    for c in sorted(results.comparisons, key=lambda c: c.variant not in study.pairs):  # a variant's own reference counts, if it has one
        weights = results.contrasts[c.variant].weights
        reference, *_, variant = sorted(weights, key=weights.__getitem__)
        if sorted(weights.values()) == [-1.0, 1.0] and reference in theirs:
            summary[variant] |= {"reference": reference, "difference": c.mean, "verdict": c.verdict}
    sign = 1.0 if study.published.better == "higher" else -1.0
    rows: list[Row] = []
    agreed: list[bool] = []
    pairs: list[tuple[float, float]] = []
    for variant, (name, value) in theirs.items():
        ours = summary.get(variant)
        if ours is None:  # left out
            rows.append((False, (variant, "-", "-", "left out", name, f"{value:g}", "-", "-")))
            continue
        difference = value - theirs[ours["reference"]][1] if ours["reference"] in theirs else None
        same = "-"
        if ours["verdict"] in ("better", "worse") and difference:
            agreed.append((sign * difference > 0) == (ours["verdict"] == "better"))
            same = "yes" if agreed[-1] else "no"
        elif difference is not None:
            decided = ours["verdict"] in ("better", "worse")
            same = "equal there" if decided else "not compared here" if ours["verdict"] == "-" else f"{ours['verdict']} here"
        if ours["mean"] is not None and not ours["diverged"]:
            pairs.append((ours["mean"] * (1 if study.better == "higher" else -1), sign * value))
        measured = (or_dash(ours["mean"], "{:.4g}"), or_dash(ours["difference"], "{:+.3g}"), str(ours["verdict"]))
        rows.append((False, (variant, *measured, name, f"{value:g}", or_dash(difference, "{:+.3g}"), same)))
    text = f"Of {len(agreed)} significant differences with a published counterpart, {sum(agreed)} point in the same direction."
    if not agreed:
        text = "No significant difference has a counterpart in that table."
    if len(pairs) >= 4 and all(len(set(column)) > 1 for column in zip(*pairs, strict=True)):  # no order if all values are equal
        correlation = float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)
        text += f" Rank correlation of the two columns (better with better): {correlation:.2f} ({len(pairs)} variants)."
    text += " Tasks, sizes and metrics differ: the directions can be compared, the numbers cannot."
    return PublishedTable(study.published.source, Table(HEADERS, rows), text)
