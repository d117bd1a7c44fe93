"""The small recipe of the ablation tests, in an empty current folder."""

from pathlib import Path
from typing import Any

import pytest

from attnkit.worker.folder import read_json, write_json
from attnkit.worker.inspection import Inspector
from attnkit.worker.run import main
from tests.ablation.conftest import SEEDS, write_recipe
from tests.cli.conftest import attnkit  # noqa: F401


@pytest.fixture
def small_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe and its data."""
    monkeypatch.chdir(tmp_path)
    write_recipe(tmp_path)


def run(name: str, *layers: dict[str, Any], seeds: dict[str, int] = SEEDS, test: bool = False) -> dict[str, Any]:
    """Train the recipe with these layers, as a study would; return the result."""
    folder = Path(name).absolute()
    recipe, _ = Inspector("tiny.yaml", match=None, baseline=[]).completed(layers)
    recipe["data"]["seed"] = seeds["data"]
    write_json(folder / "job.json", {"recipe": recipe, "seeds": seeds, "test": test})
    main(folder)
    return dict(read_json(folder / "result.json") or {})
