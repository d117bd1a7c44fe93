"""Finds study files and converts their content to the form of the Python interface. No torch."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.ablation.design import Variant, check_keys, label, name_of, read_factor
from attnkit.recipe import STUDIES, find_recipe, recipe_folder
from attnkit.registry import ConfigurationError, nearest
from attnkit.worker.budget import Budget
from attnkit.worker.launch import read_engine

MAX_SEEDS = 10_000
LOWER = ("loss", "error", "perplexity", "bits")  # words in metric names that imply that lower is better


def find_study(name: str) -> Path:
    """Return the file of a study: an existing path, or that of a study that comes with attnkit; else raise a `ConfigurationError`."""
    if name.endswith((".jsonl", ".jsonl.gz")):
        raise ConfigurationError(
            f"{name} holds the runs of a report, which attnkit ablate report, compare, diff and reproduce read; the other actions need the "
            "study file"
        )
    if os.path.isfile(name):
        return Path(name)
    folder = recipe_folder() / STUDIES
    known = sorted(p.stem for p in folder.glob("*.yaml"))
    short = name.removesuffix(".yaml").removeprefix(f"{STUDIES}/")
    if short in known:
        return folder / f"{short}.yaml"
    raise ConfigurationError(
        f"no study {name!r}: there is no such regular file.{nearest(short, known)} Studies of attnkit: {', '.join(known) or 'none'}."
    )


def content_of(content: Any, *, file: Path, known: Sequence[str]) -> dict[str, Any]:
    """Return the content of a study file, with values in the form of the Python interface and recipes resolved to paths.

    The default name of the study is that of the file; recipes may be next to it.
    """
    if isinstance(content, Mapping) and "recipe" not in content:
        content = {**_recipe_of_tasks(content.get("tasks")), **content}
    if not isinstance(content, Mapping) or "recipe" not in content:
        raise ConfigurationError(
            f"{file} is not a study: it needs the key recipe, and may have {', '.join(k for k in known if k != 'recipe')}"
        )
    if unknown := [key for key in content if key not in known]:
        raise ConfigurationError(f"{file}: unknown key {unknown[0]!r}.{nearest(str(unknown[0]), known)} Keys: {', '.join(known)}.")
    if "better" not in content and not any(word in (metric := str(content.get("metric", "loss"))) for word in LOWER):
        raise ConfigurationError(f"{file}: is a lower or a higher {metric} better? Add better: lower or better: higher")
    given: dict[str, Any] = {"name": file.stem, **content, "file": str(file)}
    given["recipe"] = _found(given["recipe"], file)
    if isinstance(tasks := given.get("tasks"), Mapping):
        given["tasks"] = {k: {**t, "recipe": _found(t["recipe"], file)} if _has_recipe(t) else t for k, t in tasks.items()}
    for key, convert in _READERS.items():
        if key in given:
            try:
                given[key] = convert(given[key])
            except (TypeError, AttributeError, KeyError):
                raise ConfigurationError(f"{file}: {key} must be as in {EXAMPLES[key]}, but is {given[key]!r}") from None
    return given


def _found(recipe: Any, file: Path) -> str:
    neighbour = file.parent / str(recipe)
    return str(neighbour if os.path.isfile(neighbour) else find_recipe(str(recipe)))


def _has_recipe(task: Any) -> bool:
    return isinstance(task, Mapping) and task.get("recipe") is not None


def _recipe_of_tasks(tasks: Any) -> dict[str, Any]:
    """Return the default recipe of a study whose tasks all have one: that of the first task."""
    all_have = isinstance(tasks, Mapping) and tasks and all(_has_recipe(task) for task in tasks.values())
    return {"recipe": next(iter(tasks.values()))["recipe"]} if all_have else {}


def _seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, int) and given > MAX_SEEDS:
        raise ConfigurationError(f"seeds must be at most {MAX_SEEDS:,}, but is {given}")
    seeds = tuple(range(given)) if isinstance(given, int) and not isinstance(given, bool) else tuple(given)
    if wrong := [s for s in seeds if not isinstance(s, int) or isinstance(s, bool) or s < 0]:
        raise ConfigurationError(f"seeds must be an integer, or a list of integers from 0, but has {wrong[0]!r}")
    return seeds


def _excluded(given: Any) -> tuple[tuple[Mapping[str, str], str], ...]:
    if without := [rule for rule in given if not rule.get("reason") or not rule.get("when")]:
        raise ConfigurationError(f"exclude: each rule must be {{when: {{FACTOR: LEVEL}}, reason: TEXT}}, but one is {without[0]!r}")
    return tuple(({str(k).rpartition(".")[2]: label(v) for k, v in rule["when"].items()}, str(rule["reason"])) for rule in given)


def _listed(given: Any) -> tuple[Variant, ...]:
    if "baseline" in given:
        raise ConfigurationError("variants: 'baseline' is the recipe itself; give the variant another name")
    for overrides in given.values():
        check_keys(*overrides)
    return tuple(Variant(name=name_of(name), overrides=dict(o), reference="baseline") for name, o in given.items())


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "factors": lambda given: tuple(read_factor(str(name), value) for name, value in given.items()),
    "variants": _listed,
    "seeds": _seeds,
    "exclude": _excluded,
    "budget": Budget.read,
    "engine": read_engine,
}
"""Readers for the keys whose values look different in a file than in Python."""

EXAMPLES: Mapping[str, str] = {
    "metric": "val/loss",
    "quantile": "0.9",
    "set": "{trainer.max_epochs: 3}",
    "imports": "[my_package.my_module]",
    "retries": "{killed: 1}",
    "count_as_diverged": "[out_of_memory]",
    "factors": "{model.stack.position: [none, rotary]}",
    "variants": "{deep: {model.stack.num_layers: 6}}",
    "seeds": "5 or [0, 1, 2]",
    "vary": "[initialisation, data, dropout]",
    "exclude": "[{when: {position: none}, reason: measured already}]",
    "match": "{on: params, adjust: model.stack.feed_forward.ffn_dim}",
    "decide": "{power: 0.9, max_seeds: 20}",
    "effects": "[attention, attention at width, attention x width]",
    "budget": "{tokens: 2000000}",
    "tune": "{grid: {model.optimizer.lr: [3e-4, 1e-3]}, seeds: 2}",
    "tasks": "{spelling: {recipe: g2p/transformer}}",
    "scales": "{small: {at: 64, set: {model.stack.d_model: 64}}}",
    "engine": "{name: slurm, partition: gpu}",
    "published": "{source: PAPER, better: higher, rows: {VARIANT: {NAME THERE: 0.3}}}",
}
"""Example values for messages."""
