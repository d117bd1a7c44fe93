"""The part set aside for validation."""

import random

import pytest

from attnkit.corpus.splitting import set_aside
from attnkit.registry import ConfigurationError


def test_equal_keys_stay_together_and_nothing_is_lost() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    keys = [rng.randrange(20) for _ in range(200)]
    distinct = len(set(keys))
    kept, aside, _ = set_aside(keys, validation=0.25, test=0.0, seed=seed, what="keys")
    assert sorted(kept + aside) == list(range(200))
    assert kept == sorted(kept)
    assert aside == sorted(aside)
    sides = {keys[i] for i in kept}, {keys[i] for i in aside}
    assert sides[0].isdisjoint(sides[1])
    assert len(sides[1]) == round(0.25 * distinct)
    assert set_aside(keys, validation=0.25, test=0.0, seed=seed, what="keys") == (kept, aside, [])


def test_validation_and_test_are_disjoint() -> None:
    parts = set_aside(range(100), validation=0.2, test=0.1, seed=1, what="rows")
    assert [len(part) for part in parts] == [70, 20, 10]
    assert sorted(i for part in parts for i in part) == list(range(100))


@pytest.mark.parametrize(("validation", "test"), [(0.01, 0.0), (0.99, 0.0), (0.0, 0.01), (0.5, 0.49)])
def test_an_empty_split_is_rejected(validation: float, test: float) -> None:
    with pytest.raises(ConfigurationError, match=r"_fraction=.* of 2 distinct words is [012]: every split needs at least one"):
        set_aside(["a", "b", "a"], validation=validation, test=test, seed=0, what="distinct words")
