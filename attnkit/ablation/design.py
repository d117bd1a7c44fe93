"""Designs: turn factors and their levels into the variants of a study and their references. Plain data, no torch."""

import math
import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, Literal

from attnkit.recipe import plain
from attnkit.registry import ConfigurationError, nearest

Design = Literal["one_factor", "full_factorial", "leave_one_out", "cumulative", "list"]
Choices = tuple[tuple[str, str], ...]  # the level of each factor, in the order of the factors
Levels = Mapping[str, Sequence[str]]  # the labels of each factor's levels; the baseline's first
MAX_VARIANTS = 10_000

ROOTS = ("model", "data", "trainer")  # the allowed first words of dotted override keys


@dataclass(frozen=True, kw_only=True)
class Level:
    """One setting of a factor: overrides by dotted key, in order; if empty, the recipe's own setting."""

    label: str
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> dict[str, Any]:
        """The settings that the label shows; empty if the study file gives the level its own label."""
        automatic = [_shown(self.overrides), *map(label, self.overrides.values())]
        return settings(self.overrides) if self.label in automatic else {}


@dataclass(frozen=True, kw_only=True)
class Factor:
    """A setting that a study varies."""

    name: str
    baseline: Level
    levels: tuple[Level, ...]

    @property
    def labels(self) -> list[str]:
        """The labels of its levels, the baseline's first."""
        return [self.baseline.label, *(level.label for level in self.levels)]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One composition of a study."""

    name: str  # unique in the study
    choices: Choices = ()  # the level of each factor
    overrides: Mapping[str, Any] = field(default_factory=dict)  # its changes to the recipe, by dotted key, in order
    reference: str | None = None  # the name of the variant that it is compared with
    excluded: str | None = None  # the study file's reason for leaving it out


def label(value: Any) -> str:
    """Return a value as tables show it.

    Example:
        >>> label({"name": "additive", "hidden_dim": 32}), label({"class_path": "my.Own"}), label(4), label(None)
        ('additive(hidden_dim=32)', 'my.Own', '4', 'none')
    """
    value = plain(value)
    if isinstance(value, Mapping):
        arguments = ", ".join(f"{k}={label(v)}" for k, v in value.items() if k != "name")
        return f"{value.get('name', '')}({arguments})" if arguments else str(value.get("name"))
    if isinstance(value, list):
        return f"[{', '.join(map(label, value))}]"
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def expand(design: Design, factors: Sequence[Factor], listed: Sequence[Variant] = ()) -> list[Variant]:
    """Return the variants of a design; the first is the baseline.

    - `one_factor`: the baseline, and each level of each factor alone.
    - `full_factorial`: every combination of levels, each against the baseline.
    - `leave_one_out`: all factors at their level, and all but one, each against all.
    - `cumulative`: one factor after another is set to its level and stays there, each step against the previous one.
    - `list`: the baseline and the variants listed in the file.

    Raises:
        ConfigurationError: A factor of `leave_one_out` or `cumulative` has several levels, or a factorial design too many variants.

    Example:
        >>> heads = Factor(name="heads", baseline=Level(label="2"), levels=(Level(label="4", overrides={"model.stack.num_heads": 4}),))
        >>> [v.name for v in expand("one_factor", [heads])]
        ['baseline', 'heads=4']
    """
    base = {f.name: f.baseline for f in factors}
    if design == "list":
        return [Variant(name="baseline"), *listed]
    if design in ("leave_one_out", "cumulative") and (many := [f.name for f in factors if len(f.levels) != 1]):
        raise ConfigurationError(
            f"the design {design} takes one level for each factor, but {many[0]!r} has several; use one_factor or full_factorial"
        )
    if design == "one_factor":
        return [_variant(base, base), *(_variant(base | {f.name: v}, base) for f in factors for v in f.levels)]
    if design == "full_factorial":
        if (count := math.prod(1 + len(f.levels) for f in factors)) > MAX_VARIANTS:
            raise ConfigurationError(
                f"the design full_factorial makes {count:,} variants of these factors; at most {MAX_VARIANTS:,} are allowed"
            )
        grid = product(*([f.baseline, *f.levels] for f in factors))
        return [_variant(dict(zip(base, levels, strict=True)), base) for levels in grid]
    on = {f.name: f.levels[0] for f in factors}
    if design == "leave_one_out":
        full = _variant(on, base, name="all")
        return [full, *(_variant(on | {f: base[f]}, base, name=f"all - {f}", reference="all") for f in base)]
    variants = [_variant(base, base)]
    for i, factor in enumerate(factors, 1):
        chosen = base | {f.name: f.levels[0] for f in factors[:i]}
        variants.append(_variant(chosen, base, name=f"+ {factor.name}={on[factor.name].label}", reference=variants[-1].name))
    return variants


def _variant(chosen: Mapping[str, Level], base: Mapping[str, Level], *, name: str | None = None, reference: str | None = None) -> Variant:
    changed = ", ".join(f"{f}={level.label}" for f, level in chosen.items() if level is not base[f])
    overrides = {key: value for level in chosen.values() for key, value in level.overrides.items()}
    if name is None:
        name, reference = changed or "baseline", "baseline" if changed else None
    return Variant(name=name, choices=tuple((f, v.label) for f, v in chosen.items()), overrides=overrides, reference=reference)


def parsed(effect: str, levels: Levels) -> tuple[str, str, str]:
    """Split an effect into its first factor, `at`, `x` or "", and its second factor; raise a `ConfigurationError` if it is invalid."""
    found = re.fullmatch(r"([\w-]+)(?: (at|x) ([\w-]+))?", effect.strip())
    if found is None:
        raise ConfigurationError(f"effects: {effect!r} must be FACTOR, FACTOR at FACTOR or FACTOR x FACTOR")
    first, word, second = found[1], found[2] or "", found[3] or ""
    for name in filter(None, (first, second)):
        if name not in levels:
            raise ConfigurationError(f"effects: no factor {name!r}.{nearest(name, list(levels))} Factors: {', '.join(levels)}.")
    if first == second:
        raise ConfigurationError(f"effects: {effect!r} names the same factor twice")
    return first, word, second


def default_effects(design: Design, factors: Sequence[Factor]) -> tuple[str, ...]:
    """Return the effects of a study that declares none: for a full factorial design, all main effects and two-factor interactions.

    Example:
        >>> default_effects("full_factorial", [Factor(name=n, baseline=Level(label="0"), levels=()) for n in ("norm", "depth")])
        ('norm', 'depth', 'norm x depth')
    """
    if design != "full_factorial" or len(factors) < 2:
        return ()
    names = [f.name for f in factors]
    return (*names, *(f"{a} x {b}" for a, b in combinations(names, 2)))


def read_factor(name: str, given: Any) -> Factor:
    """Read a factor of a study file.

    If `name` is a dotted key, a level is a value for it or a mapping of several dotted keys; if it is a plain word, every level is such a
    mapping. Levels are a list, or a mapping from labels to levels; the baseline is one level, or a mapping from one label to it.

    Example:
        >>> read_factor("model.stack.attention", ["additive", {"name": "additive", "hidden_dim": 8}]).levels[1].label
        'additive(hidden_dim=8)'
        >>> size = {"baseline": {"small": {"model.stack.d_model": 64}}, "levels": {"large": {"model.stack.d_model": 512}}}
        >>> read_factor("size", size).baseline
        Level(label='small', overrides={'model.stack.d_model': 64})
    """
    if not isinstance(given, Mapping) or "levels" not in given:
        given = {"levels": given}
    if unknown := [key for key in given if key not in ("baseline", "levels")]:
        raise ConfigurationError(f"factor {name!r} has no key {unknown[0]!r}.{nearest(unknown[0], ['baseline', 'levels'])}")
    levels = given["levels"]
    if not isinstance(levels, list | Mapping) or not levels:
        raise ConfigurationError(f"factor {name!r} needs levels: a list of values, or a mapping from labels to values")
    named = levels.items() if isinstance(levels, Mapping) else [(None, value) for value in levels]
    read = tuple(_level(name, value, title if title is None else name_of(title)) for title, value in named)
    if twice := [v.label for i, v in enumerate(read) if v.label in [w.label for w in read[:i]]]:
        raise ConfigurationError(f"factor {name!r} has the level {twice[0]!r} twice")
    short = name.rpartition(".")[2]
    if not re.fullmatch(r"[\w-]{1,100}", short):
        raise ConfigurationError(f"factor {name!r}: names must be 1 to 100 letters, digits, '-' and '_', because they name figures")
    baseline = Level(label="baseline")
    if "baseline" in given:
        named = given["baseline"]
        labelled = isinstance(named, Mapping) and len(named) == 1 and all(isinstance(v, Mapping) and "." not in k for k, v in named.items())
        title, value = next(iter(named.items())) if labelled else (None, named)
        baseline = _level(name, value, title)
    if baseline.label in [v.label for v in read]:
        raise ConfigurationError(f"factor {name!r} lists its baseline {baseline.label!r} among its levels: remove it from them")
    return Factor(name=short, baseline=baseline, levels=read)


def name_of(key: Any) -> str:
    """Return a key of a study file as a name; raise if it is no word or number. (`read_yaml` refuses numbers written in another way.)"""
    if not isinstance(key, str | int | float):
        raise ConfigurationError(f"{key!r} cannot be a name as it is; put the name in quotation marks, as in '1e-3'")
    return str(key)


def _level(name: str, value: Any, title: str | None = None) -> Level:
    if isinstance(value, Mapping) and value and all("." in str(key) for key in value):
        overrides = dict(value)
        title = title or _shown(overrides)
    elif "." in name:
        overrides = {name: value}
    else:
        raise ConfigurationError(
            f"factor {name!r} is not a dotted key, so each of its levels must be a mapping of dotted keys, as in "
            f"{{model.stack.norm: rms_norm}}, but one is {value!r}"
        )
    check_keys(*overrides)
    return Level(label=title or label(value), overrides=overrides)


def flat(value: Any, path: str = "") -> dict[str, Any]:
    """Return the leaves of nested mappings by dotted path.

    Example:
        >>> flat({"stack": {"name": "encoder", "d_model": 8}})
        {'stack.name': 'encoder', 'stack.d_model': 8}
    """
    if not isinstance(value, Mapping):
        return {path: value}
    return {k: v for key, item in value.items() for k, v in flat(item, f"{path}.{key}".lstrip(".")).items()}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the differences between two complete recipes: both values by dotted path, with `...` where a recipe has none."""
    a, b = flat(ours), flat(theirs)
    return {key: (a.get(key, ...), b.get(key, ...)) for key in [*a, *(k for k in b if k not in a)] if a.get(key, ...) != b.get(key, ...)}


