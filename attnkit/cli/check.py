"""`attnkit check`: the conformance kit on the command line."""

from collections.abc import Sequence
from unittest import SkipTest

from attnkit.cli.components import find_component
from attnkit.registry import FAMILIES
from attnkit.testing import checks_for
from attnkit.testing.combinations import check_combinations
from attnkit.testing.kit import RULES


def check(names: Sequence[str], *, docs: bool) -> bool:
    """Run the kit on components such as `additive` (none: all), or on their `docs`; print each check and return whether all passed."""
    everything = [(registry, name) for registry in FAMILIES if registry.attribute in RULES for name in registry]
    chosen = [find_component(name) for name in names] or everything
    passed = failures = 0
    for registry, name in chosen:
        for rule in checks_for(registry.attribute, name, docs=docs):
            try:
                rule()
            except SkipTest as reason:
                print(f"skipped {registry.family}.{name}: {rule.name}: {reason}", flush=True)
            except AssertionError as error:
                failures += 1
                print(f"FAILED  {registry.family}.{name}: {error}", flush=True)
            else:
                passed += 1
                print(f"ok      {registry.family}.{name}: {rule.name}", flush=True)
    print(f"{passed} of {passed + failures} checks passed")
    combinations_are_right = bool(names) or docs or _check_combinations()
    return failures == 0 and combinations_are_right


def _check_combinations() -> bool:
    """Check all combinations of components, print how many are legal, and return whether all are right."""
    print("combinations of stack, mixer, normalizer, position and residual (takes minutes) ...", flush=True)
    found = check_combinations()
    for failure in found.failures:
        print(f"FAILED  {failure}")
    for reason, number in sorted(found.refused.items()):
        print(f"refused {number:6}: {reason}")
    print(f"{found.kept} legal combinations follow the rules, {sum(found.refused.values())} are refused, {len(found.failures)} are wrong")
    return not found.failures
