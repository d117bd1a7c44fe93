"""The content of a study file: the recipe, what is varied, the seeds, and the smallest difference that matters. No torch."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, Literal, Self, get_args

from attnkit.ablation.design import Design, Factor, Variant, check_keys, default_effects, expand, parsed, settings
from attnkit.ablation.sections import Decide, Match, Published, ScaleSection, TaskSection, Tune
from attnkit.ablation.study_file import EXAMPLES, content_of, find_study
from attnkit.files import read_text
from attnkit.recipe import MAX_BYTES, read_yaml
from attnkit.registry import ConfigurationError, module_names, nearest, require_at_least
from attnkit.worker.budget import Budget
from attnkit.worker.launch import read_engine
from attnkit.worker.records import check, read

REPLACED = "replaced"
FOLDERS = ("runs", "inspections", "probes", "reproduced", REPLACED)
"""Folders next to those of studies, whose names no study may have."""

SeedKind = Literal["initialisation", "data", "dropout"]
SEED_KINDS: tuple[SeedKind, ...] = get_args(SeedKind)

SEEDS = (0, 1, 2, 3, 4)  # default seeds
FAILURES = ("error", "killed", "timeout", "out_of_memory", "configuration", "disk_full")  # the kinds of failure
OUTCOMES = {"error": "with an error", "out_of_memory": "for lack of memory"}
"""The kinds of failure that may be due to the variant, not to the machine or its load, in words."""


@dataclass(frozen=True, kw_only=True)
class StudySpec:
    """The content of a study file, which `Study` plans and runs.

    Args:
        name: The name of the study and its results folder.
        recipe: The path of the recipe to vary, or the short name of one that comes with attnkit.
        metric: The metric that decides, as logged: `val/loss`, `test/sequence_error_rate`. `test/...` is measured after training.
        better: Whether lower or higher is better; a file may omit it if the metric's name implies that lower is better.
        quantile: The quantile of the metric over seeds to compare, counted from the best run; None: compare means.
        factors: The settings to vary.
        design: How factors are combined; see `attnkit.ablation.design.expand`.
        variants: The variants of the design `list`.
        seeds: The seeds; each variant has one run per seed.
        vary: The kinds of seed that differ between runs: initialisation, data, dropout. The others stay those of the first run.
        min_effect: The smallest difference of the metric that matters: a number, or a percentage of the reference's mean such as `2%`.
        alpha: The probability of any false verdict.
        resolution: The smallest step of the metric; None: one example or token if the runs recorded how many there are, else single
            precision.
        effects: The effects that a full factorial design estimates; see `attnkit.ablation.contrasts.contrasts`. Empty: all main effects and
            two-factor interactions.
        compare: Pairs of variants, by name, to compare in addition; they join the family of the design's own contrasts.
        decide: How seeds are added until every effect is decided; None: `seeds` are fixed.
        exclude: Combinations to leave out: levels by factor, and the reason.
        set: Overrides of the recipe in all variants, by dotted key.
        imports: Modules that the study's processes import first, because they register components or define the user's classes.
        match: How variants are made equal in size; None: they are not.
        budget: The budget of every run; None: that of the recipe's trainer.
        tune: The settings to tune for every variant; None: no tuning.
        timeout: Seconds after which a run is stopped; None: no limit.
        retries: How often a run is restarted automatically, by kind of failure.
        count_as_diverged: The kinds of failure, `error` and `out_of_memory`, that are outcomes: a run that fails so in training, and has
            no retries left, counts as diverged.
        engine: Where runs are executed; see `attnkit.worker.launch.read_engine`.
        threads: CPU threads per run; the last digits of results depend on it.
        accept_code: The reason why finished runs count although code, packages, data or the processor have changed since; None: they do
            not count.
        lengths: The side, `source` or `target`, by whose length the report breaks down the metric; None: no breakdown.
        published: A published table to compare with.
        tasks: Several tasks, by name; see `attnkit.ablation.cells`.
        scales: Several sizes, by name; see `attnkit.ablation.cells`.
        file: The path of the study file, as given by the user.

    Raises:
        ConfigurationError: A setting is wrong or missing.
    """

    name: str
    recipe: str
    metric: str = "val/loss"
    better: Literal["lower", "higher"] = "lower"
    quantile: float | None = None
    factors: tuple[Factor, ...] = ()
    design: Design = "one_factor"
    variants: tuple[Variant, ...] = ()
    seeds: tuple[int, ...] = SEEDS
    vary: tuple[SeedKind, ...] = SEED_KINDS
    min_effect: float | str | None = None
    alpha: float = 0.05
    resolution: float | None = None
    effects: tuple[str, ...] = ()
    compare: tuple[tuple[str, str], ...] = ()
    decide: Decide | None = None
    exclude: tuple[tuple[Mapping[str, str], str], ...] = ()
    set: Mapping[str, Any] = field(default_factory=dict)
    imports: tuple[str, ...] = ()
    match: Match | None = None
    budget: Budget | None = None
    tune: Tune | None = None
    timeout: float | None = None
    retries: Mapping[str, int] = field(default_factory=lambda: {"killed": 1})
    count_as_diverged: tuple[str, ...] = ()
    engine: Mapping[str, Any] = field(default_factory=lambda: {"name": "local"})
    threads: int = 1
    accept_code: str | None = None
    lengths: Literal["source", "target"] | None = None
    published: Published | None = None
    tasks: Mapping[str, TaskSection] = field(default_factory=dict)
    scales: Mapping[str, ScaleSection] = field(default_factory=dict)
    file: str | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check(self, where="study")
        if not re.fullmatch(r"\w[\w.-]{0,99}", self.name) or self.name in FOLDERS:
            raise ConfigurationError(
                f"name: {self.name!r} cannot name a results folder; use at most 100 letters, digits, '-', '_' and '.', starting with a "
                f"letter, a digit or '_', and none of {', '.join(FOLDERS)}; without a key `name`, the file's name is used"
            )
        if self.decide is not None:
            if self.seeds not in (SEEDS, planned := tuple(range(self.decide.max_seeds))):
                raise ConfigurationError("seeds: decide adds seeds up to max_seeds; remove seeds, or decide")
            object.__setattr__(self, "seeds", planned)
        if self.effects and self.design != "full_factorial":
            raise ConfigurationError(f"effects: only the design full_factorial has effects, but the design is {self.design}")
        for effect in self.effects:
            parsed(effect, {f.name: () for f in self.factors})
        if itself := [a for a, b in self.compare if a == b]:
            raise ConfigurationError(f"compare: {itself[0]!r} cannot be compared with itself")
        if self.resolution is not None and self.resolution <= 0:
            raise ConfigurationError(f"resolution must be above 0, but is {self.resolution}")
        if len(set(self.seeds)) != len(self.seeds):
            raise ConfigurationError(f"seeds: {list(self.seeds)} lists a seed twice")
        if len(self.seeds) < 2:
            raise ConfigurationError(
                f"seeds: a study needs at least 2, but has {len(self.seeds)}: from one run, a difference cannot be told from chance. "
                f"5 seeds show differences of 1.7 standard deviations or more, 10 seeds those of 1.0."
            )
        if isinstance(self.min_effect, str) and not re.fullmatch(r"\d+(\.\d+)?%", self.min_effect):
            raise ConfigurationError(f"min_effect must be a number or a percentage, as in 0.02 or '2%', but is {self.min_effect!r}")
        if self.min_effect is not None and float(str(self.min_effect).rstrip("%")) <= 0:
            raise ConfigurationError(f"min_effect must be above 0, but is {self.min_effect}")
        require_at_least(1, threads=self.threads)
        if self.timeout is not None and self.timeout <= 0:
            raise ConfigurationError(f"timeout must be a number of seconds above 0, but is {self.timeout}; omit it for no limit")
        for kind, times in self.retries.items():
            if kind not in FAILURES:
                raise ConfigurationError(f"retries: no kind of failure {kind!r}.{nearest(kind, FAILURES)} Kinds: {', '.join(FAILURES)}.")
            if times < 0:
                raise ConfigurationError(f"retries: {kind} must be at least 0, but is {times}")
        if other_kinds := [kind for kind in self.count_as_diverged if kind not in OUTCOMES]:
            raise ConfigurationError(
                f"count_as_diverged: only {' and '.join(OUTCOMES)} can be outcomes, but it has {other_kinds[0]!r}: other failures are due "
                "to the machine, its load or the settings, so such runs must be repeated; to compare slow variants, set a budget of seconds"
            )
        if not 0 < self.alpha < 1:
            raise ConfigurationError(f"alpha must be between 0 and 1, but is {self.alpha}")
        if not self.vary:
            raise ConfigurationError("vary: at least one kind of seed must differ between runs, or all runs of a variant are the same")
        if len({f.name for f in self.factors}) < len(self.factors):
            raise ConfigurationError(
                "factors: two keys end in the same word; replace one of them with a plain word whose levels set dotted keys"
            )
        needed, other = ("variants", "factors") if self.design == "list" else ("factors", "variants")
        if not getattr(self, needed):
            raise ConfigurationError(f"the design {self.design} needs {needed}")
        if getattr(self, other):
            raise ConfigurationError(f"{other}: the design {self.design} has {needed}, not {other}: remove them, or choose another design")
        check_keys(*self.set)
        self._check_quantile()
        self._check_cells()
        module_names(self.imports)
        read_engine(self.engine)
        if self.tune is not None and (self.tune.metric or self.metric).startswith("test/"):
            raise ConfigurationError("tune: tuning on the test data would make them worthless; add metric: val/... to tune")
        if self.tune is not None and self.tune.better is None and _name(self.tune.metric or self.metric) != self.metric_name:
            raise ConfigurationError(f"tune: {self.tune.metric} is not the study's metric: add better: lower or higher to tune")

    def _check_quantile(self) -> None:
        if self.quantile is None:
            return
        if not 0 < self.quantile < 1:
            raise ConfigurationError(
                f"quantile must be between 0 and 1, but is {self.quantile}: 0.5 is the median, 0.9 is what nine in ten runs reach"
            )
        reasons = {
            "decide": "looks are planned for t tests of means, and early looks have too few seeds for a quantile; set seeds",
            "tasks": "aggregates over tasks compare means; compare quantiles in a study of each task",
            "scales": "aggregates over sizes compare means; compare quantiles in a study of each size",
            "published": "published tables have means",
            "resolution": "intervals of quantiles do not need it",
        }
        if given := [key for key in reasons if getattr(self, key)]:
            raise ConfigurationError(f"{given[0]} cannot be combined with quantile: {reasons[given[0]]}")
        effects = self.effects or default_effects(self.design, self.factors)
        if mixed := [effect for effect in effects if " x " in effect]:
            raise ConfigurationError(
                f"effects: {mixed[0]!r} is an interaction, which is defined for means but not for quantiles; list other effects"
            )

    def _check_cells(self) -> None:
        if wrong := [name for name in (*self.tasks, *self.scales) if not re.fullmatch(r"\w[\w-]*", name)]:
            raise ConfigurationError(f"tasks, scales: {wrong[0]!r} may only contain letters, digits, '-' and '_', as it names a folder")
        if len({scale.at for scale in self.scales.values()}) < len(self.scales) or len(self.scales) == 1:
            raise ConfigurationError("scales: a slope needs at least two sizes with different numbers `at`")
        other = [name for name, task in self.tasks.items() if task.metric and not task.better and _name(task.metric) != self.metric_name]
        if other:
            raise ConfigurationError(f"tasks: the metric of {other[0]} is not the study's: add better: lower or higher to it")
        for name, task in self.tasks.items():
            other_unit = _name(task.metric or self.metric) != self.metric_name
            for key, value in (("min_effect", self.min_effect), ("resolution", self.resolution)):
                if other_unit and isinstance(value, int | float) and getattr(task, key) is None:
                    raise ConfigurationError(
                        f"tasks: {key}: {value:g} is in units of {self.metric}, but the metric of {name} is {task.metric}: add {key} to it"
                        + (", or use a percentage for all" if key == "min_effect" else ", or leave it out of the study and give it by task")
                    )
        for (name, task), (size, scale) in product(self.tasks.items(), self.scales.items()):
            small, given = settings(scale.set), settings(task.set)
            if lost := [key for key in given if small.get(key, given[key]) != given[key]]:
                raise ConfigurationError(
                    f"scales: {size} replaces {lost[0]} of the task {name}, which would have no effect: remove one of the two"
                )
        if (self.tasks or self.scales) and self.decide is not None:
            raise ConfigurationError(
                "decide: with tasks or scales, the number of seeds is fixed, because aggregates need the same seeds everywhere"
            )
        if (self.tasks or self.scales) and self.published is not None:
            raise ConfigurationError("published: a comparison with a published table needs a single task and size; remove tasks and scales")

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read a study file, given by its path or by the short name of one that comes with attnkit, such as `ablations/attention`."""
        file = find_study(str(path))
        return replace(cls.from_dict(read_yaml(read_text(file, limit=MAX_BYTES), where=str(file)), file=file), file=str(path))

    @classmethod
    def from_dict(cls, content: Any, *, file: Path) -> Self:
        """Return the study described by the content of a file; its default name and where to look for its recipe come from `file`."""
        known = [f.name for f in fields(cls) if f.name != "file"]
        return read(cls, content_of(content, file=file, known=known), where=str(file), examples=EXAMPLES)

    @property
    def pairs(self) -> dict[str, tuple[str, str]]:
        """The sides of each pair of `compare` in words, by the name of its contrast; an effect may have the name of a variant."""
        words = "the variant " if self.design == "full_factorial" else ""
        return {f"{a} vs {b}": (f"{words}{a}", f"{words}{b}") for a, b in self.compare}

    def side(self, contrast: str) -> str:
        """Return the side of a contrast that is compared with its reference; only for `compare` it is not the contrast's name."""
        return self.pairs.get(contrast, (contrast,))[0]

    @property
    def metric_name(self) -> str:
        """The name of the metric, without its split: `loss` of `val/loss`."""
        return _name(self.metric)

    @property
    def quantity(self) -> str:
        """The compared quantity, in words."""
        return self.metric if self.quantile is None else f"{self.quantile:g} quantile of {self.metric}"

    def counted(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the state of a run as the study counts it: `diverged` if it failed in training as in `count_as_diverged`.

        Example:
            >>> study = StudySpec(name="s", recipe="r", design="list", variants=(Variant(name="a"),), count_as_diverged=("error",))
            >>> study.counted({"status": "failed", "kind": "error", "in_training": True})
            {'status': 'diverged', 'kind': 'error', 'in_training': True}
            >>> study.counted({"status": "failed", "kind": "error"})["status"]
            'failed'
        """
        is_outcome = is_possible_outcome(state) and state["kind"] in self.count_as_diverged
        return {**state, "status": "diverged"} if is_outcome else dict(state)

    def with_seeds(self, *seeds: int) -> Self:
        """Return the study with additional seeds; the runs of the existing seeds stay the same."""
        return replace(self, seeds=(*self.seeds, *(s for s in seeds if s not in self.seeds)))

    def expanded(self) -> list[Variant]:
        """Return every variant of the design; those excluded carry the reason."""
        variants = expand(self.design, self.factors, self.variants)
        known = {f.name: f.labels for f in self.factors}
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
        if blank := [name for name in names if not name.strip()]:
            raise ConfigurationError(f"variants: the blank name {blank[0]!r} would be invisible in tables; give the variant another name")
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ConfigurationError(f"factors: two variants would be named {twice[0]!r}: give their levels other labels")
        if unknown := [name for name in (self.published.rows if self.published else ()) if name not in names]:
            raise ConfigurationError(f"published: no variant {unknown[0]!r}.{nearest(unknown[0], names)} Variants: {'; '.join(names)}.")
        found = [replace(v, excluded=next((why for levels, why in self.exclude if levels.items() <= {*v.choices}), None)) for v in variants]
        for name in (name for pair in self.compare for name in pair):
            if name not in names:
                raise ConfigurationError(f"compare: no variant {name!r}.{nearest(name, names)} Variants: {'; '.join(names)}.")
        return found


def is_possible_outcome(state: Mapping[str, Any]) -> bool:
    """Return whether a run failed in training in a way that a study can declare to be an outcome."""
    return state["status"] == "failed" and state.get("in_training") is True and state.get("kind") in OUTCOMES


def _name(metric: str) -> str:
    return metric.partition("/")[2]
