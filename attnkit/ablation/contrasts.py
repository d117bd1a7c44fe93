"""The contrasts of a study: differences of variants, main and simple effects, interactions. They form one family, over all runs."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

from attnkit.ablation.design import Choices, Factor, Levels, Variant, default_effects, parsed
from attnkit.ablation.plan import StoredPlan
from attnkit.ablation.spec import StudySpec
from attnkit.registry import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A weighted sum of variants, seed by seed."""

    name: str  # the name of the side with positive weights
    reference: str  # the name of the other side
    weights: Mapping[str, float]  # by variant
    kind: Literal["difference", "interaction"] = "difference"  # for an interaction, neither sign is better

    def compares(self, a: str, b: str) -> bool:
        """Whether this is the difference of these two variants, in either direction."""
        return self.weights in ({a: 1.0, b: -1.0}, {a: -1.0, b: 1.0})

    def by_run(self, keys: Mapping[tuple[str, int], str], seed: int) -> dict[str, float]:
        """Return the weight of each run of a seed, by key; empty if both sides have the same runs."""
        weights = defaultdict[str, float](float)
        for name, weight in self.weights.items():
            weights[keys[name, seed]] += weight
        return {key: round(weight, 9) for key, weight in weights.items() if round(weight, 9)}


def family(study: StudySpec, plan: StoredPlan) -> dict[str, Contrast]:
    """Return a study's contrasts by name: one family. Contrasts of runs with themselves are not hypotheses and are left out."""
    keys, seed = plan.key_by_variant, plan.runs[0].seed
    return {c.name: c for c in declared(study, plan) if c.by_run(keys, seed)}


def declared(study: StudySpec, plan: StoredPlan) -> list[Contrast]:
    """Return the contrasts of a study's design and of `compare`, even if both sides have the same runs.

    Raises:
        ConfigurationError: A contrast is invalid or declared twice; see `contrasts`.
    """
    left_out = inestimable(study, plan)
    defaults = [effect for effect in default_effects(study.design, study.factors) if effect not in left_out]
    if left_out and not defaults:
        raise ConfigurationError(
            f"effects: none of {', '.join(map(repr, left_out))} can be estimated, as variants are left out; leave out fewer, or list the "
            "variants with the design list"
        )
    found = contrasts(plan.variants, study.factors, study.effects or defaults)
    for a, b in study.compare:
        name = f"{a} vs {b}"
        if same := [c for c in found if c.compares(a, b)]:
            raise ConfigurationError(f"compare: {a!r} and {b!r} are compared already, by the contrast {same[0].name!r}: remove the pair")
        if name in {c.name for c in found}:
            raise ConfigurationError(f"compare: two contrasts would be named {name!r}: give a variant or a level another name")
        found.append(Contrast(name=name, reference=study.pairs[name][1], weights={a: 1.0, b: -1.0}))
    return found


def inestimable(study: StudySpec, plan: StoredPlan) -> list[str]:
    """Return the default effects of a study's design that cannot be estimated, since the variants they compare are left out."""
    defaults = () if study.effects else default_effects(study.design, study.factors)
    return [effect for effect in defaults if not _contrasts_of(effect, plan.variants, study.factors)]


def contrasts(variants: Sequence[Variant], factors: Sequence[Factor], effects: Sequence[str]) -> list[Contrast]:
    """Return the contrasts of a design: the declared effects or, if there are none, each variant against its reference.

    An effect is written in terms of factor names:

    - `attention`: the main effect of each level against the baseline's, averaged over the levels of all other factors;
    - `attention at width`: the simple effects, at each level of width;
    - `attention x width`: the interaction of each pair of levels: how much the joint effect exceeds the sum of the two effects.

    Averages are over the levels of the other factors at which all variants involved exist, so that both sides average over the same levels.

    Raises:
        ConfigurationError: An effect names an unknown factor or cannot be estimated from the variants, or two contrasts share a name.

    Example:
        >>> from attnkit.ablation.design import Level, expand
        >>> two = [Factor(name=n, baseline=Level(label="0"), levels=(Level(label="1", overrides={f"model.{n}": 1}),)) for n in "ab"]
        >>> for c in contrasts(expand("full_factorial", two), two, ["a", "a at b", "a x b"]):
        ...     print(c.name, "-", c.reference, dict(c.weights))
        a=1 - a=0 {'a=1': 0.5, 'baseline': -0.5, 'a=1, b=1': 0.5, 'b=1': -0.5}
        a=1 at b=0 - a=0 at b=0 {'a=1': 1.0, 'baseline': -1.0}
        a=1 at b=1 - a=0 at b=1 {'a=1, b=1': 1.0, 'b=1': -1.0}
        a=1 x b=1 - none {'a=1, b=1': 1.0, 'a=1': -1.0, 'b=1': -1.0, 'baseline': 1.0}
    """
    if not effects:
        return [Contrast(name=v.name, reference=v.reference, weights={v.name: 1.0, v.reference: -1.0}) for v in variants if v.reference]
    found = []
    for effect in effects:
        if not (these := _contrasts_of(effect, variants, factors)):
            raise ConfigurationError(f"effects: {effect!r} cannot be estimated: the variants it compares are left out")
        found += these
    if twice := [name for name, count in Counter(c.name for c in found).items() if count > 1]:
        raise ConfigurationError(f"effects: two contrasts would be named {twice[0]!r}: list each effect once, or give levels other labels")
    return found


