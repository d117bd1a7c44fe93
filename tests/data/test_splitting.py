"""The part set aside for validation."""

import random

import pytest

from attnkit.data.splitting import check_validation, set_aside
from attnkit.registry import ConfigurationError


def test_equal_keys_are_on_one_side_and_nothing_is_lost() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    keys = [rng.randrange(20) for _ in range(200)]
    distinct = len(set(keys))
    kept, aside = set_aside(keys, 0.25, seed=seed, what="keys")
    assert sorted(kept + aside) == list(range(200))
    assert kept == sorted(kept)
    assert aside == sorted(aside)
    sides = {keys[i] for i in kept}, {keys[i] for i in aside}
    assert sides[0].isdisjoint(sides[1])
    assert len(sides[1]) == round(0.25 * distinct)
    assert set_aside(keys, 0.25, seed=seed, what="keys") == (kept, aside)


@pytest.mark.parametrize("fraction", [0.01, 0.99])
def test_a_part_without_examples_is_refused(fraction: float) -> None:
    with pytest.raises(ConfigurationError, match=r"of 2 distinct words is [02]: both parts must have some"):
        set_aside(["a", "b", "a"], fraction, seed=0, what="distinct words")


def test_validation_comes_from_one_place() -> None:
    check_validation("file", 0.0)
    check_validation(None, 0.5)
    with pytest.raises(ConfigurationError, match="exclude each other"):
        check_validation("file", 0.5)
    for wrong in (-0.1, 1.0):
        with pytest.raises(ConfigurationError, match="at least 0 and below 1"):
            check_validation(None, wrong)
