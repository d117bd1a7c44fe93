"""The report of a study, from stored results alone: a self-contained HTML page, Markdown, LaTeX and CSV."""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from shlex import quote

from jinja2 import Environment, PackageLoader

from attnkit.ablation import escape
from attnkit.ablation.answers import RUNS, packed
from attnkit.ablation.canvas import Figure
from attnkit.ablation.certificate import certificate
from attnkit.ablation.contrasts import inestimable
from attnkit.ablation.fairness import checklist
from attnkit.ablation.figures import figures
from attnkit.ablation.lengths import lengths_means, lengths_table
from attnkit.ablation.machine_time import machine_time
from attnkit.ablation.methods import methods
from attnkit.ablation.noise import noise_table
from attnkit.ablation.published import published
from attnkit.ablation.results import INTERACTION, Results, word
from attnkit.ablation.tables import (
    PRINTED,
    Table,
    costs_table,
    effects_table,
    effects_title,
    file_of,
    legend,
    runs_table,
    tuning_means,
    tuning_table,
    variants_table,
)
from attnkit.files import atomic, write_text
from attnkit.wording import counted

UNFINISHED = "Not every run is finished yet. There are verdicts only where all runs of a comparison are finished."
NOISE = (
    "Standard errors of each difference by source, and whether what the verdict says, that there is a difference or none that matters, is "
    "still shown with all known sources; see Methods."
)
LIMITS = "What the study can neither control nor measure in the user's own classes"
ALL_RUNS = "{} runs, with the command that repeats each"
ENVIRONMENT = Environment(loader=PackageLoader("attnkit.ablation", "."), autoescape=True, trim_blocks=True, lstrip_blocks=True)
"""Renders the HTML pages."""


def path_lines(results: Results) -> list[str]:
    """Return lines on the decisions of each look; empty for a study with a single look."""
    steps = results.path
    if results.study.decide is None and len(steps) < 2:
        return []
    lines = []
    for step in steps:
        decided = [f"{c.variant} {word(c)}" for c in step.compared if c.verdict != "inconclusive"]
        still = len(step.compared) - len(decided) - len(step.given_up)
        lines.append(
            f"{step.look.seeds} seeds, alpha {step.look.alpha:.2g}: {len(step.compared)} compared; "
            f"decided: {', '.join(decided) or 'none'}; given up: {', '.join(step.given_up) or 'none'}; open: {still}"
            + ("" if step.finished else "; not all runs are finished")
        )
    if results.complete:  # before that, later looks may need more runs
        lines.append(f"runs that were not needed: {len(results.plan.runs) - len(results.runs)} of {len(results.plan.runs)}")
    return lines


def _again(results: Results) -> str:
    return f"attnkit ablate run {quote(file_of(results))}"


def made_by(results: Results) -> list[str]:
    """Return lines on the machine time of the runs and of tuning, their processors and packages, and the changes that were accepted."""
    lines = [f"machine time: {machine_time(results)}"]
    for made, noun in [(results, "run"), *([] if results.trials is None else [(results.trials, "tuning trial")])]:
        lines += [f"{counted(count, noun)}: {environment}" for environment, count in made.environments()]
        lines += [f"not all {noun}s were made alike: {line}" for line in made.mixtures()]
        for one in made.accepted():
            what = sorted({change for changes in one.runs.values() for change in changes})
            lines.append(f"{counted(len(one.runs), noun)} accepted because: {one.reason}. Changes: {'; '.join(what)}")
    return lines


def count_verdicts(results: Results) -> str:
    """Return the number of comparisons with each verdict, and likewise of interactions, in words."""
    found = Counter(c.verdict for c in results.comparisons)
    text = ", ".join(f"{found[verdict]} {verdict}" for verdict in ("better", "worse", "equivalent", "inconclusive"))
    if not results.interactions:
        return text
    joint = Counter(word(c) for c in results.interactions)
    words = {INTERACTION["better"]: "shown", INTERACTION["equivalent"]: "too small to matter", "inconclusive": "inconclusive"}
    return f"{text}; of {len(results.interactions)} interactions: {', '.join(f'{joint[said]} {short}' for said, short in words.items())}"


def markdown(results: Results) -> str:
    """Return the report as Markdown; its figures are separate files in `figures`."""
    lines = [f"# {results.study.name}", "", escape.markdown(subtitle(results)), ""]
    lines += [] if results.complete else [UNFINISHED, ""]
    lines += ["## Verdicts", "", f"{count_verdicts(results)}:", "", *(escape.markdown_item(s) for s in results.sentences()), ""]
    lines += ["## Results", "", markdown_table(variants_table(results)), legend(results), ""]
    if (effects := effects_table(results)).rows:
        lines += [f"## {effects_title(results)}", "", markdown_table(effects), ""]
    if (noise := noise_table(results)).rows:
        lines += ["## Noise of test examples and tuning", "", NOISE, "", markdown_table(noise), ""]
    if (slopes := lengths_table(results)).rows:
        lines += [f"## By length of the {results.study.lengths}", "", lengths_means(results), "", markdown_table(slopes), ""]
    if path := path_lines(results):
        lines += ["## Looks", "", *(escape.markdown_item(line) for line in path), ""]
    for figure in figures(results):
        title = escape.markdown(figure.title)
        lines += [f"### {title}", "", f"![{title}](figures/{figure.name}.svg)", ""]
    lines += ["## Costs", "", markdown_table(costs_table(results)), ""]
    lines += ["## Failures and exclusions", "", *(escape.markdown_item(line) for line in omissions(results)), ""]
    if found := published(results):
        lines += ["## Comparison with the published table", "", f"{escape.markdown(found.source)}.", ""]
        lines += [markdown_table(found.table), escape.markdown(found.summary), ""]
    lines += ["## Fairness", "", *(f"- [{'x' if holds else ' '}] {escape.markdown(text)}" for holds, text in checklist(results)), ""]
    if changes := _side_effects(results):
        lines += [*(escape.markdown_item(f"{name}: {effect}") for name, effect in changes), ""]
    if results.plan.limits:
        lines += [f"{LIMITS}:", "", *(escape.markdown_item(limit) for limit in results.plan.limits), ""]
    if results.plan.tuned:
        lines += ["## Tuning", "", tuning_means(results), "", markdown_table(tuning_table(results)), ""]
    lines += ["## Certificate", "", *(escape.markdown_item(line) for line in certificate(results).sentences()), ""]
    lines += ["## Methods", "", escape.markdown(methods(results)), "", "## Provenance", ""]
    lines += [escape.markdown_item(line) for line in made_by(results)]
    lines += [f"- to repeat everything: {escape.markdown_code(_again(results))}", ""]
    lines += ['<details markdown="1">', f"<summary>{ALL_RUNS.format(len(results.runs))}</summary>", ""]
    lines += [markdown_table(runs_table(results)), "</details>", ""]
    return "\n".join(lines)


