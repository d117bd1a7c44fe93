"""Operations of models: the products of matrices, in attention and in recurrent layers too, where the CPU has fused kernels."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import attnkit
from attnkit.cli.flops import forward_flops


def counted(model: nn.Module, *inputs: torch.Tensor) -> int:
    return forward_flops(SimpleNamespace(objective=lambda batch: model(*batch)), inputs)


def test_a_product_of_matrices_has_two_operations_for_each_weight_and_row() -> None:
    assert counted(nn.Linear(5, 7), torch.randn(3, 5)) == 2 * 3 * 5 * 7


@pytest.mark.parametrize("attention", ["scaled_dot_product", "dot_product"])
def test_attention_is_counted(attention: str) -> None:
    model: Any = attnkit.compose(stack="encoder", d_model=8, num_layers=1, num_heads=2, attention=attention, vocab_size=11)
    rows, length, width = 3, 6, 8
    weights = sum(p.numel() for n, p in model.named_parameters() if p.ndim == 2 and "embedding" not in n)
    expected = 2 * rows * length * weights + 2 * 2 * rows * length**2 * width  # scores, and the sums of values
    assert counted(model.eval(), torch.randint(3, 11, (rows, length))) in (expected, expected + 2 * rows * length * width * 11)


@pytest.mark.parametrize("cell", ["rnn", "gru", "lstm"])
def test_recurrent_layers_are_counted(cell: str) -> None:
    model: Any = attnkit.compose(stack="recurrent_encoder", d_model=8, num_layers=1, cell=cell, vocab_size=11)
    tokens = torch.randint(3, 11, (3, 6))
    gates = {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    assert counted(model.eval(), tokens) >= 2 * 18 * gates * 2 * 8 * 4  # from the input and from the state, at the least half the width