def _contrasts_of(effect: str, variants: Sequence[Variant], factors: Sequence[Factor]) -> list[Contrast]:
    levels = {f.name: f.labels for f in factors}
    names = {v.choices: v.name for v in variants}
    first, word, second = parsed(effect, levels)
    return _interactions(names, levels, first, second) if word == "x" else _differences(names, levels, first, second)


def _differences(names: Mapping[Choices, str], levels: Levels, factor: str, at: str) -> list[Contrast]:
    found = []
    for context, level in product(levels[at] if at else [""], levels[factor][1:]):
        cells = [cell for cell in names if not at or (at, context) in cell]
        pairs = _complete(cells, {factor: (level, levels[factor][0])})
        where = f" at {at}={context}" if at else _only(pairs, cells, factor)
        weights = {names[cell]: (1.0 if (factor, level) in cell else -1.0) / len(pairs) for pair in pairs for cell in pair}
        if pairs:
            found.append(Contrast(name=f"{factor}={level}{where}", reference=f"{factor}={levels[factor][0]}{where}", weights=weights))
    return found


def _interactions(names: Mapping[Choices, str], levels: Levels, first: str, second: str) -> list[Contrast]:
    found = []
    for a, b in product(levels[first][1:], levels[second][1:]):
        fours = _complete(list(names), {first: (a, levels[first][0]), second: (b, levels[second][0])})
        if fours:
            same = {cell: ((first, a) in cell) == ((second, b) in cell) for four in fours for cell in four}
            weights = {names[cell]: (1.0 if alike else -1.0) / len(fours) for cell, alike in same.items()}
            found.append(Contrast(name=f"{first}={a} x {second}={b}", reference="none", weights=weights, kind="interaction"))
    return found


def _complete(cells: Iterable[Choices], pairs: Mapping[str, tuple[str, str]]) -> list[list[Choices]]:
    """Return, for every context in which all of them exist, the combinations of each factor's two levels, first levels first."""
    concerned = [cell for cell in cells if all(dict(cell)[factor] in two for factor, two in pairs.items())]
    groups = [group for group in _by_context(concerned, pairs).values() if len(group) == 2 ** len(pairs)]
    return [sorted(group, key=lambda cell: [two.index(dict(cell)[factor]) for factor, two in pairs.items()]) for group in groups]


def _only(pairs: Sequence[Sequence[Choices]], cells: Sequence[Choices], factor: str) -> str:
    """Return the levels that a main effect is restricted to, as text; empty if it is over all levels of the other factors."""
    parts = []
    for other in dict(cells[0]):
        used, known = ({dict(cell)[other]: None for cell in some} for some in ([c for pair in pairs for c in pair], cells))
        if other != factor and len(used) < len(known):
            parts.append(f"{other}={'|'.join(used)}")
    return f" where {', '.join(parts)}" if parts else ""


def balanced(cells: Iterable[Choices], factors: Collection[str]) -> list[Choices]:
    """Return the combinations of levels over which the means of two factors' levels are comparable.

    If some combinations do not exist, means of two levels could average over different levels of the other factors. Therefore only the
    levels of the other factors at which the most combinations of the two exist are kept.

    Example:
        >>> cells = [(("a", a), ("b", b), ("c", c)) for a in "01" for b in "01" for c in "01" if (b, c) != ("1", "1")]
        >>> sorted({dict(cell)["c"] for cell in balanced(cells, ("a", "b"))})
        ['0']
    """
    contexts = list(_by_context(cells, factors).values())
    most = max(map(len, contexts), default=0)
    return [cell for context in contexts if len(context) == most for cell in context]


def _by_context(cells: Iterable[Choices], factors: Collection[str]) -> dict[Choices, list[Choices]]:
    """Group combinations of levels by the levels of all other factors."""
    contexts: dict[Choices, list[Choices]] = {}
    for choices in cells:
        others = tuple((factor, level) for factor, level in choices if factor not in factors)
        contexts.setdefault(others, []).append(choices)
    return contexts
