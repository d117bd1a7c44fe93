"""The fast selection: `pytest @tests/fast.txt`."""

from pathlib import Path

import attnkit

TESTS = Path(__file__).parent


def test_the_fast_selection_covers_every_package() -> None:
    chosen = (TESTS / "fast.txt").read_text(encoding="utf-8").split()
    assert [file for file in chosen if not (TESTS.parent / file).is_file()] == []
    packages = [p.name for p in Path(attnkit.__file__).parent.iterdir() if (p / "__init__.py").exists()]
    lacking = [p for p in packages if not any(f.startswith(f"tests/{p}/") or f == f"tests/test_{p}.py" for f in chosen)]
    assert lacking == ["testing"]  # whose checks of every piece take a minute
