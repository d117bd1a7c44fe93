"""The study file: which recipe, what is varied, how often it is run, and what counts as a difference. Reads without torch."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from attnkit.ablation.design import DESIGNS, Design, Factor, Variant, check_key, expand, label, read_factor
from attnkit.ablation.launch import read_engine
from attnkit.ablation.sections import Budget, Match, Published, Tune
from attnkit.ablation.store import read_json
from attnkit.files import read_text
from attnkit.recipe import MAX_BYTES, STUDIES, find_recipe, read_yaml, recipe_folder
from attnkit.registry import ConfigurationError, nearest

if TYPE_CHECKING:
    from attnkit.ablation.plan import Plan
    from attnkit.ablation.results import Results

FOLDERS = ("runs", "inspections", "probes", "reproduced")
"""What else is beside the folders of studies."""

SEED_KINDS = ("initialisation", "data", "dropout")

MAX_SEEDS = 10_000

SPECIAL = {"source": 1, "target": 2}
"""How many tokens of each side are no text, though `data.max_length` counts them: the end, and the beginning of targets."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """An ablation study.

    Args:
        name: Names its folder of results.
        recipe: The path of the recipe that it varies, or the short name of one that comes with attnkit.
        metric: What decides, as it is logged: `val/loss`, `test/sequence_error_rate`. `test/...` is measured after the training.
        better: Whether a lower or a higher metric is better.
        factors: What is varied.
        design: How factors are combined; see `attnkit.ablation.design.expand`.
        variants: Those of the design `list`.
        seeds: One run of each variant for each seed.
        vary: Which of the seeds differ between runs: initialisation, data, dropout. The others are those of the first run.
        min_effect: The smallest difference of the metric that matters.
        alpha: The level of tests.
        exclude: Combinations that are left out: levels by factor, and the reason.
        set: Overrides of the recipe in all variants, by dotted key.
        match: Equal sizes.
        budget: What every run may use; None: as the recipe's trainer says.
        tune: What is tuned for every variant; None: nothing.
        timeout: Seconds after which a run is ended.
        retries: How often a run is begun again by itself, by kind of failure.
        engine: Where runs are carried out; see `attnkit.ablation.launch.read_engine`.
        lengths: Of which side, `source` or `target`, the report shows the metric by length.
        published: A table of a paper, to compare with.
        file: Where it was read, in the words of who asked for it.

    Raises:
        ConfigurationError: Something in it is wrong or is missing.
    """

    name: str
    recipe: str
    metric: str = "val/loss"
    better: Literal["lower", "higher"] = "lower"
    factors: tuple[Factor, ...] = ()
    design: Design = "one_factor"
    variants: tuple[Variant, ...] = ()
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    vary: tuple[str, ...] = SEED_KINDS
    min_effect: float | None = None
    alpha: float = 0.05
    exclude: tuple[tuple[Mapping[str, str], str], ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    match: Match | None = None
    budget: Budget | None = None
    tune: Tune | None = None
    timeout: float | None = None
    retries: Mapping[str, int] = field(default_factory=lambda: {"killed": 1})
    engine: Mapping[str, Any] = field(default_factory=lambda: {"name": "local"})
    lengths: Literal["source", "target"] | None = None
    published: Published | None = None
    file: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"\w[\w.-]{0,99}", self.name) or self.name in FOLDERS:
            raise ConfigurationError(
                f"name: {self.name!r} cannot name a folder of results; use letters, digits, '-', '_' and '.', up to 100, a letter, a digit "
                f"or '_' first, and not {FOLDERS}"
            )
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigurationError(f"seeds: {list(self.seeds)} has one twice")
        if len(self.seeds) < 2:
            raise ConfigurationError(
                f"seeds: a study needs at least 2, but has {len(self.seeds)}: without a second run nothing tells a difference from chance. "
                f"5 show differences of 1.7 standard deviations or more, 10 those of 1.0."
            )
        if self.min_effect is not None and self.min_effect <= 0:
            raise ConfigurationError(f"min_effect must be above 0, but is {self.min_effect}")
        if not 0 < self.alpha < 1:
            raise ConfigurationError(f"alpha must lie between 0 and 1, but is {self.alpha}")
        for name, value, known in (
            ("design", self.design, DESIGNS),
            ("better", self.better, ("lower", "higher")),
            ("lengths", self.lengths, ("source", "target")),
        ):
            if value not in known and (name, value) != ("lengths", None):
                raise ConfigurationError(f"{name}: unknown {value!r}.{nearest(str(value), known)} One of: {', '.join(known)}.")
        if unknown := [kind for kind in self.vary if kind not in SEED_KINDS]:
            raise ConfigurationError(f"vary: unknown {unknown[0]!r}.{nearest(unknown[0], SEED_KINDS)} Of: {', '.join(SEED_KINDS)}.")
        if not self.vary:
            raise ConfigurationError("vary: at least one seed must differ between runs, or they are all the same")
        if len({f.name for f in self.factors}) < len(self.factors):
            raise ConfigurationError(
                "factors: two keys end in the same word; give one of them a word as its name, and levels of dotted keys"
            )
        if not (self.variants if self.design == "list" else self.factors):
            raise ConfigurationError(f"the design {self.design} needs {'variants' if self.design == 'list' else 'factors'}")
        for key in self.set:
            check_key(key)
        read_engine(self.engine)
        if self.tune is not None and (self.tune.metric or self.metric).startswith("test/"):
            raise ConfigurationError("tune: to choose by the test data makes them worthless; add metric: val/... to tune")

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a study file: a path, or the short name of one that comes with attnkit, such as `ablations/attention`."""
        file = find_study(str(path))
        return replace(cls.from_dict(read_yaml(read_text(file, limit=MAX_BYTES), where=str(file)), file=file), file=str(path))

    @classmethod
    def from_dict(cls, content: Any, *, file: Path) -> Self:
        """Return the study that a file says; `file` gives its name and where its recipe is."""
        known = [f.name for f in fields(cls) if f.name != "file"]
        if not isinstance(content, Mapping) or "recipe" not in content:
            raise ConfigurationError(
                f"{file} is no study: it needs the key recipe, and {', '.join(k for k in known if k != 'recipe')} may follow"
            )
        if unknown := [key for key in content if key not in known]:
            raise ConfigurationError(f"{file}: unknown key {unknown[0]!r}.{nearest(str(unknown[0]), known)} Keys: {', '.join(known)}.")
        given: dict[str, Any] = {"name": file.stem, **content, "file": str(file)}
        beside = file.parent / str(given["recipe"])
        given["recipe"] = str(beside if os.path.isfile(beside) else find_recipe(str(given["recipe"])))
        for key, kinds in _KINDS.items():
            if not isinstance(given.get(key, kinds[0]()), kinds) or isinstance(given.get(key), bool):
                raise ConfigurationError(f"{file}: {key} must be {_SHAPES[key]}, but is {given[key]!r}")
        for key, read in _READERS.items():
            if key in given:
                try:
                    given[key] = read(given[key])
                except (TypeError, AttributeError, KeyError) as error:
                    raise ConfigurationError(f"{file}: {key} must be {_SHAPES[key]}, but is {given[key]!r} ({error})") from error
        return cls(**given)

    def with_seeds(self, *seeds: int) -> Self:
        """Return the study with more seeds; runs of the others stay as they are."""
        return replace(self, seeds=(*self.seeds, *(s for s in seeds if s not in self.seeds)))

    def with_added_seeds(self, folder: str | Path = "runs/ablations") -> Self:
        """Return the study with the seeds that `attnkit ablate seeds --add` gave it in this folder of results."""
        asked = read_question(Path(folder) / self.name) or {}
        return self.with_seeds(*asked.get("seeds_added", []))

    def expanded(self) -> list[Variant]:
        """Return every variant of the design; those that `exclude` names say why they are left out."""
        variants = expand(self.design, self.factors, self.variants)
        known = {f.name: [f.baseline.label, *(v.label for v in f.levels)] for f in self.factors}
        for levels, _ in self.exclude:
            for factor, level in levels.items():
                if factor not in known:
                    raise ConfigurationError(f"exclude: no factor {factor!r}.{nearest(factor, known)} Factors: {', '.join(known)}.")
                if level not in known[factor]:
                    raise ConfigurationError(
                        f"exclude: factor {factor!r} has no level {level!r}.{nearest(level, known[factor])} "
                        f"Levels: {', '.join(known[factor])}."
                    )
        names = [v.name for v in variants]
        if unknown := [name for name in (self.published.rows if self.published else ()) if name not in names]:
            raise ConfigurationError(f"published: no variant {unknown[0]!r}.{nearest(unknown[0], names)} Variants: {'; '.join(names)}.")
        return [replace(v, excluded=self._reason(dict(v.choices))) for v in variants]

    def _reason(self, choices: Mapping[str, str]) -> str | None:
        return next((why for levels, why in self.exclude if all(choices.get(f) == v for f, v in levels.items())), None)

    def plan(self, folder: str | Path = "runs/ablations") -> "Plan":
        """Return what there is to run; see `attnkit.ablation.plan`."""
        from attnkit.ablation.plan import make_plan

        return make_plan(self.with_added_seeds(folder), Path(folder))

    def run(self, folder: str | Path = "runs/ablations", *, jobs: int | None = None, fail_fast: bool = False) -> "Results":
        """Run what is not finished, and return the results; see `attnkit.ablation.engine.run_plan`."""
        from attnkit.ablation.engine import run_plan
        from attnkit.ablation.results import Results

        return Results(run_plan(self.plan(folder), jobs=jobs, fail_fast=fail_fast))


