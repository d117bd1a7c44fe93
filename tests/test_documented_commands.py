"""The commands in the documentation name what exists: scripts, recipes, components, arguments and flags. None of them runs here."""

import ast
import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from inspect import signature
from itertools import takewhile
from pathlib import Path

from lightning.pytorch import Trainer

from attnkit.cli.arguments import read_arguments
from attnkit.cli.commands import COMMANDS, help_of
from attnkit.recipe import COMMANDS as OF_RECIPES
from attnkit.recipe import merged
from attnkit.registry import probes
from attnkit.train.composition import complete_recipe

ROOT = Path(__file__).parents[1]
PROGRAM = re.compile(r"(?<![\w./'-])(?:attnkit|python (?:docs/_tools|scripts)/\w+\.py)(?: |$)")
FENCE = re.compile(r"^```(.*?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
OWN = {"gaussian", "min_gru", "aditive", "$seed"}
"""Words of commands that are not resolved: components that readers write, a name with a typing error, the variable of a loop."""


@cache
def documented() -> list[tuple[str, list[str]]]:
    """Return the program and the other words of every command in pages, comments of recipes, and docstrings of tools."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    tools = [path for folder in ("docs/_tools", "scripts") for path in (ROOT / folder).rglob("*.py")]
    found = {tuple(words) for path in (*pages, *tools, *(ROOT / "recipes").rglob("*.yaml")) for words in _in(path)}
    return [(program, words) for program, *words in sorted(found)]


def _in(path: Path) -> Iterator[list[str]]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(text)) or ""
    elif path.suffix == ".yaml":
        text = "\n".join(line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#"))
    blocks = [re.sub(r"\\\n *", "", block) for kind, block in FENCE.findall(text) if kind in ("", "bash")]
    code = [line for block in blocks for line in block.splitlines()]
    code += [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", FENCE.sub("", text))]
    if path.suffix != ".md":
        code += [line for line in text.splitlines() if "`" not in line]
    for line in code:
        for match in PROGRAM.finditer(line):
            words = shlex.shlex(line[match.end() :], posix=True, punctuation_chars=True)
            words.whitespace_split = True
            found = [match[0].split()[-1]]
            with suppress(ValueError):  # the quotation mark after a command inside quotes
                found += takewhile(lambda word: not set(word) <= set("();<>|&"), words)
            yield found


def flags_in(words: list[str]) -> list[str]:
    return [word.partition("=")[0] for word in words if re.match(r"--\w", word)]


def test_documented_scripts_exist_and_have_the_flags() -> None:
    found = [(program, words) for program, words in documented() if program.endswith(".py")]
    assert len(found) > 80
    for program, words in found:
        text = (ROOT / program).read_text(encoding="utf-8")
        for flag in flags_in(words):
            of_fit = flag.startswith(("--model.", "--data.", "--trainer."))
            assert of_fit or f'"{flag}"' in text or f'("{flag.removeprefix("--")}", ' in text, f"{program} has no {flag}"


def test_documented_runs_of_recipes_resolve() -> None:
    of_trainer, count = set(signature(Trainer).parameters), 0
    for command, *words in (words for program, words in documented() if program == "attnkit" and words):
        request = read_arguments(words) if command in OF_RECIPES and "--config" in words and not OWN & set(words) else None
        if request is None or any("." in recipe or recipe.isupper() for recipe in request.recipes):  # a reader's own file
            continue
        complete_recipe(merged([*request.layers(command), request.flags]))
        for flag, _ in request.other_flags():
            assert not flag.startswith("--trainer.") or flag.split(".")[1].rstrip("+") in of_trainer, f"attnkit {command} ... {flag}"
        count += 1
    assert count > 80


def test_documented_flags_of_other_commands_exist() -> None:
    helps = {command: help_of([command]) for command in COMMANDS if command not in OF_RECIPES}
    for command, *words in (words for program, words in documented() if program == "attnkit" and words and words[0] in helps):
        text = helps[command]
        if command in ("ablate", "draw") and words and not words[0].isupper():
            text += helps.setdefault(f"{command} {words[0]}", help_of([command, words[0]]))
        elif command == "probe" and words and words[0] in probes:
            text += "".join(f"--{argument.name}" for argument in probes.arguments(words[0]))
        for flag in flags_in(words):
            assert flag in text or flag == "--help" or flag.startswith(("--model.", "--data.")), f"attnkit {command} ... {flag}"
