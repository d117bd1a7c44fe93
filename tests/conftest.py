import os
import random
import tempfile

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait for each other make tests beside one another 10 times slower

import torch

_cache = tempfile.TemporaryDirectory(prefix="attnkit-cache-")  # removed at exit
os.environ["ATTNKIT_CACHE"] = _cache.name


@pytest.fixture
def seed() -> int:
    """A fresh seed for torch and random, printed with a failing test."""
    drawn = random.SystemRandom().randrange(2**31)
    print(f"seed {drawn}")
    torch.manual_seed(drawn)
    random.seed(drawn)
    return drawn
