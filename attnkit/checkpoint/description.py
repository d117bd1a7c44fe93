"""The description in a checkpoint: which task it holds, which attnkit wrote it, and who provides its components."""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from lightning.pytorch.utilities import rank_zero_warn

from attnkit import __version__
from attnkit.checkpoint.errors import CheckpointError, MissingComponentError
from attnkit.installed import distributions
from attnkit.own_code import code_hash
from attnkit.registry import IMPORTS, ConfigurationError, Registry, Spec, import_modules, importing, module_names, tasks

FORMAT = 1
ARGUMENTS = "hyper_parameters"  # Lightning's key
RECIPE_STATE = "attnkit_recipe"  # key of the recipe among the states of callbacks


def describe(task: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a task, from its registry name and its arguments."""
    found = list(components(tasks, {"name": task, **arguments}))
    replaced = {f"{registry.attribute}.{name}": path for registry, name in found if (path := registry.replacement(name)) is not None}
    code = {f"{registry.attribute}.{name}": own for registry, name in found if (own := code_hash(registry.get(name))) is not None}
    return {"format": FORMAT, "version": __version__, "task": task, "packages": _packages(found), "replaced": replaced, "code": code}


def require_readable(checkpoint: Any, source: str | Path, *, trust: bool = False) -> None:
    """Raise unless `checkpoint` is attnkit's, has a known format, and needs only components that are installed.

    A component may be a class path. Its module must be imported already, unless `trust` allows the checkpoint to have it imported,
    together with the modules that its recipe imports. A name of a built-in component must mean the same as when the checkpoint was written:
    the component, or a class that replaces it. Files outside its folder that it claims are refused, too. A warning says if the code of a
    component that is not attnkit's has changed since.
    """
    content: Mapping[str, Any] = checkpoint if isinstance(checkpoint, Mapping) else {}
    written: Any = content.get("attnkit")
    if not _is_description(written) or not isinstance(arguments_of(content), Mapping):
        is_lightning = "pytorch-lightning_version" in content
        kind = "a Lightning checkpoint of another project" if is_lightning else "a file of another project"
        raise CheckpointError(f"{source} is not an attnkit checkpoint, but {kind}")
    if written["format"] > FORMAT:
        raise CheckpointError(
            f"{source} was written by attnkit {written['version']} in format {written['format']}, but attnkit {__version__} reads formats "
            f"up to {FORMAT}: pip install --upgrade attnkit"
        )
    imports = module_names(saved_recipe(content).get(IMPORTS))
    try:
        if trust:
            import_modules(imports)
        with importing(trust):
            found = list(components(tasks, {"name": written["task"], **arguments_of(content)}))
    except ConfigurationError as error:
        raise MissingComponentError(f"{source} cannot be used: {error}") from error
    flags = " ".join(f"--{IMPORTS} {module}" for module in imports) or f"--{IMPORTS} MODULE"
    importing_it = f"; import the module that registers it first (on the command line: {flags})"
    replaced = written.get("replaced")  # earlier versions did not record it
    for registry, name in found:
        key = f"{registry.attribute}.{name}"
        if name not in registry and "." not in name:
            package = written["packages"].get(key)
            hint = f": pip install {package}" if package else importing_it
            raise MissingComponentError(f"{source} needs the {registry.family} {name!r}, which is not installed here{hint}")
        then, now = (replaced.get(key), registry.replacement(name)) if isinstance(replaced, Mapping) else (None, None)
        if then is not None and now is None:
            own = f"the class {ascii(then)[:200]} in place of the built-in {registry.family} {name!r}"
            raise MissingComponentError(f"{source} needs {own}{importing_it}")
        if now is not None and then is None and isinstance(replaced, Mapping):
            raise MissingComponentError(f"{source} needs the built-in {registry.family} {name!r}, which {now} replaces in this process")
    _require_own_files(content.get("callbacks"), source)
    code, packages = _texts(written.get("code")), _texts(written["packages"])  # earlier versions did not record the code
    if changed := dict.fromkeys((*_changed_code(code, found), *_changed_packages(packages))):
        _warn(
            f"code has changed since the checkpoint was written, and may compute something else: {', '.join(changed)}",
            frozenset({*code.items(), *packages.items()}),
        )


def arguments_of(checkpoint: Mapping[str, Any]) -> Any:
    """Return the arguments of the task in a checkpoint, in today's words."""
    return checkpoint["attnkit"]["arguments"] if is_of_own_class(checkpoint) else arguments_of_today(checkpoint.get(ARGUMENTS))


def arguments_of_today(arguments: Any) -> Any:
    """Return the arguments of a task with those of the first edition in today's words.

    Example:
        >>> arguments_of_today({"activation_checkpointing": "attention", "head_transform": True})
        {'activation_checkpointing': 'mixer', 'head': 'bert'}
    """
    if not isinstance(arguments, Mapping):
        return arguments
    today = dict(arguments)
    if today.get("activation_checkpointing") == "attention":
        today["activation_checkpointing"] = "mixer"
    if "head_transform" in today and "head" not in today:
        today["head"] = "bert" if today.pop("head_transform") else "linear"
    return today


def is_of_own_class(checkpoint: Mapping[str, Any]) -> bool:
    """Return whether a checkpoint is of a user's own LightningModule. It may not save its arguments, so the description has them."""
    return "arguments" in checkpoint["attnkit"] and tasks.canonical(checkpoint["attnkit"]["task"]) not in tasks.built_in()


def saved_recipe(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the name, `imports`, `data` and `trainer` of the recipe in a checkpoint; a run from Python has none."""
    callbacks = checkpoint.get("callbacks")
    state = callbacks.get(RECIPE_STATE) if isinstance(callbacks, Mapping) else None
    return state if isinstance(state, Mapping) else {}


def components(registry: Registry, spec: Spec) -> Iterator[tuple[Registry, str]]:
    """Yield each component in a spec, installed or not; nothing below one that is not. Raise if a class path may not be imported."""
    name, arguments = registry.split(spec)
    yield registry, name
    if name not in registry and "." not in name:
        return
    nested: list[tuple[Registry, Spec]] = []
    for argument in registry.arguments(name):
        if argument.name in arguments:
            argument.visit(arguments[argument.name], lambda slot, inner, _: nested.append((slot, inner)))
    for slot, inner in nested:
        yield from components(slot, inner)


def _is_description(written: Any) -> bool:
    kinds = {"format": int, "version": str, "task": str, "packages": Mapping}
    return isinstance(written, Mapping) and all(isinstance(written.get(key), kind) for key, kind in kinds.items())


def _require_own_files(callbacks: Any, source: str | Path) -> None:
    """Raise if a `ModelCheckpoint` would delete files outside its folder: it deletes the files named in its saved state."""
    for state in callbacks.values() if isinstance(callbacks, Mapping) else ():
        if isinstance(state, Mapping) and "dirpath" in state:
            named = [*(state.get("best_k_models") or ()), state.get("kth_best_model_path"), state.get("last_model_path")]
            folder = os.path.normpath(str(state["dirpath"]))
            if foreign := [str(path) for path in named if path and folder not in map(str, Path(os.path.normpath(str(path))).parents)]:
                raise CheckpointError(f"{source} cannot be used: it claims {foreign[0]}, outside {folder}, as one of its own checkpoints")


@cache
def _warn(message: str, written: frozenset[tuple[str, str]]) -> None:
    """Warn of what was `written` once, however often it is read, and by however many processes."""
    rank_zero_warn(message)


def _texts(written: Any) -> dict[str, str]:
    """Return what is text in a mapping of unknown origin; nothing else is meant to be there."""
    return {key: v for key, v in written.items() if isinstance(key, str) and isinstance(v, str)} if isinstance(written, Mapping) else {}


def _changed_code(then: Mapping[str, str], found: Iterable[tuple[Registry, str]]) -> Iterator[str]:
    for registry, name in found:
        before = then.get(f"{registry.attribute}.{name}")
        if before is not None and code_hash(registry.get(name)) not in (None, before):
            yield f"the {registry.family} {name!r}"


def _changed_packages(then: Mapping[str, str]) -> Iterator[str]:
    for package, _, before in sorted({one.partition("==") for one in then.values()}):
        with suppress(PackageNotFoundError, ValueError):
            if (now := version(package)) != before:
                yield f"{package} {now} (then {before[:40]!a})"


def _packages(used: Iterable[tuple[Registry, str]]) -> dict[str, str]:
    """Return who provides the components that are neither attnkit's nor torch's: `{"attentions.gaussian": "my-package==1.0"}`."""
    modules = {f"{r.attribute}.{name}": r.get(name).__module__.partition(".")[0] for r, name in used}
    foreign = {component: module for component, module in modules.items() if module not in ("attnkit", "torch")}
    owners = distributions() if foreign else {}
    found = {component: owners[module][0] for component, module in foreign.items() if module in owners}
    return {component: f"{name}=={version(name)}" for component, name in found.items()}
