"""The report over all tasks and sizes of a study: an HTML page, Markdown, CSV and all runs, next to the reports of its cells."""

from pathlib import Path

import numpy as np
import pandas as pd

from attnkit.ablation import escape
from attnkit.ablation.across import Across
from attnkit.ablation.across_noise import noise_table_across, resampled, robust_table, sources_sentence
from attnkit.ablation.answers import packed_cells
from attnkit.ablation.canvas import COLOURS, Figure, Line, legend_height, lines, look
from attnkit.ablation.certificate import sentences_across
from attnkit.ablation.machine_time import machine_time
from attnkit.ablation.methods import outcomes_sentence
from attnkit.ablation.report import ENVIRONMENT, UNFINISHED, markdown_table, write_files
from attnkit.ablation.statistics import performance_profile, profile_band


def figures_across(across: Across) -> list[Figure]:
    """Return the performance profiles over tasks, and the improvements by size."""
    axis = f"improvement (1: {'min_effect' if across.by_margin else across.unit})"
    found = {name: d for name in across.differences if not isinstance(d := across.improvements(name), str)}
    looks = {name: look(i, i // len(COLOURS), i) for i, name in enumerate(found)}
    shown, height = [], 2.6 + legend_height(list(found)) if found else 0.0
    if found and len(across.tasks) > 1:
        scores = {name: np.array([d.mean(1) for d in by_task.values()]).T for name, by_task in found.items()}
        ends = min(s.min() for s in scores.values()), max(s.max() for s in scores.values())
        room = 0.05 * (ends[1] - ends[0]) or 1.0
        grid = np.linspace(ends[0] - room, ends[1] + room, 101)
        profiles = []
        for name, s in scores.items():
            points = np.stack([grid, performance_profile(s, grid)], 1).tolist()
            band = np.stack([grid, *profile_band(s, grid, **resampled(across, name))], 1).tolist()
            profiles.append(Line(name, points, looks[name] | {"marker": ""}, band))
        title = "Performance profiles: the share of runs that improve by more; bands: 95% intervals at each point"
        shown.append(lines("profiles", title, profiles, axis, "share of runs", height=height))
    sizes = [size for size in across.sizes if size is not None]
    if found and len(sizes) > 1:
        drawn = []
        for name, by_task in found.items():
            means = [(size, float(np.mean([d[:, i] for d in by_task.values()]))) for i, size in enumerate(sizes)]
            drawn.append(Line(name, means, looks[name]))
        shown.append(lines("sizes", "Improvement by size, averaged over tasks", drawn, "size", axis, height=height, log=True))
    return shown


def methods_across(across: Across) -> str:
    """Return the paragraph on methods."""
    study, count = across.study, len(across.aggregates)
    spent = sum(paid["alpha"] for _, results in across.results for paid in results.answers.asked.get("looks_added", ()))
    at_most = f"{study.alpha + spent:g}" + (f", including {spent:g} that was paid for added seeds of cells" if spent else "")
    named = [f"{count} {word}" for count, word in ((len(study.tasks), "tasks"), (len(study.scales), "sizes")) if count]
    of_questions = (
        (len(across.tasks) > 1, "'These tasks' are fixed: each seed gives a mean over them, and Student's t is over the seeds. "),
        (
            any(question.sampled for question in across.questions),
            "'Tasks like these' are a population of which the tasks are a sample: Student's t is over the means of the tasks, whose runs "
            "share no seeds, so its interval includes the spread between tasks. ",
        ),
        (
            any(question.per_doubling for question in across.questions),
            "'Per doubling' is a slope over log2 of the size: each seed gives one by least squares, and Student's t is over the seeds. ",
        ),
        (
            len(across.differences) < len(across.names),
            "An interaction is in the same units: above 0 where the joint improvement exceeds the sum of the two. ",
        ),
        (
            len(across.tasks) > 1,
            "The interquartile mean and the profiles have stratified bootstrap intervals, which are too short with few seeds, and no "
            "verdict (Agarwal et al. 2021). ",
        ),
    )
    return (
        f"Each of the {len(across.results)} cells ({', '.join(named)}) is a separate study with {len(study.seeds)} seeds. Half of alpha "
        f"({study.alpha:g}) is for the verdicts of cells, in equal parts, and half for the {count} aggregates, all at the same level, so "
        f"for normal differences the probability of any false verdict is at most {at_most}. An improvement is the difference from the "
        f"reference of the same seed, positive where the variant is better, in units of {across.unit}"
        f"{', whose own noise is included, to first order' if across.estimates_unit else ''}. "
        f"{''.join(text for applies, text in of_questions if applies)}"
        f"{sources_sentence(across)}"
        f"Adjusted p-values are below {study.alpha:g} where a difference is shown. "
        f"Machine time of all cells: {machine_time(*(results for _, results in across.results))}."
        f"{outcomes_sentence(study)}"
    )


COLUMNS = (
    "variant", "reference", "over", "per_doubling",
    "improvement", "interval_low", "interval_high", "p", "p_adjusted", "sd_between", "verdict", "reason",
)  # fmt: skip
"""The columns of the aggregates' `report.csv`; a column that a single study's `report.csv` also has is named as there."""


def aggregates_frame(across: Across) -> pd.DataFrame:
    """Return a data frame of the aggregates, one per row."""
    rows = []
    for a in across.aggregates:
        numbers: tuple[float | None, ...] = (None,) * 6
        if (effect := a.effect) is not None:
            numbers = (effect.mean, *effect.interval, effect.p, across.p_adjusted(effect), effect.between)
        rows.append((a.variant, a.reference, a.question.over, a.question.per_doubling, *numbers, a.verdict, a.reason))
    return pd.DataFrame(rows, columns=list(COLUMNS))


def write_across(across: Across, folder: Path) -> Path:
    """Write the report over all cells to `folder`, which holds all results; return the path of the HTML page."""
    drawn = figures_across(across)
    sections = [
        ("Over tasks and sizes", across.aggregates_table()),
        ("Each task and size", across.cells_table()),
        ("Noise of test examples and tuning", noise_table_across(across)),
        ("Interquartile means", robust_table(across)),
    ]
    sections = [(title, table) for title, table in sections if table.rows]
    certified = sentences_across(across)
    links = [(cell.name, f"../{cell.study.name}/report.html") for cell, _ in across.results]
    unfinished = "" if across.complete else UNFINISHED
    text = [f"# {across.study.name}", "", *([unfinished, ""] if unfinished else [])]
    for title, table in sections:
        text += [f"## {title}", "", markdown_table(table), ""]
    for figure in drawn:
        text += [f"### {escape.markdown(figure.title)}", "", f"![{escape.markdown(figure.title)}](figures/{figure.name}.svg)", ""]
    if certified:
        text += ["## Certificate", "", *map(escape.markdown_item, certified), ""]
    text += ["## Methods", "", escape.markdown(methods_across(across)), ""]
    html = ENVIRONMENT.get_template("across.html").render(
        study=across.study,
        unfinished=unfinished,
        sections=sections,
        figures=drawn,
        links=links,
        certificate=certified,
        methods=methods_across(across),
    )
    files = {"report.html": html, "report.md": "\n".join(text), "report.csv": escape.csv(aggregates_frame(across))}
    runs = packed_cells(across.study, {cell.name: (one.plan, one.answers) for cell, one in across.results})
    return write_files(folder / across.study.name, files, drawn, runs)
