"""Write the pages of the studies that come with attnkit from their stored results, without training.

    python docs/_tools/ablations.py FOLDER [STUDY ...]

FOLDER is that of `attnkit ablate run ablations/STUDY --folder FOLDER`. A page is `docs/results/ablations/STUDY.md`: the text
above its marker is written by hand and kept, the text below is the report. The HTML report and the figures go beside it.
"""

import argparse
from pathlib import Path

from attnkit.ablation import Study
from attnkit.ablation.plan import stored_plan
from attnkit.ablation.report import write_report
from attnkit.ablation.results import Results

ROOT = Path(__file__).parents[2]
OUT = ROOT / "docs" / "results" / "ablations"
MARKER = "<!-- Below: docs/_tools/ablations.py -->\n"


def write(name: str, folder: Path) -> str:
    """Write the page of a study; return a one-line status."""
    study = Study.from_yaml(f"ablations/{name}")
    plan = stored_plan(study, folder)
    if plan is None:
        return f"{name}: no results in {folder}"
    results = Results(plan)
    beside = OUT / name
    write_report(results, beside)
    report = (beside / "report.md").read_text(encoding="utf-8").partition("\n")[2].strip()
    for other in ("report.md", "report.tex"):
        (beside / other).unlink()
    page = OUT / f"{name}.md"
    by_hand = page.read_text(encoding="utf-8").partition(MARKER)[0] if page.exists() else f"# {name}\n\n"
    report = report.replace("](figures/", f"]({name}/figures/")
    head = f"[The report as one page]({name}/report.html), [the main table as numbers]({name}/report.csv), "
    head += f"[all runs]({name}/runs.jsonl.gz)."
    page.write_text(f"{by_hand}{MARKER}\n{head}\n\n{report}\n", encoding="utf-8")
    size = (beside / "report.html").stat().st_size // 1000
    return f"{name}: {len(plan.runs) - len(results.failures())} of {len(plan.runs)} runs, page of {size} kB"


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
