"""Write the pages of the studies that come with attnkit from their stored results, without training.

    python docs/_tools/ablations.py FOLDER [STUDY ...]

FOLDER is that of `attnkit ablate run ablations/STUDY --folder FOLDER`, or `docs/results/ablations` itself: then the pages are made again
from the `runs.jsonl.gz` beside them, for instance after a change to the report. A page is `docs/results/ablations/STUDY.md`: the text above
its marker is written by hand and kept, the text below it is the report. The HTML report and the figures go beside the page.
"""

import argparse
from pathlib import Path

from attnkit.ablation import Study
from attnkit.ablation.answers import RUNS, unpacked
from attnkit.ablation.plan import stored_plan
from attnkit.ablation.report import markdown, write_report
from attnkit.ablation.results import Results

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "results" / "ablations"
MARKER = "<!-- Below: docs/_tools/ablations.py -->\n"


def write(name: str, folder: Path) -> str:
    """Write the page of a study; return a one-line status."""
    plan, shipped = stored_plan(Study.from_yaml(f"ablations/{name}"), folder), folder / name / RUNS
    if plan is None and not shipped.exists():
        return f"{name}: no results in {folder}"
    results = Results(*unpacked(shipped, folder)) if plan is None else Results(plan)
    beside = OUT / name
    write_report(results, beside)
    for other in ("report.md", "report.tex"):
        (beside / other).unlink()
    page = OUT / f"{name}.md"
    by_hand = page.read_text(encoding="utf-8").partition(MARKER)[0] if page.exists() else f"# {name}\n\n"
    page.write_text(f"{by_hand}{MARKER}\n{below(name, results)}", encoding="utf-8")
    size = (beside / "report.html").stat().st_size // 1000
    return f"{name}: {len(results.runs) - len(results.failures())} of {len(results.runs)} runs, page of {size} kB"


def below(name: str, results: Results) -> str:
    """Return what a page has below its marker: the report."""
    report = markdown(results).partition("\n")[2].strip().replace("](figures/", f"]({name}/figures/")
    head = f"[The report as one page]({name}/report.html), [the main table as numbers]({name}/report.csv), "
    return f"{head}[all runs]({name}/{RUNS}).\n\n{report}\n"


def main() -> None:
    """Write the pages of all studies, or of the named ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of the results")
    parser.add_argument("studies", nargs="*", default=sorted(p.stem for p in (ROOT / "recipes" / "ablations").glob("*.yaml")))
    options = parser.parse_args()
    for name in options.studies:
        print(write(name, options.folder))


if __name__ == "__main__":
    main()