def read_question(folder: Path) -> dict[str, Any] | None:
    """Return what was asked when the results in a study's folder were begun; None if there are none.

    Raises:
        ConfigurationError: The file is damaged. It is not made anew, for it shows that the question came before the answers.
    """
    asked = read_json(folder / "study.json")
    if asked is None:
        return None
    lists = [asked.get("seeds_at_start"), asked.get("seeds_added", [])] if isinstance(asked, dict) else [None]
    if not all(isinstance(seeds, list) and all(type(seed) is int for seed in seeds) for seeds in lists):
        raise ConfigurationError(f"{folder / 'study.json'} is damaged: it does not say with which seeds the study began; restore it")
    return dict(asked)


def find_study(name: str) -> Path:
    """Return the file that a name means: an existing path, or a study that comes with attnkit.

    Raises:
        ConfigurationError: There is neither.
    """
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


def _seeds(given: Any) -> tuple[int, ...]:
    if isinstance(given, int) and given > MAX_SEEDS:
        raise ConfigurationError(f"seeds: at most {MAX_SEEDS:,}, but is {given}")
    seeds = tuple(range(given)) if isinstance(given, int) and not isinstance(given, bool) else tuple(given)
    if wrong := [s for s in seeds if not isinstance(s, int) or isinstance(s, bool) or s < 0]:
        raise ConfigurationError(f"seeds: a number of seeds, or a list of integers from 0; not {wrong[0]!r}")
    return seeds


