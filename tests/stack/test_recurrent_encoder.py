"""The recurrent encoder: the kit's rules for every cell, what a direction sees, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnkit
from attnkit.testing import parametrize

NAME = {"name": "recurrent_encoder"}
CELLS: Any = ("rnn", "lstm", "gru")
SPECS: list[Any] = [{**NAME, "cell": cell, "bidirectional": both} for cell in CELLS for both in (True, False)]


@parametrize("stacks", *SPECS)
def test_every_cell_passes_the_conformance_rules(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("cell", CELLS)
def test_one_direction_sees_earlier_tokens_and_two_see_all(cell: str, seed: int) -> None:
    x = torch.randn(2, 5, 8)
    later = torch.cat([x[:, :3], torch.randn(2, 2, 8)], 1)
    for both in (False, True):
        stack = attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 1, "cell": cell, "bidirectional": both})
        assert torch.equal(stack(x)[:, :3], stack(later)[:, :3]) is not both


def test_reversing_a_sequence_swaps_the_directions(seed: int) -> None:
    stack = attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 1, "cell": "lstm"}).double()
    twin = attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 1, "cell": "lstm"}).double()
    twin.encoder.layers.load_state_dict(stack.encoder.backward_layers.state_dict())
    twin.encoder.backward_layers.load_state_dict(stack.encoder.layers.state_dict())
    x = torch.randn(3, 5, 8).double()
    y, z = stack(x), twin(x.flip(1)).flip(1)
    torch.testing.assert_close(y, torch.cat([z[..., 4:], z[..., :4]], -1), rtol=1e-12, atol=1e-12)


def test_attention_masks_are_refused(seed: int) -> None:
    stack = attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 1})
    with pytest.raises(ValueError, match="no attention to restrict"):
        stack(torch.randn(1, 3, 8), attn_mask=torch.ones(3, 3, dtype=torch.bool))


def test_a_classifier_ignores_padding(seed: int) -> None:
    model = attnkit.compose(stack="recurrent_encoder", d_model=8, num_layers=2, vocab_size=9, num_classes=3).double().eval()
    tokens, mask = torch.randint(3, 9, (2, 5)), torch.tensor([[True] * 5, [False] * 2 + [True] * 3])
    torch.testing.assert_close(model(tokens, key_mask=mask)[1], model(tokens[1:, 2:])[0], rtol=1e-10, atol=1e-10)
