"""A published table beside the results of a study."""

from pathlib import Path
from typing import Any

import pytest

from attnkit.ablation.plan import stored_plan
from attnkit.ablation.published import published
from attnkit.ablation.results import Results
from attnkit.registry import ConfigurationError
from tests.ablation.conftest import BASE, stored, study

pytestmark = pytest.mark.usefixtures("guessed")


def test_a_published_table_is_shown_beside_ours(results: Results) -> None:
    rows = {"baseline": {"base": 20.0}, "position=none": {"no positions": 21.0}, "position=learned": {"learned": 20.5}}
    table = published(stored_results(results, published={"source": "A 2020, BLEU", "better": "higher", "rows": rows}))
    assert table is not None
    assert [(cells[0], *cells[5:]) for _, cells in table.table.rows] == [
        ("baseline", "20", "-", "-"),
        ("position=none", "21", "+1", "yes"),  # better here and there
        ("position=learned", "20.5", "+0.5", "no"),  # all its runs diverged here
    ]
    equal = {"baseline": {"base": 20.0}, "position=none": {"none": 20.0}, "position=learned": {"learned": 20.0}}
    tie = published(stored_results(results, published={"source": "A", "better": "higher", "rows": equal}))
    assert tie is not None
    assert [cells[-1] for _, cells in tie.table.rows] == ["-", "equal there", "equal there"]
    assert table.summary.startswith("Of 2 significant differences with a published counterpart, 1 point in the same direction")
    assert published(results) is None


def stored_results(results: Results, **changes: Any) -> Results:
    """Return the same results, of a study with these changes."""
    planned = stored_plan(study(**{"seeds": 6, "min_effect": 0.05} | changes), Path("runs"))
    assert planned is not None
    return Results(planned)


def test_a_published_table_shows_our_verdict_and_equal_columns_no_correlation() -> None:
    factors = {"model.position": ["none", "learned", "rotary"]}
    values: dict[str, list[float | str]] = {"baseline": list(BASE)}
    values |= {f"position={name}": [v + 1e-4 * (-1) ** i for i, v in enumerate(BASE)] for name in ("none", "learned", "rotary")}
    rows = {name: {"there": 20.0} for name in values}
    table = published(stored(values, factors=factors, published={"source": "A", "better": "higher", "rows": rows}))
    assert table is not None
    assert [cells[-1] for _, cells in table.table.rows] == ["-", *["equivalent here"] * 3]
    assert "nan" not in table.summary


def test_simple_effects_are_shown_beside_a_published_table() -> None:
    """A variant of a full factorial design is compared under the name of an effect, and with its own reference."""
    factors = {"model.position": ["none"], "model.deep": [1]}
    far = [v + 0.5 for v in BASE]
    values: dict[str, list[float | str]] = {
        "baseline": [*BASE],
        "deep=1": [*BASE],
        "position=none": [*far],
        "position=none, deep=1": [*far],
    }
    rows = {"baseline": {"base": 20.0}, "position=none": {"no": 18.0}, "deep=1": {"deep": 22.0}, "position=none, deep=1": {"both": 23.0}}
    more = {"design": "full_factorial", "effects": ["position at deep"], "factors": factors}
    table = published(stored(values, published={"source": "A", "better": "higher", "rows": rows}, **more))
    assert table is not None
    found = {cells[0]: cells[2:4] + cells[6:] for _, cells in table.table.rows}
    assert found["position=none"] == ("+0.5", "worse", "-2", "yes")
    assert found["position=none, deep=1"] == ("+0.5", "worse", "+1", "no"), "beside deep=1, as in the effect, not beside the baseline"
    assert found["deep=1"][-1] == "not compared here"
    assert table.summary.startswith("Of 2 significant differences with a published counterpart, 1 point in the same direction")


def test_a_published_row_without_a_variant_is_rejected() -> None:
    wrong = {"source": "A", "better": "higher", "rows": {"position=nome": {"x": 1}}}
    with pytest.raises(ConfigurationError, match=r"published: no variant 'position=nome'\. Did you mean 'position=none'"):
        study(published=wrong).expanded()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"better": "up"}, "better: unknown 'up'. One of: lower, higher"),
        ({"rows": {"baseline": {}}}, "published"),
        ({"rows": {"baseline": {"a, b": None}}}, "published"),
    ],
)
def test_invalid_published_tables_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        study(published={"source": "A", "better": "higher", "rows": {"baseline": {"x": 1}}} | wrong)
