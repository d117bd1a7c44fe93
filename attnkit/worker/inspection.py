"""The inspection for a plan: answers each composition in FOLDER/job.json with a line of JSON on stdout."""

import contextlib
import inspect
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer

from attnkit.profile.flops import batch_flops, forward_flops
from attnkit.recipe import merge, read_recipe
from attnkit.registry import IMPORTS, ConfigurationError, datasets, import_modules, module_names, nearest, tasks
from attnkit.train.composition import complete_recipe
from attnkit.train.inheritance import inherited_layer, inherited_tokenizers, read_init_from, values_from_data
from attnkit.worker.folder import read_json
from attnkit.worker.lifeline import hold_on
from attnkit.worker.sources import own_sources

MOST_WIDTH = 1 << 16


class Inspector:
    """Builds compositions of one recipe on the meta device.

    Args:
        recipe: The file, or the short name.
        match: `on`, `adjust` and `tolerance` of the study's `match`, or None.
        baseline: The layers of the composition whose size the others must match.
    """

    def __init__(self, recipe: str, *, match: Mapping[str, Any] | None, baseline: Sequence[Mapping[str, Any]]) -> None:
        self.recipe = read_recipe(recipe)
        self.match, self.on = match, match["on"] if match else "params"
        self.batches: dict[Any, Any] = {}  # of data modules
        self.modules: dict[str, Any] = {}  # data modules by their spec: reading data takes longer than building models
        self.target = self.measure(self.completed(baseline)[0]) if match else 0

    def answer(self, layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the fields of an `attnkit.worker.answers.Inspection`."""
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
                    message = f"match: {self.match['adjust']}={adjusted} is nearest, but still {gap:+.1%} off in {self.match['on']}"
                    return {"error": message, "kind": "illegal"}
            sizes = {"parameters": self.measure(recipe, on="params"), "flops": self.measure(recipe) if self.on == "flops" else None}
        except ValueError as error:  # a ConfigurationError is one too
            return {"error": str(error), "kind": "illegal"}
        takes_seed = any(a.name == "seed" for a in datasets.arguments(recipe["data"]["name"]))
        return {"recipe": recipe, "notes": notes, "adjusted": adjusted, "takes_seed": takes_seed, **sizes}

    def completed(self, layers: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[str]]:
        """Return the recipe under layers with all of `model` and `data` written out, and notes on arguments that were dropped."""
        notes: list[str] = []
        recipe: Any = self.recipe
        import_modules([module for layer in (recipe, *layers) for module in module_names(layer.get(IMPORTS))])
        for over in layers:
            recipe = merge(recipe, over, dropped=notes)
        accepted = inspect.signature(Trainer).parameters
        for key in recipe.get("trainer") or {}:
            if key not in accepted:
                raise ConfigurationError(f"trainer has no argument {key!r}.{nearest(key, accepted)}")
        start = read_init_from((recipe.get("model") or {}).get("init_from"))
        if start is not None:
            recipe = merge(inherited_layer(start), recipe, dropped=notes)
        specs = {key: spec.plain() for key, spec in complete_recipe(recipe).items()}
        if start is not None:
            specs["data"] |= inherited_tokenizers(start, specs["data"]["name"])
        others = {k: v for k, v in recipe.items() if k not in (*specs, "seed_everything", "ckpt_path")}
        return {**specs, **others}, notes

    def measure(self, recipe: Mapping[str, Any], *, on: str | None = None) -> int:
        """Return the size of a model.

        Args:
            recipe: The complete recipe.
            on: `params`: its parameters, where shared ones count once; `flops`: the FLOPs of a forward pass through the first batch of the
                validation data (see `attnkit.profile.flops`). Default: as matched.
        """
        task, module = self.built(recipe)
        if (on or self.on) == "params":
            return int(task.parameter_count)
        if module not in self.batches:
            module.prepare_data()
            module.setup("fit")
            self.batches[module] = next(iter(module.val_dataloader()))
        return batch_flops(forward_flops(task), task, self.batches[module])

    def built(self, recipe: Mapping[str, Any]) -> tuple[Any, Any]:
        """Return the task, without a model yet, and the data module."""
        model, data = recipe["model"], recipe["data"]
        name = json.dumps(data, sort_keys=True)
        if name not in self.modules:
            self.modules[name] = datasets.build(data)
        module = self.modules[name]
        return tasks.build(model | values_from_data(model["name"], data["name"], module)), module

    def solved(self, layers: Sequence[Mapping[str, Any]]) -> int:
        """Return the width nearest to the target, by bisection, since the measure grows with the width."""
        assert self.match is not None
        key = self.match["adjust"]

        def size(width: int) -> int:
            return self.measure(self.completed([*layers, *layered({key: width})])[0])

        low, high = 1, 2
        while size(high) < self.target:
            low, high = high, 2 * high
            if high > MOST_WIDTH:
                raise ConfigurationError(
                    f"match: {key} has no value up to {MOST_WIDTH} with which the model reaches the baseline's {self.match['on']}"
                )
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if size(middle) < self.target else (low, middle)
        return min((low, high), key=lambda width: abs(size(width) - self.target))


def layered(overrides: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return overrides by dotted key as layers of a recipe, one for each key.

    Example:
        >>> layered({"model.stack.attention": "additive"})
        [{'model': {'stack': {'attention': 'additive'}}}]
    """
    layers = []
    for key, value in overrides.items():
        for part in reversed(key.split(".")):
            value = {part: value}
        layers.append(value)
    return layers


def main(folder: Path) -> int:
    """Answer the question in a folder."""
    question = read_json(folder / "job.json")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # components may print
            inspector = Inspector(question["recipe"], match=question["match"], baseline=layered(question["baseline"]))
        for overrides in question["compositions"]:
            with contextlib.redirect_stdout(io.StringIO()):
                answer = inspector.answer(layered(overrides)) | {"sources": own_sources()}
            print(json.dumps(answer), flush=True)
    except ConfigurationError as error:
        print(f"attnkit: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    hold_on(Path(sys.argv[1]), sys.argv[2:])
    sys.exit(main(Path(sys.argv[1])))
