"""The report of a study: one HTML page that needs no network, Markdown, LaTeX and CSV, from stored results alone."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader

from attnkit.ablation.figures import curves, forest, paired
from attnkit.ablation.results import Results, p_text
from attnkit.ablation.statistics import Comparison

HEADERS = ("variant", "mean", "difference [interval]", "p (Holm)", "effect", "better in", "verdict", "parameters", "runs ok")
Row = tuple[bool, tuple[str, ...]]
"""Whether the row is printed bold, which is for differences that are shown, and its cells."""


def rows(results: Results) -> list[Row]:
    """Return the main table."""
    compared = {c.variant: c for c in results.comparisons}
    table: list[Row] = []
    for variant in results.plan.variants:
        values = list(results.values(variant.name).values())
        known = [v for v in values if v is not None and not math.isnan(v)]
        mean = f"{sum(known) / len(known):.4g}" if known else "-"
        lost = sum(v is not None and math.isnan(v) for v in values)
        if lost:
            mean += f" ({lost} diverged)"
        c = compared.get(variant.name)
        size = results.plan.inspections[variant.name].parameters
        tail = (f"{size:,}" if size is not None else "-", f"{len(known)}/{len(values)}")
        role = f"the same as {results.same[variant.name]}" if variant.name in results.same else "reference"
        cells = (variant.name, mean, *(_cells(c) if c else (role, "", "", "", "")), *tail)
        table.append((c is not None and c.verdict in ("better", "worse"), cells))
    return table


def _cells(c: Comparison) -> tuple[str, ...]:
    difference = "-" if c.mean is None or any(c.diverged) else f"{c.mean:+.3g}"
    if c.interval is not None and not any(c.diverged):
        difference += f" [{c.interval[0]:.3g}, {c.interval[1]:.3g}]"
    effect = "-" if c.effect is None or any(c.diverged) else f"{c.effect:+.2f}"
    return (difference, p_text(c.p_adjusted), effect, "-" if c.wins is None else f"{c.wins:.0%}", c.verdict)


def methods(results: Results) -> str:
    """Return a paragraph that a paper could have."""
    study = results.study
    family = len(results.comparisons)
    text = (
        f"{len(results.plan.variants)} variants of {Path(study.recipe).stem} (design: {study.design}) were each trained with "
        f"{len(study.seeds)} seeds. The seeds of initialisation, data order and dropout are separate; {', '.join(study.vary)} "
        f"vary{'' if len(study.vary) > 1 else 's'} between runs, and all variants share them, so that runs are paired by seed. "
        f"The metric is {study.metric} ({study.better} is better), after the last step. Differences are tested by "
        f"paired t tests (two-sided, alpha = {study.alpha:g}) with Holm's correction over the "
        f"{family} comparison{'s' if family != 1 else ''} of the study; intervals are those of the t test and have no correction."
    )
    if study.min_effect is not None:
        text += f" Equivalence is tested by two one-sided tests against {study.min_effect:g}."
    text += " A comparison with a run that diverged is by the sign test, in which it loses."
    text += " Effects are in standard deviations of the differences."
    exact = [f"{c.variant}: {c.p_exact:.4f}" for c in results.comparisons if c.p_exact is not None]
    if exact:
        text += f" Exact sign-flip tests (no correction): {'; '.join(exact)}."
    return text


def provenance(results: Results) -> list[tuple[str, ...]]:
    """Return a row for each run: variant, seed, status, and the command that makes it again."""
    return [
        (
            ", ".join(run.variants),
            str(run.seed),
            results.status[run.key]["status"],
            f"attnkit ablate reproduce {results.study.file or 'STUDY.yaml'} {run.key}",
        )
        for run in results.plan.runs
    ]


def markdown(results: Results) -> str:
    """Return the report as Markdown, without figures."""
    lines = [f"# {results.study.name}", "", *(f"- {s}" for s in results.sentences()), "", _markdown_table(HEADERS, rows(results))]
    if results.interactions:
        lines += ["## Interactions", "", *(f"- {_interaction(c, results)}" for c in results.interactions), ""]
    lines += ["## Failures and exclusions", "", *(f"- {line}" for line in omissions(results)), ""]
    lines += ["## Fairness", "", *(f"- [{'x' if holds else ' '}] {text}" for holds, text in results.checklist()), ""]
    lines += [f"- {name}: {effect}" for name, effect in _effects(results)]
    lines += ["", "## Methods", "", methods(results), ""]
    return "\n".join(lines)


def omissions(results: Results) -> list[str]:
    """Return what is not in the table as a number, and why."""
    failed = [
        f"{', '.join(run.variants)}, seed {run.seed}: {status['status']}"
        + (f" ({status['kind']}: {status['message']})" if status["status"] == "failed" else "")
        for run, status in results.failures()
    ]
    return [*failed, *(f"{v.name} was left out: {reason}" for v, reason in results.plan.left_out)] or ["none"]


def latex(results: Results) -> str:
    r"""Return the main table in LaTeX (needs the package booktabs)."""
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(HEADERS) - 1)}}}", r"\toprule", " & ".join(map(_tex, HEADERS)) + r" \\", r"\midrule"]
    for bold, cells in rows(results):
        shown = [rf"\textbf{{{_tex(c)}}}" if bold and i in (0, 2, 6) else _tex(c) for i, c in enumerate(cells)]
        lines.append(" & ".join(shown) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def page(results: Results) -> str:
    """Return the report as one HTML page with its figures in it."""
    environment = Environment(loader=PackageLoader("attnkit.ablation", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("page.html").render(
        study=results.study,
        complete=results.complete,
        verdicts=list(zip([*(c.verdict for c in results.comparisons), *results.same], results.sentences(), strict=True)),
        headers=HEADERS,
        rows=rows(results),
        figures=[(title, svg) for title, svg in (forest(results), paired(results), *curves(results)) if svg],
        interactions=[_interaction(c, results) for c in results.interactions],
        omissions=omissions(results),
        checklist=results.checklist(),
        effects=_effects(results),
        environments=results.environments(),
        provenance=provenance(results),
        methods=methods(results),
    )


def write_report(results: Results, folder: Path) -> Path:
    """Write all forms of the report; return the path of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    _write(folder / "report.md", markdown(results))
    _write(folder / "report.tex", latex(results))
    _write(folder / "report.csv", "".join(",".join(map(_csv, row)) + "\n" for row in (HEADERS, *(cells for _, cells in rows(results)))))
    results.frame().to_csv(folder / "runs.csv", index=False)
    _write(folder / "report.html", page(results))
    return folder / "report.html"


