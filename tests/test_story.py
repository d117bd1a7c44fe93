"""The pages of docs/story are what follows from the stored results."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "docs/_tools"))
import claims  # noqa: E402
from story_pages.base import SEEDS, means, seven, task_of  # noqa: E402
from story_pages.gradient import FACTOR, enlarged  # noqa: E402
from story_pages.remarks import REMARKS, remarks  # noqa: E402
from story_pages.sequential import longest_chain  # noqa: E402

ENGLISH, KOREAN = claims.LANGUAGES


LIMITS = {  # of each claim: the constants that its `verdict` compares with, and where the page has them
    "words": {"SHARE": "share", "TIMES": "times"},
    "gradient": {"VANISHED": "vanished", "EXPLODED": "exploded", "LESS": "less", "FLAT": "low"},
    "recall": {"BEHIND": "behind"},
    "context": {"SHARE": "share", "LEARNED": "learned"},
    "exposure": {"GAP": "limit"},
    "step": {"LIMIT": "limit"},
    "convolution": {"BLIND": "blind", "SEES": "sees"},
    "sequential": {"GROWS": "grows"},
    "scale": {"GROWS": "grows", "LEVEL": "level", "SHARPER": "sharper"},
    "positions": {"NOTICED": "noticed", "SHARE": "share"},
    "layers": {"ALIKE": "alike", "DIFFERENT": "different", "GAIN": "gain"},
    "cost": {"MEMORY_POWER": "memory_power", "TIME_POWER": "time_power"},
    "pretraining": {"CONFIDENCE": "confidence"},
}


def stored(name: str) -> list[dict]:
    rows = json.loads((claims.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]
    return means(rows, claims.claim(name).FIGURE["x"])


def test_the_pages_are_generated_from_the_stored_results() -> None:
    made = dict(claims.files())
    folders = set(claims.LANGUAGES.values())
    assert set(made) == {path for folder in folders for path in folder.iterdir() if path.suffix in (".md", ".svg")}
    for path, text in made.items():
        if path.suffix == ".md":
            assert path.read_text(encoding="utf-8") == text, f"{path.name}: python docs/_tools/claims.py write"
            assert "$" not in text
        else:
            assert text.startswith("<svg")
            last = path.read_text(encoding="utf-8").splitlines()[-1]
            assert last == text.splitlines()[-1], f"{path.name} is not drawn from the stored rows"


def test_every_claim_is_in_the_navigation_and_measured_with_three_seeds() -> None:
    pages = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name in claims.CLAIMS:
        assert f" story/{name}.md" in pages
        assert f" ko/story/{name}.md" in pages
        rows = json.loads((claims.FOLDER / f"{name}.json").read_text(encoding="utf-8"))["rows"]
        assert name == "cost" or len({row["seed"] for row in rows}) >= len(SEEDS)


def test_the_pretraining_page_uses_the_stored_study_results() -> None:
    rows = json.loads((claims.FOLDER / "pretraining.json").read_text(encoding="utf-8"))["rows"]
    assert claims.claim("pretraining").measure() == rows, "python docs/_tools/claims.py measure pretraining, then write"


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_a_page_agrees_in_both_languages(name: str) -> None:
    found = [claims.claim(name).values(stored(name), language) for language in (ENGLISH, KOREAN)]
    english, korean = (claims.claim(name).verdict(stored(name), language) for language in (ENGLISH, KOREAN))
    verdicts = {"**holds**": "**성립합니다**", "**does not hold here**": "**여기서는 성립하지 않습니다**"}
    assert found[0].keys() == found[1].keys()
    assert korean == verdicts.get(english, korean)
    assert all("한국어" not in text for text in found[0].values())
    templates = [(claims.FOLDER / "templates" / code / f"{name}.md").read_text(encoding="utf-8") for code in ("en", "ko")]
    used = [set(re.findall(r"\$[a-z_]+", text)) for text in templates]
    assert used[0] == used[1], "the two templates use different numbers"
    assert re.findall(r"https://\S+?(?=>)", templates[0]) == re.findall(r"https://\S+?(?=>)", templates[1])


@pytest.mark.parametrize(
    ("name", "model", "column", "value"),
    [
        ("gradient", "RNN", "gradient", 1.0),
        ("gradient", "Transformer", "gradient", 1e-9),
        ("gradient", "RNN", "with_large_weights", 1.0),
        ("gradient", "LSTM", "with_large_weights", 1e12),
        ("gradient", "Transformer", "with_large_weights", 1e9),
        ("scale", "scaled_dot_product", "variance", 1e3),
        ("cost", "attention (reference)", "train_mb", 1.0),
    ],
)
def test_a_verdict_follows_the_numbers(name: str, model: str, column: str, value: float) -> None:
    rows = stored(name)
    assert claims.claim(name).verdict(rows, ENGLISH).startswith("**holds")
    largest = max(row[claims.claim(name).FIGURE["x"]] for row in rows)
    for row in rows:
        if row["model"] == model and row[claims.claim(name).FIGURE["x"]] == largest:
            row[column] = value
    assert claims.claim(name).verdict(rows, ENGLISH) == "**does not hold here**"


def test_a_page_names_seeds_that_alone_would_change_the_verdict() -> None:
    rows = json.loads((claims.FOLDER / "scale.json").read_text(encoding="utf-8"))["rows"]
    verdict = claims.claim("scale").verdict(stored("scale"), ENGLISH)
    assert ENGLISH.by_seed(verdict, claims.verdicts_alone("scale", rows, ENGLISH)) == "Each seed alone gives this verdict, too."
    for row in rows:
        if row["seed"] == 1 and row["width"] == 1024:
            row["variance"] = 1.0
    said = ENGLISH.by_seed(verdict, claims.verdicts_alone("scale", rows, ENGLISH))
    assert said == "Seed 1 alone would give a different verdict (does not hold here). Each of the others gives this one."
    alone = claims.verdicts_alone("scale", rows, KOREAN)
    assert KOREAN.by_seed(claims.claim("scale").verdict(stored("scale"), KOREAN), alone).startswith("시드 1만 보면 판정이 달라집니다")


@pytest.mark.parametrize("name", claims.CLAIMS)
def test_a_page_states_every_threshold_of_its_verdict(name: str) -> None:
    template = (claims.FOLDER / "templates/en" / f"{name}.md").read_text(encoding="utf-8")
    values = claims.claim(name).values
    limits = LIMITS[name]
    assert limits
    for constant, key in limits.items():
        assert hasattr(claims.claim(name), constant)
        assert f"${key}" in template, f"the page does not state {constant}"
        assert values(stored(name), ENGLISH)[key]
    assert ("$by_seed" in template) == (name not in ("cost", "pretraining"))


def test_pages_are_not_generated_from_rows_of_other_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims.claim("words"), "NEAR", 3)
    with pytest.raises(SystemExit, match="words was measured with"):
        next(claims.files())


@pytest.mark.parametrize("name", REMARKS)
def test_statements_on_a_page_are_in_both_templates_and_true(name: str) -> None:
    texts = [(claims.FOLDER / "templates" / code / f"{name}.md").read_text(encoding="utf-8") for code in ("en", "ko")]
    english, korean = (" ".join(text.split()) for text in texts)
    for remark in remarks(name, stored(name)):
        assert remark.english in english
        assert remark.korean in korean
        assert remark.holds, remark.english


@pytest.mark.parametrize(
    ("name", "model", "x", "column", "value", "said"),
    [
        ("exposure", "GRU", 5, "free_running", 0.1, "rises from position 2 to the end"),
        ("exposure", "Transformer", 6, "free_running", 0.9, "it does not rise after position 3"),
        ("exposure", "Transformer", 6, "teacher_forced", 0.9, "the gap widens because the error on the true prefix falls"),
        ("recall", "RNN", 128, "after_800", 0.1, "The RNN hardly falls further"),
        ("recall", "RNN", 1, "after_250", 0.7, "The number of steps matters as much as the distance"),
        ("context", "RNN", 2, "exact_match", 0.9, "the RNN does not even learn to copy short texts"),
        ("gradient", "GRU", 99, "gradient", 1.0, "by this measure its gradient vanishes"),
        ("gradient", "RNN + attention", 99, "with_large_weights", 1.0, "Attention in addition to a recurrence avoids the first"),
        ("convolution", "convolution of 3", 32, "reached", 1.0, "since no information from there reaches it"),
        ("sequential", "LSTM", 256, "train_ms", 1e6, "So the order in milliseconds depends on the kernel"),
        ("scale", "scaled_dot_product", 1024, "variance", 1.1, "it stays level, though below 1"),
        ("positions", "decoder, none", 2, "exact_match", 9.0, "in so few steps neither decoder learns the task"),
        ("cost", "LSTM", 2048, "state_mb", 1.0, "and not at all with an LSTM"),
    ],
)
def test_a_page_with_an_untrue_statement_is_not_generated(
    name: str, model: str, x: float, column: str, value: float, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = json.loads((claims.FOLDER / f"{name}.json").read_text(encoding="utf-8"))
    for row in rows["rows"]:
        if (row["model"], row[claims.claim(name).FIGURE["x"]]) == (model, x):
            row[column] = value
    (tmp_path / f"{name}.json").write_text(json.dumps(rows), encoding="utf-8")
    monkeypatch.setattr(claims, "CLAIMS", (name,))
    monkeypatch.setattr(claims, "FOLDER", tmp_path)
    with pytest.raises(SystemExit, match=f"{name}: the stored results do not support what the templates say: .*{re.escape(said)}"):
        next(claims.files())


def test_means_are_taken_over_seeds() -> None:
    rows = [{"model": "a", "x": 1, "y": y} for y in (1.0, 2.0)] + [{"model": "a", "x": 2, "y": 5.0}]
    assert means(rows, "x") == [{"model": "a", "x": 1, "y": 1.5}, {"model": "a", "x": 2, "y": 5.0}]


def test_the_longest_chain_counts_dependent_operations() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x
    for _ in range(5):
        y = y.tanh()
    assert longest_chain(y.sum()) == 1 + 5 + 1  # the sum, five steps, and where the gradient is stored
    assert longest_chain(torch.stack([x.tanh() for _ in range(5)]).sum()) == 1 + 1 + 1 + 1


def test_enlarging_multiplies_the_matrices_of_the_layers() -> None:
    stack = seven(d_model=8, num_layers=1)["LSTM + attention"]
    plain = task_of(stack, 0)
    plain.configure_model()
    before, after = dict(plain.model.named_parameters()), dict(enlarged(task_of(stack, 0)).model.named_parameters())
    for name, weight in before.items():
        factor = FACTOR if weight.ndim == 2 and "embeddings" not in name else 1.0
        torch.testing.assert_close(after[name], factor * weight, rtol=0, atol=0)


def test_templates_are_excluded_from_the_pages() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("theme:")[0]
    assert "story/templates/" in yaml.safe_load(text)["exclude_docs"]
