"""Shell completion: `attnkit completion SHELL` prints a script that asks `attnkit completion answer WORD...` for candidates.

(jsonargparse's `--print_shtab` knows neither the model nor the data, whose keys depend on the components that the command line names.)
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attnkit.cli.arguments import read_arguments
from attnkit.recipe import COMMANDS, merged, read_recipe, recipe_names
from attnkit.registry import FAMILIES, ConfigurationError

SCRIPTS = {
    "bash": """_attnkit() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do [[ -n $line ]] && COMPREPLY+=("$line"); done \\
        < <(attnkit completion answer "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
    [[ ${COMPREPLY[0]-} == *. ]] && compopt -o nospace
}
complete -o default -F _attnkit attnkit
""",
    "zsh": """_attnkit() {
    local -a found
    found=("${(@f)$(attnkit completion answer "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    if [[ -n $found ]]; then
        compadd -S '' -- ${(M)found:#*.}
        compadd -- ${found:#*.}
    else
        _files
    fi
}
(( $+functions[compdef] )) || { autoload -U compinit && compinit }
compdef _attnkit attnkit
""",
    "fish": """complete -c attnkit -a '(attnkit completion answer (commandline -opc)[2..-1] (commandline -ct) 2>/dev/null)'
""",
}
RECIPE_COMMANDS = (*COMMANDS, "plan")
SECTIONS = ("model", "data", "trainer")


def candidates(
    words: Sequence[str], *, commands: Iterable[str], help_of: Callable[[Sequence[str]], str], schema: Callable[[], str]
) -> list[str]:
    """Return the completions of the last word on the command line up to the cursor; none where the shell should offer files.

    `help_of` returns the output of `--help` after some words, `schema` the JSON schema of recipes with all names and values.

    Example:
        >>> candidates(["describe", "scaled_dot"], commands=["describe", "fit"], help_of=str, schema=str)
        ['scaled_dot_product']
    """
    *before, current = words or [""]
    if not before:
        return sorted(command for command in commands if command.startswith(current))
    flag, equals, value = (
        current.rpartition("=") if current.startswith("--") else ("", "", current)
    )  # bash splits them, zsh and fish do not
    found: list[str] = []
    with suppress(ConfigurationError):  # an unreadable recipe has no completions
        rest = _joined(before[1:]) + ([flag] if flag else [])
        found = [*_candidates(before[0], rest, value, help_of, schema)]
    return sorted({flag + equals + word for word in found if word.startswith(value)})


def _joined(words: Sequence[str]) -> list[str]:
    """Join `--key`, `=` and `value`, as bash splits `--key=value`; drop a final `=`, since its value is being completed."""
    joined = "\0".join(words).replace("\0=\0", "=").removesuffix("\0=")
    return joined.split("\0") if words else []


def _candidates(
    command: str, rest: Sequence[str], current: str, help_of: Callable[[Sequence[str]], str], schema: Callable[[], str]
) -> Iterator[str]:
    flag = "" if not rest or "=" in rest[-1] else rest[-1]
    if flag in ("--config", "-c"):
        yield from recipe_names()
    elif command in RECIPE_COMMANDS and flag.partition(".")[0].removeprefix("--") in SECTIONS and flag.startswith("--"):
        known = _Schema(json.loads(schema()))
        yield from known.values(known.at(flag.removeprefix("--").split("."), _recipe(rest[:-1])))
    elif command in RECIPE_COMMANDS and (section := re.match(r"--(model|data|trainer)\.", current)):
        path = current.removeprefix("--").split(".")[:-1]
        known, recipe = _Schema(json.loads(schema())), _recipe(rest)
        for key, value in known.keys(known.at(path, recipe), _inside(recipe, path)).items():
            yield ".".join([f"--{path[0]}", *path[1:], key])
            if section[1] != "trainer" and known.is_slot(value):
                yield ".".join([f"--{path[0]}", *path[1:], key, ""])
    elif not current.startswith("-") and command in ("describe", "check"):
        yield from (name for registry in FAMILIES for name in registry)
        yield from (f"{registry.family}.{name}" for registry in FAMILIES for name in registry)
    elif not current.startswith("-") and command == "list":
        yield from (registry.family for registry in FAMILIES)
    else:
        help_text = help_of([command, *(word for word in rest[:1] if command == "ablate" and not word.startswith("-"))])
        if current.startswith("-"):
            yield from re.findall(r"(?<![\w-])--[a-z_]+\b(?!\.)", help_text)
            if command in RECIPE_COMMANDS:
                yield from (f"--{section}." for section in SECTIONS)
        elif command == "ablate" and not rest:
            yield from re.findall(r"^(?: {4}|  )([a-z]+)  +\w", help_text.partition("positional arguments:")[2], re.MULTILINE)


def _recipe(words: Sequence[str]) -> dict[str, Any]:
    """Return the recipe on the command line so far, without importing its modules."""
    request = read_arguments(words)
    return merged([*map(read_recipe, request.recipes), request.flags])


def _inside(recipe: Any, path: Sequence[str]) -> Any:
    for key in path:
        recipe = recipe.get(key) if isinstance(recipe, Mapping) else None
    return recipe


class _Schema:
    """Navigates the JSON schema of recipes."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema

    def at(self, path: Sequence[str], recipe: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the schema of the value at `path` of a recipe."""
        found: Mapping[str, Any] = self.schema
        for i, key in enumerate(path):
            found = self.keys(found, _inside(recipe, path[:i])).get(key, {})
        return found

    def keys(self, schema: Mapping[str, Any], spec: Any) -> Mapping[str, Any]:
        """Return the schemas of the keys below a value: those of the component that `spec` names, or else of every possible component."""
        name = spec.get("name") if isinstance(spec, Mapping) else spec
        components = [member for member in self._members(schema) if "properties" in member]
        chosen = [c for c in components if c["properties"].get("name", {}).get("const") in (name, None)] if name else components
        return {key: value for c in chosen or components for key, value in c["properties"].items()}

    def is_slot(self, schema: Mapping[str, Any]) -> bool:
        """Return whether a value may have keys below it."""
        return any("properties" in member for member in self._members(schema))

    def _members(self, schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if "$ref" in schema:
            yield from self._members(self.schema["$defs"][schema["$ref"].rpartition("/")[2]])
        for member in schema.get("anyOf", ()):
            yield from self._members(member)
        yield schema

    def values(self, schema: Mapping[str, Any]) -> Iterator[str]:
        """Yield the values that a schema lists."""
        for member in self._members(schema):
            yield from (str(value) for value in (*member.get("enum", ()), *member.get("examples", ())) if value is not None)
            if member.get("type") == "boolean":
                yield from ("true", "false")
            if name := member.get("properties", {}).get("name", {}).get("const"):
                yield name
