"""Read the value of every run from the figure `paired.svg` of a shipped report, whose runs were not kept.

    python docs/_tools/runs_of_figures.py

Writes docs/results/ablations/STUDY/runs.csv. Coordinates have six decimals, so values are exact to about 1e-8; means are checked
against `report.csv`.
"""

import csv
import re
from pathlib import Path

import numpy as np

OUT = Path(__file__).parents[1] / "results" / "ablations"


def values(study: str) -> tuple[list[str], np.ndarray]:
    """Return the variants of a study, and the metric of each variant and seed."""
    with (OUT / study / "report.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    svg = (OUT / study / "figures" / "paired.svg").read_text(encoding="utf-8")
    ticks = re.findall(
        r'<use xlink:href="#\w+" x="([\d.]+)" y="[\d.]+".*?>([\d.\u2212-]+)</text>', svg[: svg.index('id="matplotlib.axis_2"')], re.S
    )
    x, labels = np.array([[float(a), float(b)] for a, b in ticks]).T
    slope, intercept = np.polyfit(x, labels, 1)
    lines = re.findall(r'<path d="(M [^"]*?)" clip-path="[^"]*" style="fill: none; stroke: #[0-9a-fA-F]{6}; stroke-opacity: 0.75', svg)
    points = np.array([[float(p.split()[1]) for p in line.strip().split("\n")] for line in lines])  # [seeds, variants]
    found = (points * slope + intercept).T
    means = np.array([float(row["mean"] or row.get("mean")) for row in rows])
    error = np.abs(found.mean(axis=1) - means).max()
    if error > 1e-6:
        raise SystemExit(f"{study}: the means differ from report.csv by {error}")
    print(f"{study}: {found.shape[0]} variants, {found.shape[1]} seeds; means as in report.csv within {error:.1e}")
    return [row["variant"].lstrip("'") for row in rows], found


def main() -> None:
    """Write the tables of all studies."""
    for folder in sorted(path for path in OUT.iterdir() if path.is_dir()):
        names, found = values(folder.name)
        with (folder / "runs.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("variant", "seed", "value"))
            writer.writerows((name, seed, f"{value:.7f}") for name, row in zip(names, found, strict=True) for seed, value in enumerate(row))


if __name__ == "__main__":
    main()
