"""The pages of docs/story: `python docs/_tools/claims.py measure NAME...` measures claims and stores the numbers as JSON;
`python docs/_tools/claims.py write` makes the pages and figures from the stored numbers, so the text cannot disagree with them.

Each claim is a file of docs/_tools/story_pages with a `FIGURE`, `measure()`, `verdict(rows, language)` and `values(rows, language)`, and a
template in each language. What the templates say in words about the results is checked, too: see `story_pages.remarks`.
"""

import argparse
import importlib
import json
import time
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from string import Template
from typing import Any

from story_pages.base import FOLDER, Language, Rows, means
from story_pages.remarks import remarks

from attnkit.drawing import draw_lines

DOCS = FOLDER.parent
LANGUAGES = {Language("en"): FOLDER, Language("ko"): DOCS / "ko/story"}
CLAIMS = (  # in the order of the story
    "words",
    "gradient",
    "recall",
    "context",
    "exposure",
    "step",
    "convolution",
    "sequential",
    "scale",
    "positions",
    "layers",
    "cost",
    "pretraining",
)


def claim(name: str) -> Any:
    """Return the module of a claim."""
    return importlib.import_module(f"story_pages.{name}")


def files() -> Iterator[tuple[Path, str]]:
    """Yield the pages and the figures that follow from the stored numbers."""
    lines: dict[Language, list[str]] = {language: [] for language in LANGUAGES}
    for name in CLAIMS:
        stored = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))
        if stored["settings"] != settings(name):
            raise SystemExit(f"{name} was measured with {stored['settings']}, but its settings are {settings(name)}: measure it again")
        figure = claim(name).FIGURE
        rows = means(stored["rows"], figure["x"])
        if untrue := [remark for remark in remarks(name, rows) if not remark.holds]:
            said = "; ".join(f"{remark.english!r} ({remark.korean!r})" for remark in untrue)
            raise SystemExit(f"{name}: the stored results do not support what the templates say: {said}. Correct both, and remarks.py")
        drawn = sha256(json.dumps(rows).encode()).hexdigest()[:16]  # lets a test check that the figure was drawn from these rows
        yield FOLDER / f"{name}.svg", f"{draw_lines(rows, lines='model', title=name, **figure)}<!-- {drawn} -->\n"
        for file, picture in getattr(claim(name), "pictures", lambda _: {})(stored).items():
            yield FOLDER / file, picture
        for language, folder in LANGUAGES.items():
            template = (FOLDER / "templates" / language.code / f"{name}.md").read_text(encoding="utf-8")
            found = claim(name).values(rows, language) | {
                "verdict": claim(name).verdict(rows, language),
                "command": stored["command"],
                "seconds": shown_seconds(stored.get("seconds", 0), language),
            }
            if "$by_seed" in template:
                found["by_seed"] = language.by_seed(found["verdict"], verdicts_alone(name, stored["rows"], language))
            page = Template(template).substitute(found)
            yield folder / f"{name}.md", page.replace(" %", "%" if language.code == "ko" else "\u00a0%")  # no line ends before it
            title = template.splitlines()[0].removeprefix("# ")
            lines[language].append(f"| [{title}]({name}.md) | {found['verdict']} |")
    for language, folder in LANGUAGES.items():
        index = (FOLDER / "templates" / language.code / "index.md").read_text(encoding="utf-8")
        yield folder / "index.md", Template(index).substitute(claims="\n".join(lines[language]))


def verdicts_alone(name: str, rows: Rows, language: Language) -> dict[int, str]:
    """Return the verdict of each seed alone."""
    seeds = sorted({row["seed"] for row in rows})
    return {seed: claim(name).verdict([row for row in rows if row["seed"] == seed], language) for seed in seeds}


def settings(name: str) -> dict[str, Any]:
    """Return a claim's settings: the constants of its module, including the limits of its verdict."""
    constants = {key: value for key, value in vars(claim(name)).items() if key.isupper() and isinstance(value, int | float | tuple)}
    plain: dict[str, Any] = json.loads(json.dumps(constants))
    return plain


def shown_seconds(seconds: int, language: Language) -> str:
    """Return a duration in words."""
    if language.code == "ko":
        return f"{seconds}초" if seconds < 100 else f"{seconds / 60:.0f}분"
    return f"{seconds} seconds" if seconds < 100 else f"{seconds / 60:.0f} minutes"


def measure(name: str) -> None:
    """Measure a claim and store its rows, one per line, with the processor time so far, including start-up and imports."""
    rows = claim(name).measure()
    head = {"command": f"python docs/_tools/claims.py measure {name}", "seconds": round(time.process_time()), "settings": settings(name)}
    text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (FOLDER / f"{name}.json").write_text(f'{json.dumps(head)[:-1]}, "rows": [\n{text}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["measure", "write"])
    parser.add_argument("claims", nargs="*", metavar="NAME", help=f"what to measure (default: all): {', '.join(CLAIMS)}")
    chosen = parser.parse_args()
    if wrong := set(chosen.claims) - set(CLAIMS):
        parser.error(f"no claim is called {', '.join(sorted(wrong))}")
    if chosen.action == "measure":
        for name in chosen.claims or CLAIMS:
            measure(name)
    else:
        for path, text in files():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
