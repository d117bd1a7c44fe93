import random

import numpy as np
import pytest


@pytest.fixture
def rng() -> np.random.Generator:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    return np.random.default_rng(seed)