def settings(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return the individual settings of overrides by dotted key; the setting of a component itself is its name.

    Example:
        >>> settings({"model.stack.attention": "additive"})
        {'model.stack.attention': 'additive'}
        >>> settings({"model.stack.attention": {"class_path": "additive", "init_args": {"hidden_dim": 8}}})
        {'model.stack.attention': 'additive', 'model.stack.attention.hidden_dim': 8}
    """
    found = {key.replace(".init_args.", "."): plain(value) for key, value in overrides.items()}
    return {f"{key}.{leaf}".rstrip(".").removesuffix(".name"): v for key, value in found.items() for leaf, v in flat(value).items()}


def refuse_shown(factors: Iterable[Factor], keys: Container[Any], *, by: str) -> None:
    """Raise if a level's label shows a value of one of the `keys`, which the study's section `by` replaces: the label would be wrong."""
    for factor in factors:
        for level in (factor.baseline, *factor.levels):
            if shown := [key for key in level.shown if key in keys]:
                raise ConfigurationError(
                    f"{by} replaces {shown[0]}, which the label of {factor.name}={level.label} shows: remove it from the level, or "
                    "give the level a label, as in levels: {LABEL: VALUE}"
                )


def _shown(overrides: Mapping[str, Any]) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={label(value)}" for key, value in overrides.items())


def check_keys(*keys: str) -> None:
    """Raise if a dotted key does not start with a section of a recipe. The rest is checked later, against signatures.

    Example:
        >>> check_keys("modle.stack.norm")
        Traceback (most recent call last):
        ...
        attnkit.registry.errors.ConfigurationError: unknown key 'modle.stack.norm'. Did you mean 'model'? Keys begin with: model, ...
    """
    for key in keys:
        root = str(key).partition(".")[0]
        if root not in ROOTS:
            raise ConfigurationError(f"unknown key {key!r}.{nearest(root, ROOTS)} Keys begin with: {', '.join(ROOTS)}.")
