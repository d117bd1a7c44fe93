"""Write the stored results of `attnkit bench --json` and of scripts into docs/results/speed.md.

    python docs/_tools/speed_tables.py

A table of `attnkit bench` stands between `<!-- begin: bench NAME ... -->` and `<!-- end -->`; each NAME is a file
docs/results/speed/NAME.json. It has a line for each kind of work and length of each file, and the commands of the files below. What a
script printed stands between `<!-- begin: output NAME ... -->` and `<!-- end -->`; each NAME is a file docs/results/speed/NAME.txt, the
command in its first line:

    (echo '$ COMMAND'; COMMAND) > docs/results/speed/NAME.txt

Text around the markers is written by hand and kept.
"""

import json
import re
import shlex
import textwrap
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[1] / "results/speed.md"
FOLDER = PAGE.with_suffix("")
BLOCK = re.compile(r"(<!-- begin: (bench|output) (.*?) -->\n).*?(<!-- end -->)", re.DOTALL)
WORKS = {"step": "training step", "forward": "forward pass", "prefill": "prefill", "decode": "32 new tokens after it"}
COLUMNS = {"torch": "by hand", "nn.Transformer": "`nn.Transformer`"}


def filled(page: str) -> str:
    """Return a page with the results of its markers written again."""

    def block(found: re.Match[str]) -> str:
        names = found[3].split()
        return found[1] + (table([read(name) for name in names]) if found[2] == "bench" else output(names)) + found[4]

    return BLOCK.sub(block, page)


def output(names: list[str]) -> str:
    """Return what scripts printed, each after its command."""
    texts = [(FOLDER / f"{name}.txt").read_text(encoding="utf-8").strip() for name in names]
    return "\n".join(["```text", "\n\n".join(texts), "```", ""])


def read(name: str) -> dict[str, Any]:
    """Return a stored result."""
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    return found


def table(results: list[dict[str, Any]]) -> str:
    """Return the lines of one or more results, whose first contestants are attnkit's, and their commands."""
    peers = list(dict.fromkeys(row["name"] for result in results for row in result["rows"] if row["name"] != result["rows"][0]["name"]))
    spreads = [row["spread"] for result in results for row in result["rows"]]
    (where,) = {(result["device"], result["torch"], result["rounds"]) for result in results}  # one machine for each table
    head = ["what", "attnkit", *(COLUMNS.get(name, name) for name in peers)]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(line for result in results for line in _lines(result, peers))]
    return "\n".join(
        [
            *lines,
            "",
            f"{where[0]}; torch {where[1]}; medians of {where[2]} rounds; interquartile ranges {min(spreads):.0%} to {max(spreads):.0%}.",
            "",
            "```bash",
            *_commands(results, threads=re.match(r"CPU, (\d+) threads", where[0])),
            "```",
            "",
        ]
    )


def _lines(result: dict[str, Any], peers: list[str]) -> list[str]:
    cells: dict[tuple[str, int | None], dict[str, str]] = {}
    first = result["rows"][0]["name"]
    for row in result["rows"]:
        speed = "" if row["name"] == first else f" ({row['relative']:.2f})".replace("(0.", "(.")
        cells.setdefault((row["work"], row["length"]), {})[row["name"]] = f"{row['milliseconds']:,.1f}{speed}"
    compiled = {work: ", compiled" if result["compiled"] and work in ("step", "forward") else "" for work, _ in cells}
    return [
        f"| {WORKS[work]}, {_size(result, length)}, {result['precision']}{compiled[work]} | "
        + " | ".join(found.get(name, "-") for name in (first, *peers))
        + " |"
        for (work, length), found in cells.items()
    ]


def _size(result: dict[str, Any], length: int | None) -> str:
    """Return the size of a batch, whose rows are tokens, frames of sound with a length, or images."""
    inputs, batch = result.get("task", "tokens").partition(" -> ")[0], result["batch"]
    if inputs.startswith("tokens"):
        return f"{batch} x {length} tokens"
    return f"{batch} x {length} {inputs}" if inputs.startswith("frames") else f"{batch} {inputs.replace('target', f'{length} target')}"


def _commands(results: list[dict[str, Any]], *, threads: re.Match[str] | None) -> list[str]:
    """Return shell commands; a spec with which all begin is assigned to a variable."""
    commands = [result["command"] for result in results]
    subjects = {shlex.split(command)[2] for command in commands}
    begin = [] if threads is None else [f"export OMP_NUM_THREADS={threads[1]}"]
    if len(subjects) == 1 and (spec := subjects.pop()).startswith("{"):
        begin += textwrap.wrap(f"SPEC='{spec}'", 138, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False)
        commands = [command.replace(shlex.quote(spec), '"$SPEC"') for command in commands]
    return begin + [command.replace(" --peers", " \\\n    --peers") for command in commands]


def main() -> None:
    """Rewrite the page."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