def _write(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def _effects(results: Results) -> list[tuple[str, str]]:
    return [(name, effect) for name, effects in results.plan.side_effects.items() for effect in effects]


def _interaction(c: Comparison, results: Results) -> str:
    numbers = f"{c.mean:+.3g} [{c.interval[0]:.3g}, {c.interval[1]:.3g}]" if c.mean is not None and c.interval else "no number"
    verdict = {"better": "an interaction", "worse": "an interaction", "equivalent": "none that matters"}.get(c.verdict, "not known")
    return f"{c.variant}: {results.study.metric} {numbers}, adjusted p {p_text(c.p_adjusted)}: {verdict}"


def _markdown_table(headers: Sequence[str], table: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(headers)} |", f"|{'---|' * len(headers)}"]
    for bold, cells in table:
        shown = [f"**{c}**" if bold and i in (0, 2, 6) else c for i, c in enumerate(c.replace("|", "\\|") for c in cells)]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, ""])


def _tex(text: str) -> str:
    r"""Escape what LaTeX gives a meaning.

    Example:
        >>> _tex("a_b 5% < 1")
        'a\\_b 5\\% $<$ 1'
    """
    special: dict[str, Any] = {c: f"\\{c}" for c in "_%&#${}"} | {"<": "$<$", ">": "$>$", "\\": r"\textbackslash{}"}
    return "".join(special.get(c, c) for c in text)


def _csv(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text
