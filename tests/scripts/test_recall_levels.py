"""What guessing reaches in associative recall, against rows counted by hand."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

FILE = Path(__file__).parents[2] / "docs" / "_tools" / "recall_levels.py"


@pytest.fixture
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("recall_levels", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_levels_match_rows_counted_by_hand(tool: ModuleType) -> None:
    # two pairs, two values: in half of the rows both are equal, and every guess in the row is right;
    # in the others, one of two answers is right, and after it is crossed out also the other: 1/2 (1 + 1) + 1/2 (0 + 1)
    expected = {"any value": 1.0, "the row's most frequent value": (2 + 1) / 2, "that of those not yet answered": (2 + 1.5) / 2}
    assert dict(tool.levels(2, 2)) == pytest.approx({name: (1 + right) / 3 for name, right in expected.items()})


def test_the_pages_have_the_levels_of_the_recipe(tool: ModuleType) -> None:
    rounded = [f"{level:.2f}".lstrip("0") for _, level in tool.levels(4, 16)]
    assert rounded == [".25", ".47", ".65"]
    for study in ("rnn_to_transformer", "mixers_recall"):
        text = (FILE.parents[1] / "results" / "ablations" / f"{study}.md").read_text(encoding="utf-8")
        assert all(level in text for level in rounded)
