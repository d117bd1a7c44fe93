"""The report of a study: one HTML page that needs no network, Markdown, LaTeX and CSV, from stored results alone."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from shlex import quote
from typing import Any

from jinja2 import Environment, PackageLoader
from matplotlib.ticker import EngFormatter

from attnkit.ablation import escape
from attnkit.ablation.answers import RUNS, packed
from attnkit.ablation.certificate import certificate
from attnkit.ablation.fairness import checklist
from attnkit.ablation.figures import figures
from attnkit.ablation.methods import methods
from attnkit.ablation.published import published
from attnkit.ablation.results import COSTS, Results, p_text
from attnkit.ablation.tuning import written
from attnkit.files import atomic

HEADERS = (
    "variant",
    "mean",
    "difference [interval]",
    "p (adjusted)",
    "effect",
    "P(better)",
    "verdict",
    "parameters",
    "FLOPs/token",
    "FLOPs",
    "tokens/s",
    "memory",
    "runs ok",
)
BOLD = (0, 2, 6)
"""The cells that are bold in a row whose difference is shown."""
LEGEND = (
    "Bold: a difference that is shown; intervals and p-values are simultaneous over the family, so that they agree with the verdicts. "
    "Effect: the difference in standard deviations of the paired differences; - where runs diverged, and with two seeds, "
    "from which the standard "
    "deviation cannot be estimated without a bias. P(better): the share of seeds with which it is better."
)
LIMITS = "What the study can neither control nor measure in the user's own classes"
Row = tuple[bool, tuple[str, ...]]
"""Whether a difference is shown, and the cells."""


def rows(results: Results) -> list[Row]:
    """Return the main table as text."""
    table: list[Row] = []
    for row in results.summary().to_dict("records"):
        mean = _number(row["mean"], "{:.4g}") + (f" ({row['diverged']} diverged)" if row["diverged"] else "")
        if row["verdict"] in ("reference", "the same", "-"):
            role = f"the same as {row['reference']}" if row["verdict"] == "the same" else row["verdict"]
            tests: tuple[str, ...] = (role, "", "", "", "")
        else:
            interval = "" if row["interval_low"] is None else f" [{row['interval_low']:.3g}, {row['interval_high']:.3g}]"
            tests = (
                _number(row["difference"], "{:+.3g}") + interval,
                p_text(row["p_adjusted"]),
                _number(row["effect"], "{:+.2f}"),
                _number(row["p_better"], "{:.0%}"),
                row["verdict"],
            )
        size = _number(row["parameters"], "{:,}")
        costs = (*(_si(row[name]) for name in COSTS[:3]), "-" if row["memory"] is None else f"{_si(row['memory'])}B")
        table.append(
            (row["verdict"] in ("better", "worse"), (row["variant"], mean, *tests, size, *costs, f"{row['runs_ok']}/{row['runs']}"))
        )
    return table


EFFECTS = ("effect of", "compared with", "difference [interval]", "p (adjusted)", "effect", "P(better)", "verdict")


def effects_table(results: Results) -> list[tuple[str, ...]]:
    """Return a row for each main and simple effect and interaction of a full factorial design; none for other designs."""
    if set(results.contrasts) <= {v.name for v in results.plan.variants}:
        return []
    verdicts = {"better": "an interaction", "worse": "an interaction", "equivalent": "none that matters"}
    return [
        (
            c.variant,
            c.reference if c.kind == "difference" else "the sum of the two effects",
            _number(c.mean, "{:+.3g}") + ("" if c.interval is None else f" [{c.interval[0]:.3g}, {c.interval[1]:.3g}]"),
            p_text(c.p_adjusted),
            _number(c.effect, "{:+.2f}"),
            _number(c.wins, "{:.0%}") if c.kind == "difference" else "-",
            c.verdict if c.kind == "difference" else verdicts.get(c.verdict, c.verdict),
        )
        for c in results.family
    ]


def path_lines(results: Results) -> list[str]:
    """Return what each look decided; nothing for a study with a single look."""
    steps = results.path
    if results.study.decide is None and len(steps) < 2:
        return []
    lines = []
    for step in steps:
        decided = [f"{c.variant} {c.verdict}" for c in step.compared if c.verdict != "inconclusive"]
        still = len(step.compared) - len(decided) - len(step.given_up)
        lines.append(
            f"{step.look.seeds} seeds, alpha {step.look.alpha:.2g}: {len(step.compared)} compared; "
            f"decided: {', '.join(decided) or 'none'}; given up: {', '.join(step.given_up) or 'none'}; open: {still}"
            + ("" if step.finished else "; not all runs have ended")
        )
    spared = len(results.plan.runs) - len(results.runs)
    return [*lines, f"runs that were not needed: {spared} of {len(results.plan.runs)}"]


def _number(value: Any, form: str) -> str:
    return "-" if value is None else form.format(value)


def _si(value: float | None) -> str:
    """Return a number with a prefix of its size.

    Example:
        >>> _si(17765.1), _si(6.757e11), _si(850), _si(None)
        ('17.8 k', '675.7 G', '850.0', '-')
    """
    return "-" if value is None else EngFormatter(places=1).format_eng(value)


TUNING = "The metric of tuning for each value, averaged over the seeds of tuning."


def tuning(results: Results) -> tuple[tuple[str, ...], list[Row]]:
    """Return the headers and the rows of the table of tuning; no rows if nothing was tuned."""
    tuned = results.plan.tuned
    values = [written(values) for values, _ in next(iter(tuned.values())).means] if tuned else []
    table = [
        (False, (name, written(found.chosen), *("diverged" if mean is None else f"{mean:.4g}" for _, mean in found.means)))
        for name, found in tuned.items()
    ]
    return ("variant", "chosen", *values), table


ALL_RUNS = "{} runs, with the command that repeats each"
PROVENANCE = ("variant", "seed", "status", "the command that repeats it")


def _again(results: Results) -> str:
    return f"attnkit ablate run {quote(_file(results))}"


def _file(results: Results) -> str:
    return results.study.file or "STUDY.yaml"


def provenance(results: Results) -> list[tuple[str, ...]]:
    """Return a row for each run: variant, seed, status, and the command that repeats it."""
    return [
        (
            ", ".join(run.variants),
            str(run.seed),
            results.status[run.key]["status"],
            f"attnkit ablate reproduce {quote(_file(results))} {quote(f'{run.variants[0]}:{run.seed}')}",
        )
        for run in results.runs
    ]


def made_by(results: Results) -> list[str]:
    """Return where and by what the runs were made, and what was accepted."""
    lines = [f"{count} runs: {environment}" for environment, count in results.environments()]
    lines += [f"they differ in what made them: {line}" for line in results.mixtures()]
    for one in results.accepted():
        what = sorted({change for changes in one.runs.values() for change in changes})
        lines.append(f"{len(one.runs)} runs were accepted, because: {one.reason}. What had changed: {'; '.join(what)}")
    return lines


def count_verdicts(results: Results) -> str:
    """Return the number of comparisons with each verdict."""
    found = Counter(c.verdict for c in results.comparisons)
    return ", ".join(f"{found[verdict]} {verdict}" for verdict in ("better", "worse", "equivalent", "inconclusive"))


def markdown(results: Results) -> str:
    """Return the report as Markdown; its figures are files beside it, in `figures`."""
    lines = [f"# {results.study.name}", "", escape.markdown(subtitle(results)), ""]
    lines += ["## Verdicts", "", f"{count_verdicts(results)}:", "", *(escape.markdown_item(s) for s in results.sentences()), ""]
    lines += ["## Results", "", _markdown_table(HEADERS, rows(results)), LEGEND, ""]
    if effects := effects_table(results):
        lines += ["## Effects", "", _markdown_table(EFFECTS, [(row[-1] in ("better", "worse"), row) for row in effects]), ""]
    if path := path_lines(results):
        lines += ["## Looks", "", *(escape.markdown_item(line) for line in path), ""]
    for figure in figures(results):
        title = escape.markdown(figure.title)
        lines += [f"### {title}", "", f"![{title}](figures/{figure.name}.svg)", ""]
    lines += ["## Failures and exclusions", "", *(escape.markdown_item(line) for line in omissions(results)), ""]
    if table := published(results):
        lines += [
            "## Beside the published table",
            "",
            f"{escape.markdown(table.source)}.",
            "",
            _markdown_table(table.headers, table.rows),
            escape.markdown(table.summary),
            "",
        ]
    lines += ["## Fairness", "", *(f"- [{'x' if holds else ' '}] {escape.markdown(text)}" for holds, text in checklist(results)), ""]
    if changes := _effects(results):
        lines += [*(escape.markdown_item(f"{name}: {effect}") for name, effect in changes), ""]
    if results.plan.limits:
        lines += [f"{LIMITS}:", "", *(escape.markdown_item(limit) for limit in results.plan.limits), ""]
    if results.plan.tuned:
        lines += ["## Tuning", "", TUNING, "", _markdown_table(*tuning(results)), ""]
    lines += ["## Certificate", "", *(escape.markdown_item(line) for line in certificate(results).sentences()), ""]
    lines += ["## Methods", "", escape.markdown(methods(results)), "", "## Provenance", ""]
    lines += [escape.markdown_item(line) for line in made_by(results)]
    lines += [f"- everything: {escape.markdown_code(_again(results))}", ""]
    lines += ['<details markdown="1">', f"<summary>{ALL_RUNS.format(len(results.runs))}</summary>", ""]
    lines += [_markdown_table(PROVENANCE, [(False, row) for row in provenance(results)]), "</details>", ""]
    return "\n".join(lines)


def subtitle(results: Results) -> str:
    """Return the question in one line."""
    study = results.study
    first = results.plan.variants[0]
    named = [f"{factor} {level}" for factor, level in first.choices if level != "baseline"]
    what = f"; {first.name}: {', '.join(named)}" if named else ""
    return f"{study.metric}, {study.better} is better; {len(study.seeds)} seeds; design {study.design}{what}"


def omissions(results: Results) -> list[str]:
    """Return the runs and variants without a number in the table, with the reasons."""
    failed = [
        f"{', '.join(run.variants)}, seed {run.seed}: {status['status']}"
        + (f" ({status['kind']}: {status['message']})" if "message" in status else "")
        for run, status in results.failures()
    ]
    return [*failed, *(f"{v.name} was left out: {reason}" for v, reason in results.plan.left_out)] or ["none"]


def latex(results: Results) -> str:
    r"""Return the main table in LaTeX (needs the package booktabs)."""
    header = " & ".join(map(escape.latex, HEADERS)) + r" \\"
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(HEADERS) - 1)}}}", r"\toprule", header, r"\midrule"]
    for bold, cells in rows(results):
        shown = [rf"\textbf{{{escape.latex(c)}}}" if bold and i in BOLD else escape.latex(c) for i, c in enumerate(cells)]
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
        figures=figures(results),
        counts=count_verdicts(results),
        subtitle=subtitle(results),
        bold=BOLD,
        legend=LEGEND,
        published=published(results),
        again=_again(results),
        provenance_headers=PROVENANCE,
        all_runs=ALL_RUNS.format(len(results.runs)),
        certificate=certificate(results).sentences(),
        effect_headers=EFFECTS,
        effect_rows=[(row[-1] in ("better", "worse"), row) for row in effects_table(results)],
        path=path_lines(results),
        omissions=omissions(results),
        checklist=checklist(results),
        effects=_effects(results),
        limits=results.plan.limits,
        limits_title=LIMITS,
        tuning=tuning(results),
        tuning_means=TUNING,
        made_by=made_by(results),
        provenance=[(False, row) for row in provenance(results)],
        methods=methods(results),
    )


def write_report(results: Results, folder: Path | None = None) -> Path:
    """Write all forms of the report; return the path of the page.

    Args:
        results: Of the study.
        folder: Where to write (default: the folder of the study).
    """
    folder = folder or results.plan.study_folder
    files = {f"figures/{figure.name}.svg": figure.svg or "" for figure in figures(results)}
    files |= {"report.md": markdown(results), "report.tex": latex(results), "report.html": page(results)}
    files |= {"report.csv": escape.csv(results.summary()), "runs.csv": escape.csv(results.frame())}
    for name, text in files.items():
        with atomic(folder / name) as draft:
            draft.write_text(text, encoding="utf-8")
    with atomic(folder / RUNS) as draft:
        draft.write_bytes(packed(results.plan, results.answers))
    return folder / "report.html"


def _effects(results: Results) -> list[tuple[str, str]]:
    return [(name, effect) for name, effects in results.plan.side_effects.items() for effect in effects]


def _markdown_table(headers: Sequence[str], table: Sequence[Row]) -> str:
    lines = [f"| {' | '.join(map(escape.markdown_cell, headers))} |", f"|{'---|' * len(headers)}"]
    for bold, cells in table:
        shown = [f"**{c}**" if bold and i in BOLD else c for i, c in enumerate(map(escape.markdown_cell, cells))]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, ""])
