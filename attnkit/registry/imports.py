"""Modules listed under `imports` in a recipe, a study or a command: importing one registers the components that it defines."""

import os
import sys
from collections.abc import Iterable

from attnkit.registry.class_path import import_if_there
from attnkit.registry.errors import ConfigurationError

IMPORTS = "imports"  # the key in recipes and studies


def import_modules(names: Iterable[str]) -> None:
    """Import modules by their dotted names, found like those of `python -m`: in the current directory, then among installed packages.

    A module that is already imported is not reloaded.

    Example:
        >>> import_modules(["json.decoder"])
        >>> import_modules(["my_pakage.attention"])
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: imports: there is no module 'my_pakage.attention': is it installed, or is its ...
    """
    for name in module_names(names):
        if (folder := os.getcwd()) not in sys.path and "" not in sys.path:
            sys.path.insert(0, folder)
        if import_if_there(name, f"{name!r} in {IMPORTS}") is None:
            raise ConfigurationError(
                f"{IMPORTS}: there is no module {name!r}: is it installed, or is its folder the current one or in PYTHONPATH?"
            )


def module_names(value: object) -> list[str]:
    """Return each module name in a list once; raise if `value` is anything else, for example because it has the path of a file.

    Example:
        >>> module_names(["my_package", "other.module", "my_package"]), module_names(None)
        (['my_package', 'other.module'], [])
    """
    if value is None:
        return []
    names = value if isinstance(value, list | tuple) else [value]
    for name in names:
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")) or name.endswith(".py"):
            raise ConfigurationError(
                f"{IMPORTS} must list modules, as in [my_package.my_module], but contains {name!r}: write the dotted name, without .py"
            )
    if not isinstance(value, list | tuple):
        raise ConfigurationError(f"{IMPORTS} must be a list of module names, as in [{value}], but is {value!r}")
    return list(dict.fromkeys(names))
