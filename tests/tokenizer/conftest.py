import random

import pytest


@pytest.fixture
def rng(seed: int) -> random.Random:
    return random.Random(seed)
