"""The small recipe of the ablation tests, in an empty current folder."""

from pathlib import Path

import pytest

from tests.ablation.conftest import write_recipe
from tests.cli.conftest import attnkit  # noqa: F401


@pytest.fixture
def small_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe and its data."""
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)
