"""The costs of a run: what counts as a token."""

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule

import attnkit
from attnkit.profile.flops import evaluate, forward_flops
from attnkit.worker.costs import tokens_read, training_flops_per_token

SPEC = attnkit.tokenizers.build("character").train(["abcd"]).spec
STACK = {"name": "decoder", "d_model": 8, "num_layers": 1, "num_heads": 2, "feed_forward": {"name": "mlp", "ffn_dim": 16}}
TOKENS = torch.tensor([[1, 4, 5, 6], [1, 4, 0, 0]])
TARGETS = torch.tensor([[0, 0, 6, 7], [4, 0, 0, 0]])  # of a row's four tokens, two are scored
FILLER = {"example": torch.tensor([3, -1])}


@pytest.mark.parametrize(
    ("batch", "count"),
    [
        ({"tokens": TOKENS, "targets": TARGETS}, 6),
        ({"tokens": TOKENS}, 4),  # the last token of a row is only a target
        ({"tokens": TOKENS, "targets": TARGETS, "documents": torch.ones(2, 4, dtype=torch.long)}, 6),
        ({"tokens": TOKENS, "targets": TARGETS, **FILLER}, 4),
    ],
)
def test_tokens_are_those_a_language_model_reads(batch: dict[str, Any], count: int) -> None:
    task = attnkit.tasks.build({"name": "causal_lm", "stack": STACK, "tokenizer": SPEC})
    assert tokens_read(task, batch) == count


def test_flops_per_token_do_not_depend_on_scored_targets() -> None:
    task = attnkit.tasks.build({"name": "causal_lm", "stack": STACK, "tokenizer": SPEC})
    lengths = torch.tensor([4, 2])
    expected = round(3 * evaluate(forward_flops(task), lengths, torch.zeros_like(lengths)) / 6)
    for targets in (TARGETS, TOKENS):
        assert training_flops_per_token(task, {"tokens": TOKENS, "targets": targets}) == expected


def test_labels_do_not_count_as_tokens_and_an_image_counts_as_one() -> None:
    stack = {**STACK, "name": "encoder"}
    texts = attnkit.tasks.build({"name": "classification", "stack": stack, "tokenizer": SPEC, "classes": ["no", "yes"]})
    assert tokens_read(texts, {"tokens": TOKENS, "label": torch.tensor([0, 1])}) == 6
    assert tokens_read(texts, {"image": torch.zeros(2, 1, 4, 4), "label": torch.tensor([0, 1])}) == 2


def test_a_custom_modules_non_padding_integers_count_as_tokens() -> None:
    assert tokens_read(LightningModule(), {"x": TOKENS, "y": torch.zeros(2), **FILLER}) == 6
    assert tokens_read(LightningModule(), [TOKENS, TARGETS]) == 9
