"""Parsing the arguments of `attnkit fit` and its siblings into a request: recipes, flags as a layer of a recipe, and the rest."""

from collections.abc import Sequence
from typing import Any

from attnkit.recipe import SPEC_KEYS, merge, plain, read_yaml
from attnkit.registry import IMPORTS, ConfigurationError, Word, module_names, registered_name
from attnkit.train.request import Request


def read_arguments(arguments: Sequence[str]) -> Request:
    """Sort the arguments of a command into recipes, specs and the rest.

    Flags that begin with `--model` and `--data` never reach jsonargparse: only the registries know the arguments of components, and argv,
    YAML, Python and checkpoints share one resolution. Nor do `--config`, `--ckpt_path` and `--print_config`: recipes are merged over
    that of the checkpoint component by component, which jsonargparse cannot do, and are printed whole.

    Example:
        >>> read_arguments(["--config", "g2p/transformer", "--model.stack.attention", "additive", "--trainer.max_epochs=3"]).flags
        {'model': {'stack': {'attention': 'additive'}}}
    """
    request = Request(given=list(arguments))
    settings: list[tuple[list[str], Any]] = []
    rest = list(arguments)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        key = flag.lstrip("-")
        family = key.partition(".")[0]
        is_spec = flag.startswith("--") and family in SPEC_KEYS
        if key == "print_config" and flag.startswith("--"):
            request.print_config = True
        elif flag == "--resume" and not equals:
            request.resume = True
        elif flag == "--trust" and not equals:
            request.trust = True
        elif is_spec and key.endswith(".help"):
            request.help_of = key.removesuffix(".help")
            request.help_name = value or (rest.pop(0) if rest and not rest[0].startswith("-") else None)
        elif is_spec or flag in ("--config", "-c", "--ckpt_path", "--out", f"--{IMPORTS}"):
            if not equals:
                if not rest or rest[0].startswith("--"):
                    example = "MODULE" if key == IMPORTS else "VALUE" if is_spec else "PATH"
                    raise ConfigurationError(f"{flag} needs a value, as in {flag} {example}")
                value = rest.pop(0)
            if is_spec:
                settings.append(([part for part in key.split(".") if part != "init_args"], read_value(value)))
            elif flag == "--ckpt_path":
                request.ckpt_path = None if value == "null" else value
            elif flag == "--out":
                request.out = value
            elif key == IMPORTS:
                named = read_value(value)
                request.flags[IMPORTS] = module_names([*request.flags.get(IMPORTS, ()), *(named if isinstance(named, list) else [value])])
            else:
                request.recipes.append(value)
        else:
            request.others.append(f"{flag}{equals}{value}")
    for path, setting in sorted(settings, key=lambda item: len(item[0])):  # names before arguments of the named components
        layer = setting
        for part in reversed(path):
            layer = {"name": registered_name(str(layer))} if part == "class_path" else {part: layer}
        request.flags = merge(request.flags, layer, dropped=[])
    return request


def read_value(text: str) -> Any:
    r"""Return a value from the command line: mappings, lists and quoted text as YAML reads them, anything else as a `Word`.

    Other text is not changed, even if YAML would read it as a comment, as nothing or not at all.

    Example:
        >>> read_value("{lr: 1e-3}"), read_value("1e-3").value, read_value("null").value
        ({'lr': 0.001}, 0.001, None)
        >>> [read_value(text).value for text in ("*.txt", "a #b", "---", "\n\n", r'"\n\n"')]
        ['*.txt', 'a #b', '---', '\n\n', '\n\n']
    """
    begin = text.lstrip()[:1]
    try:
        value = read_yaml(text, where="the command line")
    except ConfigurationError:
        if begin and begin in "{['\"":
            raise
        value = text
    if begin in ("{", "[") and isinstance(value, dict | list):
        return plain(value)
    is_text = text != "" and text.strip().lower() not in ("~", "null")
    is_changed = is_text if value is None else isinstance(value, str) and begin not in ("'", '"')
    return Word(text, text if is_changed else value)
