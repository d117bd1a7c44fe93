import gc
import os
import random
import signal
import tempfile
import zlib
from collections.abc import Iterator

import numpy as np
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # with more threads, concurrent tests are 10 times slower
os.environ.setdefault("TORCH_DYNAMO_RUN_GC_AFTER_COMPILE", "0")  # with so many objects, each collection takes 60 ms

import torch

from tests import commands

gc.disable()  # until all tests are collected: scanning a million live objects for garbage doubles the time

_cache = tempfile.TemporaryDirectory(prefix="attnkit-cache-")  # removed at exit
os.environ["ATTNKIT_CACHE"] = _cache.name


if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's `&` starts commands so, and processes of tests would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", action="store_true", help="draw a fresh seed for each test, and print it, in place of the fixed one")
    parser.addoption("--seed", type=int, metavar="N", help="give each test this seed, to repeat what --fuzz found")


def pytest_collection_finish() -> None:
    commands.ENVIRONMENT.update(os.environ)
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)  # a model is thousands of objects: collecting garbage after every 700 takes a tenth of the time


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if {"seed", "rng"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("random")


@pytest.fixture(autouse=True)
def _seeded(request: pytest.FixtureRequest) -> None:
    """Seed every generator by the test's name, or randomly with `--fuzz`."""
    drawn = request.config.getoption("--seed")
    if request.config.getoption("--fuzz"):
        drawn = random.SystemRandom().randrange(2**31)
    elif drawn is None:
        drawn = zlib.crc32(request.node.nodeid.encode()) % 2**31
    print(f"seed {drawn}")  # pytest shows it with a failure
    torch.default_generator.manual_seed(drawn)  # `torch.manual_seed` also formats the call stack, once per kind of GPU
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(drawn)
    random.seed(drawn)
    np.random.seed(drawn)


@pytest.fixture(autouse=True)
def _same_environment() -> Iterator[None]:
    """Restore the environment's variables after each test.

    A command started later would take itself for one of several ranks, since a fit sets their variables, and wait for the others; and
    with any other variable, such as one that torch sets when it compiles, it needs a new fork server, which takes seconds to start.
    """
    yield
    for variable in os.environ.keys() - commands.ENVIRONMENT.keys() - {"PYTEST_CURRENT_TEST"}:
        del os.environ[variable]
    os.environ.update(commands.ENVIRONMENT)


@pytest.fixture(autouse=True, scope="session")
def _flops_counted_once() -> Iterator[None]:
    """Count the FLOPs of equal tasks only once: it takes a second, and plans, runs of studies and most training runs do it."""
    from attnkit.callback import throughput
    from attnkit.profile import estimate
    from attnkit.worker import costs, limit
    from tests.counted import forward_flops

    with pytest.MonkeyPatch.context() as patch:
        for module in (throughput, estimate, costs, limit):
            patch.setattr(module, "forward_flops", forward_flops)
        yield


@pytest.fixture(autouse=True, scope="session")
def _files_not_awaited() -> Iterator[None]:
    """Write files without waiting until they are on the disk, up to 12 ms for each: tests kill processes, but no machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which also fails if no file is open
        yield


@pytest.fixture
def seed() -> int:
    """The seed of the test."""
    return torch.initial_seed()
