"""Inspections are cached by content, and repeated when something that they depend on has changed."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.inspection import inspect
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import study


def test_refusals_are_not_cached(folder: Path) -> None:
    rows = (folder / "words.tsv").rename(folder / "elsewhere.tsv")
    with pytest.raises(ConfigurationError, match=r"words\.tsv"):
        study().plan("runs")
    rows.rename(folder / "words.tsv")
    assert all(study().plan("runs").inspections[name].error is None for name in ("baseline", "position=learned"))


def test_edited_data_invalidates_a_cached_answer(folder: Path) -> None:
    def flops() -> int | None:
        match = {"on": "flops", "adjust": "model.stack.d_model", "tolerance": 0.5}
        [answer] = inspect("tiny.yaml", [{}], match=match, cache=folder / "kept")
        return answer.flops

    first = flops()
    assert first == flops()
    rows = (folder / "words.tsv").read_text(encoding="utf-8").splitlines()
    (folder / "words.tsv").write_text("\n".join(rows[:5]) + "\n", encoding="utf-8")
    assert flops() != first, "the FLOPs are those of data that are gone"


def test_an_answer_that_cannot_be_cached_is_still_returned(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, content: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr("attnkit.ablation.inspection.ask", lambda worker, question: ([{"parameters": 3}], ""))
    monkeypatch.setattr("attnkit.ablation.inspection.write_json", refuse)
    assert [answer.parameters for answer in inspect("tiny.yaml", [{}], match=None, cache=folder / "kept")] == [3]


def test_the_cache_distinguishes_the_order_of_overrides(folder: Path) -> None:
    """The later one takes effect, so a study in which they are swapped, as its note advises, is a different composition."""

    def width(*overrides: tuple[str, Any]) -> int:
        [answer] = inspect("tiny.yaml", [dict(overrides)], match=None, cache=folder / "kept")
        assert answer.recipe is not None
        return int(answer.recipe["model"]["stack"]["attention"].get("hidden_dim", 0))

    wide, other = ("model.stack.attention.hidden_dim", 40), ("model.stack.attention", {"name": "additive", "hidden_dim": 6})
    assert width(wide, other) == 6
    assert width(other, wide) == 40
