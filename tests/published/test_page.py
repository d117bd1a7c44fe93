"""The page of published architectures is that of the tables."""

import sys
from pathlib import Path

from published.engine import families

sys.path.append(str(Path(__file__).parents[2] / "docs/_tools"))

import published_page

PAGE = Path(__file__).parents[2] / "docs/reference/published.md"


def test_the_page_is_current() -> None:
    written = PAGE.read_text(encoding="utf-8")
    message = "run: python docs/_tools/published_page.py > docs/reference/published.md"
    assert written == published_page.page(families()), message