def _excluded(given: Any) -> tuple[tuple[Mapping[str, str], str], ...]:
    if without := [rule for rule in given if not rule.get("reason") or not rule.get("when")]:
        raise ConfigurationError(f"exclude: each rule is {{when: {{FACTOR: LEVEL}}, reason: TEXT}}, but one is {without[0]!r}")
    return tuple(({str(k).rpartition(".")[2]: label(v) for k, v in rule["when"].items()}, str(rule["reason"])) for rule in given)


def _listed(given: Any) -> tuple[Variant, ...]:
    if "baseline" in given:
        raise ConfigurationError("variants: 'baseline' is the recipe itself; give the variant another name")
    for overrides in given.values():
        for key in overrides:
            check_key(key)
    return tuple(Variant(name=str(name), overrides=dict(o), reference="baseline") for name, o in given.items())


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "factors": lambda given: tuple(read_factor(str(name), value) for name, value in given.items()),
    "variants": _listed,
    "seeds": _seeds,
    "vary": tuple,
    "exclude": _excluded,
    "match": Match.read,
    "budget": Budget.read,
    "tune": Tune.read,
    "engine": read_engine,
    "published": Published.read,
}

_KINDS: Mapping[str, tuple[type, ...]] = {
    "name": (str,),
    "metric": (str,),
    "alpha": (float, int),
    "min_effect": (float, int, type(None)),
    "timeout": (float, int, type(None)),
    "set": (dict,),
    "retries": (dict,),
}
"""The types of the keys that are taken as they are."""

_SHAPES: Mapping[str, str] = {
    "name": "text",
    "metric": "text, as in val/loss",
    "alpha": "a number",
    "min_effect": "a number",
    "timeout": "a number of seconds",
    "set": "a mapping from dotted keys, as in {trainer.max_epochs: 3}",
    "retries": "a mapping from kinds of failure, as in {killed: 1}",
    "factors": "a mapping, as in {model.stack.position: [none, rotary]}",
    "variants": "a mapping from names to overrides, as in {deep: {model.stack.num_layers: 6}}",
    "seeds": "a number of seeds, or a list of integers from 0",
    "vary": f"a list of {', '.join(SEED_KINDS)}",
    "exclude": "a list, as in [{when: {position: none}, reason: measured already}]",
    "match": "a mapping, as in {on: params, adjust: model.stack.feed_forward.ffn_dim}",
    "budget": "a mapping, as in {tokens: 2000000}",
    "tune": "a mapping, as in {key: model.optimizer.lr, values: [3e-4, 1e-3], seeds: 2}",
    "engine": "a name, or a mapping with one, as in {name: slurm, partition: gpu}",
    "published": "a mapping, as in {source: PAPER, better: higher, rows: {VARIANT: {NAME THERE: 0.3}}}",
}
"""What each of these keys looks like, for messages."""
