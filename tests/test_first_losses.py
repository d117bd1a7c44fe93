"""The comparison of docs/_tools/first_losses.py sees one bit."""

import sys
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[1] / "docs/_tools"))

from first_losses import base_of, compare, digest, in_order

from attnkit.recipe import recipe_names

CHECKOUT = Path(__file__).parents[1]

STEPS = {"initial": "a", "batches": ["b", "c"], "losses": [2.0, 1.5], "final": "d"}


def test_equal_trainings_compare_equal() -> None:
    assert compare("g2p/transformer", STEPS, STEPS) == "| g2p/transformer | equal | equal | equal | 1.5 | equal |"


def test_every_difference_is_shown() -> None:
    def row(**changed: Any) -> str:
        return compare("r", STEPS, {**STEPS, **changed})

    assert row(initial="x") == "| r | **different** | equal | equal | 1.5 | equal |"
    assert row(batches=["c", "b"]) == "| r | equal | **different** | equal | 1.5 | equal |"
    assert row(losses=[2.0, 1.75]) == "| r | equal | equal | **0.25** | 1.75 | equal |"
    assert row(final="x") == "| r | equal | equal | equal | 1.5 | **different** |"


def test_a_digest_depends_on_bits_shapes_dtypes_and_names_but_not_order() -> None:
    values = {"tokens": torch.arange(6), "words": ["a"]}
    assert digest(values) == digest(dict(reversed(values.items())))
    others = [
        {**values, "tokens": torch.tensor([0, 1, 2, 3, 4, 6])},
        {**values, "tokens": torch.arange(6).view(2, 3)},
        {**values, "tokens": torch.arange(6, dtype=torch.int32)},
        {**values, "words": ["b"]},
        {"tokens": values["tokens"], "letters": ["a"]},
    ]
    assert len({digest(values), *map(digest, others)}) == 6
    assert digest({"x": torch.tensor(0.0)}) != digest({"x": torch.tensor(-0.0)})


def test_recipes_follow_those_whose_checkpoints_they_start_from() -> None:
    studies = {str(path.relative_to(CHECKOUT / "recipes").with_suffix("")) for path in (CHECKOUT / "recipes/ablations").glob("*.yaml")}
    names = in_order(CHECKOUT, [*recipe_names(), *studies])
    assert sorted(names) == sorted({*recipe_names(), *studies})
    chain = ["masked_lm/bert", "masked_lm/bert_passages", "classification/bert_finetuned"]
    assert in_order(CHECKOUT, chain[2:]) == chain
    assert names.index("seq2seq/t5_help") < names.index("ablations/t5_pretraining")
    assert names.index("language_model/tiny") < names.index("ablations/continued_pretraining")


def test_a_study_may_leave_its_recipe_unchanged() -> None:
    assert base_of(CHECKOUT, "ablations/continued_pretraining") == (CHECKOUT / "recipes/language_model/continued.yaml", {})
    assert base_of(CHECKOUT, "ablations/t5_pretraining")[1] == {"trainer.check_val_every_n_epoch": 2}
