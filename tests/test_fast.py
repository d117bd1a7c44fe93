"""The fast selection: `pytest @tests/fast.txt`."""

from pathlib import Path

import attnkit

TESTS = Path(__file__).parent


def test_the_fast_selection_covers_every_package() -> None:
    chosen = [entry.partition("::")[::2] for entry in (TESTS / "fast.txt").read_text(encoding="utf-8").split()]
    texts = {file: path.read_text(encoding="utf-8") if (path := TESTS.parent / file).is_file() else "" for file, _ in chosen}
    assert [(file, test) for file, test in chosen if (f"def {test}(" if test else "def test_") not in texts[file]] == []
    packages = [p.name for p in Path(attnkit.__file__).parent.iterdir() if (p / "__init__.py").exists()]
    assert [p for p in packages if not any(f.startswith(f"tests/{p}/") or f == f"tests/test_{p}.py" for f in texts)] == []
