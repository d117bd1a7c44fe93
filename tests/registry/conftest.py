"""A registry that is restored after each test, and fake installed distributions."""

import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import EntryPoint

import pytest

import attnkit
from attnkit.registry import NormSpec, Registry
from attnkit.registry.names import _points


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def norms(monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    """The registry of norms, restored after the test."""
    registry = attnkit.norms
    classes = {name: registry.get(name) for name in registry.built_in()}
    monkeypatch.setattr(registry, "_classes", classes)
    monkeypatch.setattr(registry, "_overridden", set())
    monkeypatch.setattr(registry, "_broken", {})
    vars(registry).pop("plugins", None)
    _points.cache_clear()
    yield registry
    vars(registry).pop("plugins", None)
    _points.cache_clear()


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that distributions are installed, each with one entry point."""

    def install(*points: tuple[str, str, str]) -> None:
        class Distribution:
            def __init__(self, name: str) -> None:
                self.name = name

        def entry_points(group: str) -> Iterable[EntryPoint]:
            assert group == "attnkit.components"
            for name, value, distribution in points:
                point = EntryPoint(name, value, group)
                vars(point).update(dist=Distribution(distribution))
                yield point

        monkeypatch.setattr("attnkit.registry.names.entry_points", entry_points)

    return install


class Own:
    """A user's own norm."""

    def __init__(self, *, d_model: int, eps: float = 0.5, inner: NormSpec | None = None) -> None:
        self.d_model, self.eps, self.inner = d_model, eps, inner
