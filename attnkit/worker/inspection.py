"""Inspects compositions for a plan: answers each composition in FOLDER/job.json with a line of JSON on stdout."""

import contextlib
import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from attnkit.files import cache_folder
from attnkit.profile.flops import Exponents, batch_flops, forward_flops
from attnkit.recipe import COMMANDS, SPEC_KEYS, merge, merged, plain_specs, read_layers
from attnkit.registry import IMPORTS, ConfigurationError, ResolvedSpec, datasets, import_modules, module_names, nearest, tasks
from attnkit.train.composition import complete_recipe, imports_of, without_effect
from attnkit.train.inheritance import inherited_data, inherited_layer, linked_values, read_init_from, without_replaced
from attnkit.worker import opened
from attnkit.worker.folder import read_json
from attnkit.worker.foreign import UncountedError, built, is_own_module, keeps_best, limits_of, parameters_of
from attnkit.worker.lifeline import hold_on
from attnkit.worker.sources import own_sources, watch_imports
from attnkit.worker.witness import plugins_of

MAX_WIDTH = 1 << 16


class Inspector:
    """Builds compositions of a recipe (a file or a short name) on the meta device.

    With `match`, which has `on`, `adjust` and `tolerance`, their sizes are matched to that of the baseline.
    """

    def __init__(self, recipe: str, *, match: Mapping[str, Any] | None, baseline: Sequence[Mapping[str, Any]]) -> None:
        self.layers = read_layers([recipe])  # runs are fits, so the recipe's section `fit` applies
        self.match, self.on = match, match["on"] if match else "params"
        self.batches: dict[Any, Any] = {}  # the first validation batch of each data module
        self.formulas: dict[str, Mapping[Exponents, int]] = {}  # FLOPs formulas by the arguments of the task, so that each is counted once
        self.modules: dict[str, Any] = {}  # data modules by spec: reading data takes longer than building models
        self.target = self.target_of(baseline) if match else 0

    def target_of(self, baseline: Sequence[Mapping[str, Any]]) -> int:
        """Return the size that the other compositions are matched to."""
        recipe, _ = self.completed(baseline)
        try:
            return self.measure(recipe)
        except UncountedError as error:
            name = recipe["model"]["name"]
            raise ConfigurationError(
                f"match: the number of parameters of {name} is unknown before training ({error}); remove match"
            ) from error

    def answer(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the fields of an `attnkit.worker.answers.Inspection` of the recipe with these layers on top."""
        try:
            recipe, notes = self.completed(layers)
        except ConfigurationError as error:
            return {"error": str(error), "kind": "mistake"}
        try:
            adjusted = None
            if self.match and self.measure(recipe) != self.target:
                adjusted = self.solved(layers)
                recipe, notes = self.completed([*layers, *layered({self.match["adjust"]: adjusted})])
                gap = self.measure(recipe) / self.target - 1
                if abs(gap) > self.match["tolerance"]:
                    message = f"match: {self.match['adjust']}={adjusted} comes closest, but is still {gap:+.1%} off in {self.match['on']}"
                    return {"error": message, "kind": "illegal"}
            flops = self.measure(recipe) if self.on == "flops" else None
            parameters, uncounted = self.counted(recipe)
            spec, _ = self.linked(recipe)
            notes += without_effect(spec, path="model")
            best = not is_own_module(spec.name) or keeps_best(spec, recipe.get("trainer") or {})
        except ValueError as error:  # a ConfigurationError is one too
            return {"error": str(error), "kind": "illegal"}
        takes_seed = "data" in recipe and any(a.name == "seed" for a in datasets.arguments(recipe["data"]["name"]))
        return {
            "recipe": recipe,
            "notes": notes,
            "adjusted": adjusted,
            "takes_seed": takes_seed,
            "parameters": parameters,
            "flops": flops,
            "counts_flops": not is_own_module(recipe["model"]["name"]),
            "keeps_best": best,
            "limits": [*uncounted, *limits_of(recipe, takes_seed=takes_seed)],
        }

    def counted(self, recipe: Mapping[str, Any]) -> tuple[int | None, list[str]]:
        """Return the number of parameters of a model, or None and the reason if it is unknown before training."""
        try:
            return self.measure(recipe, on="params"), []
        except UncountedError as error:
            return None, [f"the parameters of {recipe['model']['name']} are counted only in its runs: {error}"]

    def completed(self, layers: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
        """Return the recipe with layers on top and `model` and `data` written out in full, and notes on arguments that were dropped."""
        notes: list[str] = []
        import_modules([module for layer in layers for module in module_names(layer.get(IMPORTS))])
        recipe = merged([*self.layers, *layers], dropped=notes)
        accepted = inspect.signature(Trainer).parameters
        for key in recipe.get("trainer") or {}:
            if key not in accepted:
                raise ConfigurationError(f"trainer has no argument {key!r}.{nearest(key, accepted)}")
        model = recipe.get("model")
        start = read_init_from(model.get("init_from")) if isinstance(model, Mapping) else None
        if start is not None:
            recipe = merge(inherited_layer(start, recipe["model"].get("name")), recipe, dropped=notes)
        resolved = complete_recipe(recipe)
        if start is not None:
            kept = inherited_data(start, resolved["data"].name)
            resolved["data"] = without_replaced(resolved["data"], kept, recipe["data"], recipe["model"]["init_from"]).replace(**kept)
        specs = {key: spec.plain() for key, spec in resolved.items()}
        others = {k: v for k, v in recipe.items() if k not in (*specs, *COMMANDS, "seed_everything", "ckpt_path")}
        imports = imports_of(recipe)
        return {**specs, **others, **({IMPORTS: imports} if imports else {})}, notes

    def measure(self, recipe: Mapping[str, Any], *, on: str | None = None) -> int:
        """Return the size of the model of a complete recipe, by default in the unit of `match`.

        The unit is parameters (`params`), where shared ones count once, or FLOPs of a forward pass through the first batch of the
        validation data (`flops`, see `attnkit.profile.flops`).
        """
        on = on or self.on
        spec, module = self.linked(recipe)
        if is_own_module(spec.name):
            if on == "flops":
                raise ConfigurationError(f"match: the FLOPs of {spec.name}, which is not an attnkit task, are unknown: match on params")
            return parameters_of(spec)
        task = tasks.build(spec)
        if on == "params":
            return int(task.parameter_count)
        if module not in self.batches:
            module.prepare_data()
            module.setup("fit")
            self.batches[module] = next(iter(module.val_dataloader()))
        name = json.dumps(task.hparams, sort_keys=True)
        if name not in self.formulas:
            self.formulas[name] = forward_flops(task)
        return batch_flops(self.formulas[name], task, self.batches[module])

    def linked(self, recipe: Mapping[str, Any]) -> tuple[ResolvedSpec, Any]:
        """Return the task's spec, including what it takes from the data, and the data module (None if the task has its own dataloaders)."""
        model, data = tasks.resolve(recipe["model"]), datasets.resolve(recipe["data"]) if "data" in recipe else None
        name = json.dumps(recipe.get("data"), sort_keys=True)
        if name not in self.modules:
            self.modules[name] = None if data is None else built(datasets, data)
        module = self.modules[name]
        return model.replace(**linked_values(model, data, module)), module

    def solved(self, layers: Sequence[Mapping[str, Any]]) -> int:
        """Return the width whose size is nearest to the target; size grows with width. Alternates linear interpolation and bisection."""
        assert self.match is not None
        key = self.match["adjust"]

        @cache  # counting FLOPs takes a second or more
        def size(width: int) -> int:
            return self.measure(self.completed([*layers, *layered({key: width})])[0])

        low, high, by_line = 1, 8, True
        if size(low) >= self.target:
            return low
        while size(high) < self.target:
            if high == MAX_WIDTH:
                raise ConfigurationError(
                    f"match: no value of {key} up to {MAX_WIDTH} makes the model reach the baseline's {self.match['on']}"
                )
            low, high = high, min(8 * high, MAX_WIDTH)
        while high - low > 1:
            line = low + (self.target - size(low)) * (high - low) // (size(high) - size(low))
            middle = min(max(line, low + 1), high - 1) if by_line else (low + high) // 2
            low, high = (middle, high) if size(middle) < self.target else (low, middle)
            by_line = not by_line
        return min((low, high), key=lambda width: abs(size(width) - self.target))


def layered(overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return overrides by dotted key as layers of a recipe, one per key.

    Example:
        >>> layered({"model.stack.attention": {"class_path": "additive", "init_args": {"hidden_dim": 8}}})
        [{'model': {'stack': {'attention': {'name': 'additive', 'hidden_dim': 8}}}}]
    """
    layers = []
    for key, value in overrides.items():
        parts = key.split(".")
        if parts[0] in SPEC_KEYS:
            parts = [part for part in parts if part != "init_args"]
        for part in reversed(parts):
            value = {part: value}
        layers.append(plain_specs(value))
    return layers


def main(folder: Path) -> int:
    """Answer the question in `folder`."""
    question = read_json(folder / "job.json")
    try:
        opened.watch()
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # components may print, and expect stdout to be a file
            with contextlib.redirect_stdout(nowhere):
                inspector = Inspector(question["recipe"], match=question["match"], baseline=layered(question["baseline"]))
            for overrides in question["compositions"]:
                with contextlib.redirect_stdout(nowhere):
                    answer = inspector.answer(layered(overrides))
                sources = own_sources(plugins_of(answer.get("recipe", {}))) | opened.digests(without=(folder, cache_folder()))
                print(json.dumps(answer | {"sources": sources}), flush=True)
    except ConfigurationError as error:
        print(f"attnkit: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    watch_imports()
    hold_on(Path(sys.argv[1]), sys.argv[2:])
    sys.exit(main(Path(sys.argv[1])))
