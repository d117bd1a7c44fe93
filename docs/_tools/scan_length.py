"""Train scan/length with each position encoding, and count correct outputs by length: `python docs/_tools/scan_length.py [--split simple]`.

Runs are stored under runs/scan_length: finished ones are skipped, killed ones resume. Writes docs/results/scan_SPLIT.csv and .svg, and
prints the table in Markdown. Other flags are passed to `attnkit fit`, for instance `--trainer.max_epochs 1`.
"""

import argparse
import csv
import subprocess
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt

import attnkit
from attnkit.task import Seq2Seq

ROOT = Path(__file__).parents[2]
COLUMNS = ("position", "actions", "commands", "right")

Row = tuple[str, int, int, int]


def train(position: str, split: str, folder: Path, flags: list[str]) -> Path:
    """Train, or resume a killed run; return the last checkpoint, so validation chooses nothing."""
    found = sorted(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)
    command = ["attnkit", "fit", "--config", "scan/length", "--model.stack.position", position, "--data.corpus.split", split]
    command += ["--trainer.default_root_dir", str(folder), *flags, *(["--ckpt_path", str(found[-1])] if found else [])]
    print("$", *command, flush=True)
    subprocess.run(command, check=True)
    return max(folder.rglob("last.ckpt"), key=lambda path: path.stat().st_mtime)


def test(position: str, split: str, checkpoint: Path) -> list[Row]:
    """Return the number of test commands by number of actions, and how many have the correct output."""
    part = attnkit.corpora.build({"name": "scan", "split": split}).references("test")
    outputs = Seq2Seq.load(checkpoint).generate(list(part))
    lengths = [len(actions.split()) for [actions] in part.values()]
    right = Counter(n for n, output, [actions] in zip(lengths, outputs, part.values(), strict=True) if output == actions)
    return [(position, n, count, right[n]) for n, count in sorted(Counter(lengths).items())]


def read(path: Path) -> list[Row]:
    """Return the rows of a table written by `write`."""
    with path.open(newline="", encoding="utf-8") as file:
        return [(row["position"], int(row["actions"]), int(row["commands"]), int(row["right"])) for row in csv.DictReader(file)]


def write(path: Path, rows: list[Row]) -> None:
    """Write a table atomically, so that a killed process leaves no partial one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    with temporary.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([COLUMNS, *rows])
    temporary.replace(path)


def table(rows: list[Row]) -> str:
    """Return a Markdown table: a row for each position encoding, best first."""
    groups = [(1, 22), (24, 24), (25, 26), (27, 28), (30, 33), (36, 48)]
    groups = [(a, b) for a, b in groups if any(a <= n <= b for _, n, _, _ in rows)]

    def accuracy(position: str, shortest: int, longest: int) -> float:
        chosen = [(count, right) for p, n, count, right in rows if p == position and shortest <= n <= longest]
        return 100 * sum(right for _, right in chosen) / sum(count for count, _ in chosen)

    positions = sorted({p for p, *_ in rows}, key=lambda p: -accuracy(p, 1, 48))
    head = ["position", "all", *(f"{a}" if a == b else f"{a} to {b}" for a, b in groups)]
    lines = [[f"`{p}`", f"**{accuracy(p, 1, 48):.1f}**", *(f"{accuracy(p, *group):.1f}" for group in groups)] for p in positions]
    return "\n".join("| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]) + "\n"


def draw(rows: list[Row], path: Path) -> None:
    """Plot accuracy against the number of actions, with a line for each position encoding."""
    plt.rcParams["svg.hashsalt"] = "attnkit"  # makes the file reproducible
    figure, axes = plt.subplots(figsize=(7, 3.8), layout="constrained")
    styles = (("o", "#0072B2"), ("s", "#D55E00"), ("^", "#009E73"), ("D", "#CC79A7"), ("v", "#E69F00"), ("P", "#56B4E9"), ("X", "#000000"))
    for (marker, color), position in zip(styles * 3, dict.fromkeys(p for p, *_ in rows), strict=False):
        points = [(n, 100 * right / count) for p, n, count, right in rows if p == position]
        axes.plot(*zip(*points, strict=True), marker=marker, markersize=4, color=color, label=position)
    axes.set(xlabel="actions in the correct answer", ylabel="% of the test commands correct", ylim=(-3, 103))
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, ncols=2)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    """Train and test whatever is missing, and write all results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--split", choices=("length", "simple"), default="length", help="simple shows that the model learns SCAN at all")
    kinds = [name for name in attnkit.positions.names() if not attnkit.positions.get(name).needs_causal]
    parser.add_argument("--positions", nargs="+", default=kinds, metavar="KIND", help="default: all that an encoder can have")
    parser.add_argument("--runs", type=Path, default=Path("runs/scan_length"), help="folder of the runs")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results", help="folder for the table and the figure")
    options, flags = parser.parse_known_args()
    rows: list[Row] = []
    for position in options.positions:
        folder = options.runs / options.split / position
        if not (finished := folder / "right.csv").exists():
            checkpoint = train(position, options.split, folder, flags)
            write(finished, test(position, options.split, checkpoint))
        rows += read(finished)
    stem = options.out / f"scan_{options.split}"
    write(stem.with_suffix(".csv"), rows)
    draw(rows, stem.with_suffix(".svg"))
    print(table(rows), end="")


if __name__ == "__main__":
    main()
