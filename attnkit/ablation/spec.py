"""The study file: the recipe, what is varied, the seeds, and the smallest difference that matters. No torch."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self, get_args

from attnkit.ablation.design import Design, Factor, Variant, check_key, expand, label, parsed, read_factor
from attnkit.ablation.sections import Decide, Match, Published, Tune
from attnkit.files import read_text
from attnkit.recipe import MAX_BYTES, STUDIES, find_recipe, read_yaml, recipe_folder
from attnkit.registry import ConfigurationError, module_names, nearest
from attnkit.worker.budget import Budget
from attnkit.worker.launch import read_engine
from attnkit.worker.records import check, read

REPLACED = "replaced"
FOLDERS = ("runs", "inspections", "probes", "reproduced", REPLACED)
"""The other folders beside those of studies."""

SeedKind = Literal["initialisation", "data", "dropout"]
SEED_KINDS: tuple[SeedKind, ...] = get_args(SeedKind)

MAX_SEEDS = 10_000
SEEDS = (0, 1, 2, 3, 4)
"""Of a study that names none."""


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """The content of a study file; `Study` plans and runs it.

    Args:
        name: The name of its folder of results.
        recipe: The path of the recipe that it varies, or the short name of one that comes with attnkit.
        metric: The metric that decides, as it is logged: `val/loss`, `test/sequence_error_rate`. `test/...` is measured after the training.
        better: Whether a lower or a higher metric is better.
        factors: The settings that it varies.
        design: How factors are combined; see `attnkit.ablation.design.expand`.
        variants: Those of the design `list`.
        seeds: One run of each variant for each seed.
        vary: The seeds that differ between runs: initialisation, data, dropout. The others are those of the first run.
        min_effect: The smallest difference of the metric that matters: a number, or a percentage of the reference's mean such as `2%`.
        alpha: The probability of any false verdict.
        resolution: The smallest step of the metric, such as 1 / test examples; None: that of single precision.
        effects: What a full factorial design estimates; see `attnkit.ablation.contrasts.contrasts`. Empty: all main effects and
            interactions of two factors.
        decide: Seeds are added until every effect is decided; None: `seeds` is the number of seeds.
        exclude: Combinations that are left out: levels by factor, and the reason.
        set: Overrides of the recipe in all variants, by dotted key.
        imports: Modules that the processes of the study import first, because they register components or hold classes of its own.
        match: Equal sizes.
        budget: The budget of every run; None: as the recipe's trainer says.
        tune: The settings that are tuned for every variant; None: none.
        timeout: Seconds after which a run is ended.
        retries: How often a run is restarted automatically, by kind of failure.
        engine: Where runs are carried out; see `attnkit.worker.launch.read_engine`.
        threads: CPU threads of each run: results depend on them in the last digits.
        accept_code: Why finished runs count although other code, packages or data, or another processor made them; None: they do not.
        lengths: The side, `source` or `target`, by whose length the report shows the metric.
        published: A table of a paper, to compare with.
        file: The study file, as the user named it.

    Raises:
        ConfigurationError: A setting is wrong or missing.
    """

    name: str
    recipe: str
    metric: str = "val/loss"
    better: Literal["lower", "higher"] = "lower"
    factors: tuple[Factor, ...] = ()
    design: Design = "one_factor"
    variants: tuple[Variant, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    vary: tuple[SeedKind, ...] = SEED_KINDS
    min_effect: float | str | None = None
    alpha: float = 0.05
    resolution: float | None = None
    effects: tuple[str, ...] = ()
    decide: Decide | None = None
    exclude: tuple[tuple[Mapping[str, str], str], ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    match: Match | None = None
    budget: Budget | None = None
    tune: Tune | None = None
    timeout: float | None = None
    retries: Mapping[str, int] = field(default_factory=lambda: {"killed": 1})
    engine: Mapping[str, Any] = field(default_factory=lambda: {"name": "local"})
    threads: int = 1
    accept_code: str | None = None
    lengths: Literal["source", "target"] | None = None
    published: Published | None = None
    file: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check(self, where="study")
        if not re.fullmatch(r"\w[\w.-]{0,99}", self.name) or self.name in FOLDERS:
            raise ConfigurationError(
                f"name: {self.name!r} cannot name a folder of results; use at most 100 letters, digits, '-', '_' and '.', the first a "
                f"letter, a digit or '_', and not {FOLDERS}"
            )
        if self.decide is not None:
            if self.seeds not in (SEEDS, planned := tuple(range(self.decide.max_seeds))):
                raise ConfigurationError("seeds: with decide, seeds are added until max_seeds; leave out one of the two")
            object.__setattr__(self, "seeds", planned)
        if self.effects and self.design != "full_factorial":
            raise ConfigurationError(f"effects: they are those of the design full_factorial, but the design is {self.design}")
        for effect in self.effects:
            parsed(effect, {f.name: () for f in self.factors})
        if self.resolution is not None and self.resolution <= 0:
            raise ConfigurationError(f"resolution must be above 0, but is {self.resolution}")
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigurationError(f"seeds: {list(self.seeds)} has one twice")
        if len(self.seeds) < 2:
            raise ConfigurationError(
                f"seeds: a study needs at least 2, but has {len(self.seeds)}: from one run, a difference cannot be told from chance. "
                f"5 seeds show differences of 1.7 standard deviations or more, 10 seeds those of 1.0."
            )
        if isinstance(self.min_effect, str) and not re.fullmatch(r"\d+(\.\d+)?%", self.min_effect):
            raise ConfigurationError(f"min_effect must be a number or a percentage, as in 0.02 or '2%', but is {self.min_effect!r}")
        if self.min_effect is not None and float(str(self.min_effect).rstrip("%")) <= 0:
            raise ConfigurationError(f"min_effect must be above 0, but is {self.min_effect}")
        if self.threads < 1:
            raise ConfigurationError(f"threads must be at least 1, but is {self.threads}")
        if not 0 < self.alpha < 1:
            raise ConfigurationError(f"alpha must be between 0 and 1, but is {self.alpha}")
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
        module_names(self.imports)
        read_engine(self.engine)
        if self.tune is not None and (self.tune.metric or self.metric).startswith("test/"):
            raise ConfigurationError("tune: tuning on the test data would make them worthless; add metric: val/... to tune")

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a study file: a path, or the short name of one that comes with attnkit, such as `ablations/attention`."""
        file = find_study(str(path))
        return replace(cls.from_dict(read_yaml(read_text(file, limit=MAX_BYTES), where=str(file)), file=file), file=str(path))

    @classmethod
    def from_dict(cls, content: Any, *, file: Path) -> Self:
        """Return the study in the content of a file; `file` gives its name and where its recipe is."""
        known = [f.name for f in fields(cls) if f.name != "file"]
        if not isinstance(content, Mapping) or "recipe" not in content:
            raise ConfigurationError(
                f"{file} is not a study: it needs the key recipe, and may have {', '.join(k for k in known if k != 'recipe')}"
            )
        if unknown := [key for key in content if key not in known]:
            raise ConfigurationError(f"{file}: unknown key {unknown[0]!r}.{nearest(str(unknown[0]), known)} Keys: {', '.join(known)}.")
        given: dict[str, Any] = {"name": file.stem, **content, "file": str(file)}
        beside = file.parent / str(given["recipe"])
        given["recipe"] = str(beside if os.path.isfile(beside) else find_recipe(str(given["recipe"])))
        for key, convert in _READERS.items():
            if key in given:
                try:
                    given[key] = convert(given[key])
                except (TypeError, AttributeError, KeyError):
                    raise ConfigurationError(f"{file}: {key} must be as in {_EXAMPLES[key]}, but is {given[key]!r}") from None
        return read(cls, given, where=str(file), examples=_EXAMPLES)

    def margin(self, mean: float | None) -> float | None:
        """Return the smallest difference that matters beside a reference with this mean; None if that is not known."""
        if isinstance(self.min_effect, str):
            return None if mean is None else abs(mean) * float(self.min_effect.rstrip("%")) / 100
        return self.min_effect

    def with_seeds(self, *seeds: int) -> Self:
        """Return the study with more seeds; runs of the others stay as they are."""
        return replace(self, seeds=(*self.seeds, *(s for s in seeds if s not in self.seeds)))

    def expanded(self) -> list[Variant]:
        """Return every variant of the design; those that `exclude` names have the reason."""
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