def subtitle(results: Results) -> str:
    """Return the question of the study in one line."""
    study = results.study
    first = results.plan.variants[0]
    named = [f"{factor} {level}" for factor, level in first.choices if level != "baseline"]
    what = f"; {first.name}: {', '.join(named)}" if named else ""
    seeds = f"{'up to ' if study.decide else ''}{len(study.seeds)} seeds"
    return f"{study.quantity}, {study.better} is better; {seeds}; design {study.design}{what}"


def omissions(results: Results) -> list[str]:
    """Return lines on the runs and variants that have no number in the table, with the reasons."""
    failed = [
        f"{', '.join(run.variants)}, seed {run.seed}: {status['status']}"
        + (f" ({status['kind']}: {status['message']})" if "message" in status else "")
        for run, status in results.failures()
    ]
    left_out = [f"{v.name} was left out: {reason}" for v, reason in results.plan.left_out]
    left_out += [f"{effect} cannot be estimated, as variants are left out" for effect in inestimable(results.study, results.plan)]
    return [*failed, *left_out] or ["none"]


def latex(results: Results, columns: Sequence[str] = PRINTED) -> str:
    """Return the table of variants in LaTeX (needs the package booktabs), with `columns` from `attnkit.ablation.tables.COLUMNS`."""
    table = variants_table(results, columns)
    header = " & ".join(map(escape.latex, table.headers)) + r" \\"
    lines = [rf"\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}", r"\toprule", header, r"\midrule"]
    for bold, cells in table.rows:
        shown = [rf"\textbf{{{escape.latex(c)}}}" if bold and i in table.bold else escape.latex(c) for i, c in enumerate(cells)]
        lines.append(" & ".join(shown) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def page(results: Results) -> str:
    """Return the report as one HTML page that includes its figures."""
    return ENVIRONMENT.get_template("page.html").render(
        study=results.study,
        unfinished="" if results.complete else UNFINISHED,
        verdicts=list(zip_longest([c.verdict for c in results.comparisons], results.sentences(), fillvalue="")),
        main=variants_table(results),
        costs=costs_table(results),
        effects=effects_table(results),
        effects_title=effects_title(results),
        noise=noise_table(results),
        noise_means=NOISE,
        slopes=lengths_table(results),
        slopes_means=lengths_means(results),
        tuning=tuning_table(results),
        runs=runs_table(results),
        figures=figures(results),
        counts=count_verdicts(results),
        subtitle=subtitle(results),
        legend=legend(results),
        published=published(results),
        again=_again(results),
        all_runs=ALL_RUNS.format(len(results.runs)),
        certificate=certificate(results).sentences(),
        path=path_lines(results),
        omissions=omissions(results),
        checklist=checklist(results),
        side_effects=_side_effects(results),
        limits=results.plan.limits,
        limits_title=LIMITS,
        tuning_means=tuning_means(results),
        made_by=made_by(results),
        methods=methods(results),
    )


def write_report(results: Results, folder: Path | None = None, *, columns: Sequence[str] = PRINTED) -> Path:
    """Write the report in all formats (`columns` are for LaTeX) to a folder (default: the study's); return the path of the HTML page."""
    folder = folder or results.plan.study_folder
    files = {"report.tex": latex(results, columns), "report.md": markdown(results), "report.html": page(results)}
    files |= {"report.csv": escape.csv(results.summary()), "runs.csv": escape.csv(results.frame())}
    return write_files(folder, files, figures(results), packed(results.plan, results.answers))


def write_files(folder: Path, files: Mapping[str, str], drawn: Sequence[Figure], runs: bytes) -> Path:
    """Write a report's files, its figures and the file of its runs to a folder; return the path of the HTML page."""
    for name, text in {**files, **{f"figures/{figure.name}.svg": figure.svg or "" for figure in drawn}}.items():
        write_text(folder / name, text)
    with atomic(folder / RUNS) as draft:
        draft.write_bytes(runs)
    return folder / "report.html"


def _side_effects(results: Results) -> list[tuple[str, str]]:
    return [(name, effect) for name, effects in results.plan.side_effects.items() for effect in effects]


def markdown_table(table: Table) -> str:
    """Return a table in Markdown."""
    lines = [f"| {' | '.join(map(escape.markdown_cell, table.headers))} |", f"|{'---|' * len(table.headers)}"]
    for bold, cells in table.rows:
        shown = [f"**{c}**" if bold and c and i in table.bold else c for i, c in enumerate(map(escape.markdown_cell, cells))]
        lines.append(f"| {' | '.join(shown)} |")
    return "\n".join([*lines, ""])
