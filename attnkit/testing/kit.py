"""The rules of each family, as checks to run."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest import SkipTest

import torch

from attnkit.registry import FAMILIES, ConfigurationError, Registry, Spec, attentions, mixers, nearest, positions, stacks
from attnkit.testing import attention, component, effects, mixer, position, stack, tokenwise, transformer

Rule = Callable[[Registry, Spec], None]

RULES: dict[str, tuple[Rule, ...]] = {
    "attentions": (*component.RULES, *attention.RULES, effects.no_argument_is_silent),
    "normalizers": (*component.RULES, *attention.RULES, effects.no_argument_is_silent),
    "backends": attention.BACKEND_RULES,
    "mixers": (*component.RULES, effects.no_argument_is_silent),
    "positions": (*component.RULES, *position.RULES, effects.no_argument_is_silent),
    "rotary_scalings": (*position.SCALING_RULES, effects.no_argument_is_silent),
    "norms": (*component.RULES, *tokenwise.RULES, effects.no_argument_is_silent),
    "feed_forwards": (*component.RULES, *tokenwise.RULES, effects.no_argument_is_silent),
    "residuals": (*component.RULES, *tokenwise.RULES, effects.no_argument_is_silent),
    "embeddings": (*component.RULES, *tokenwise.RULES, *tokenwise.EMBEDDING_RULES, effects.no_argument_is_silent),
    "stacks": (*component.RULES, *stack.RULES),
    "heads": (*component.RULES, effects.no_argument_is_silent),
    "multi_tokens": (*component.RULES, effects.no_argument_is_silent),
    "inits": (effects.no_argument_is_silent,),
}
"""The behavioural rules of each family, by the name of its registry. A rule has the name of its function."""


@dataclass(frozen=True)
class Check:
    """One rule for one component.

    Attributes:
        name: The rule, and the combination in which it is checked.
        run: Raises if the rule is broken.
    """

    name: str
    run: Callable[[], None]

    def __call__(self, seed: int | None = None) -> None:
        """Run the check on random inputs from a seed (default: torch's initial seed). The caller's random state is not affected.

        Raises:
            AssertionError: The rule is broken; the message says how, and which seed reproduces it.
            unittest.SkipTest: The rule cannot be checked on this machine; the message says why.
        """
        with torch.random.fork_rng(devices=[]):
            seed = torch.initial_seed() % 2**32 if seed is None else seed
            torch.manual_seed(seed)
            try:
                self.run()
            except SkipTest:
                raise
            except Exception as error:  # a crash also breaks the rule
                kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
                raise AssertionError(f"{self.name}: {kind}{error}\nTo repeat it: check(seed={seed})") from error


def checks_for(family: str, spec: Spec, *, docs: bool = False) -> list[Check]:
    """Return the checks of one component.

    Args:
        family: The name of its registry in `attnkit`, such as `"attentions"`.
        spec: Its name, or a mapping with name and arguments.
        docs: Whether to check its documentation instead of its behaviour.

    Raises:
        ConfigurationError: There is no such family or component, or it has no rules.

    Example:
        >>> checks = checks_for("norms", "rms_norm")
        >>> for check in checks:
        ...     check()
    """
    registry = _registry(family)
    registry.resolve(component.complete(registry, spec))
    checks = [Check(rule.__name__, partial(rule, registry, spec)) for rule in (component.DOCS_RULES if docs else RULES[family])]
    if docs:
        return checks
    if registry is stacks:
        for slot, filled in optional_slots(registry, spec):
            checks += [Check(f"{rule.__name__}[{slot}]", partial(rule, registry, filled)) for rule in stack.RULES]
    if registry is mixers:
        return checks + [Check(name, partial(rule, spec)) for name, rule in mixer.rules_for(spec)]
    others = {attentions: positions, positions: attentions}.get(registry)
    if others is None:
        return checks
    for other in others:
        options = {registry.family: spec, others.family: other}
        for mask, rules in transformer.RULES.items():
            for rule in rules if transformer.is_legal(**options, mask=mask) else (transformer.is_refused,):
                checks.append(Check(f"{rule.__name__}[{other}-{mask}]", partial(rule, options, mask)))
    return checks


def _registry(family: str) -> Registry:
    if family not in RULES:
        raise ConfigurationError(f"no rules for the family {family!r}.{nearest(family, RULES)} Families: {', '.join(RULES)}.")
    return next(f for f in FAMILIES if f.attribute == family)


def optional_slots(registry: Registry, spec: Spec) -> Iterator[tuple[str, Spec]]:
    """Yield each empty optional slot of a spec, and the spec with the slot filled by the first name that needs no arguments.

    Example:
        >>> [slot for slot, _ in optional_slots(stacks, "encoder_decoder")]
        ['query_key_norm', 'cross_attention']
    """
    name, arguments = registry.split(spec)
    for argument in registry.arguments(name):
        slot = argument.registry
        if slot is None or argument.default is not None or argument.name in arguments:
            continue
        complete = next((n for n in slot.names() if not any(a.required for a in slot.arguments(n))), None)
        if complete is not None:
            yield argument.name, {"name": name, **arguments, argument.name: complete}


def parametrize(family: str, *specs: Spec, docs: bool = False) -> Any:
    """Return a pytest decorator that parametrizes the argument `check` of a test with each check of each component.

    Args:
        family: The name of their registry in `attnkit`.
        *specs: The components (none: all registered ones).
        docs: Whether to check their documentation instead of their behaviour.
    """
    import pytest  # `attnkit check` does not need pytest

    chosen: tuple[Spec, ...] = specs or tuple(_registry(family))
    named: list[tuple[str, Check]] = [
        (spec if isinstance(spec, str) else str(spec["name"]), check) for spec in chosen for check in checks_for(family, spec, docs=docs)
    ]
    return pytest.mark.parametrize("check", [check for _, check in named], ids=[f"{name}-{check.name}" for name, check in named])