def find_study(name: str) -> Path:
    """Return the file of a study: an existing path, or that of a study that comes with attnkit.

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
    "exclude": _excluded,
    "budget": Budget.read,
    "engine": read_engine,
}
"""The keys that a file writes in another form than Python."""

_EXAMPLES: Mapping[str, str] = {
    "metric": "val/loss",
    "set": "{trainer.max_epochs: 3}",
    "imports": "[my_package.my_module]",
    "retries": "{killed: 1}",
    "factors": "{model.stack.position: [none, rotary]}",
    "variants": "{deep: {model.stack.num_layers: 6}}",
    "seeds": "5 or [0, 1, 2]",
    "vary": f"[{', '.join(SEED_KINDS)}]",
    "exclude": "[{when: {position: none}, reason: measured already}]",
    "match": "{on: params, adjust: model.stack.feed_forward.ffn_dim}",
    "decide": "{power: 0.9, max_seeds: 20}",
    "effects": "[attention, attention at width, attention x width]",
    "budget": "{tokens: 2000000}",
    "tune": "{grid: {model.optimizer.lr: [3e-4, 1e-3]}, seeds: 2}",
    "engine": "{name: slurm, partition: gpu}",
    "published": "{source: PAPER, better: higher, rows: {VARIANT: {NAME THERE: 0.3}}}",
}
"""For messages."""
