"""The pages of docs/story are what follows from the stored results."""

import importlib.util
import json
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("claims", ROOT / "docs/_tools/claims.py")
claims = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(claims)


def stored(name: str) -> list[dict]:
    rows = json.loads((claims.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return claims.means(rows, claims.FIGURES[name]["x"])


def test_the_pages_are_made_from_the_stored_results() -> None:
    made = dict(claims.files())
    assert {path.name for path in made} == {path.name for path in claims.FOLDER.iterdir() if path.suffix in (".md", ".svg")}
    for path, text in made.items():
        if path.suffix == ".md":
            assert path.read_text(encoding="utf-8") == text, f"{path.name}: python docs/_tools/claims.py write"
            assert "$" not in text
        else:
            assert text.startswith("<svg")


def test_every_claim_is_in_the_navigation_and_was_measured_with_three_seeds_unless_it_counts() -> None:
    pages = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in claims.VALUES:
        assert f"story/{name}.md" in pages
        rows = json.loads((claims.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        assert name == "cost" or {row["seed"] for row in rows} == set(claims.SEEDS)


@pytest.mark.parametrize(
    ("name", "model", "column", "value"),
    [
        ("gradient", "RNN", "gradient", 1.0),
        ("gradient", "Transformer", "gradient", 1e-9),
        ("scale", "scaled_dot_product", "variance", 1e3),
        ("cost", "attention (reference)", "train_mb", 1.0),
    ],
)
def test_a_verdict_follows_the_numbers(name: str, model: str, column: str, value: float) -> None:
    rows = stored(name)
    assert claims.VALUES[name](rows)["verdict"].startswith("**holds")
    largest = max(row[claims.FIGURES[name]["x"]] for row in rows)
    for row in rows:
        if row["model"] == model and row[claims.FIGURES[name]["x"]] == largest:
            row[column] = value
    assert claims.VALUES[name](rows)["verdict"] == "**does not hold here**"


def test_means_are_over_seeds() -> None:
    rows = [{"model": "a", "x": 1, "y": y} for y in (1.0, 2.0)] + [{"model": "a", "x": 2, "y": 5.0}]
    assert claims.means(rows, "x") == [{"model": "a", "x": 1, "y": 1.5}, {"model": "a", "x": 2, "y": 5.0}]


def test_the_templates_are_no_pages() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("theme:")[0]
    assert "story/templates/" in yaml.safe_load(text)["exclude_docs"]
