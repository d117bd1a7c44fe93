"""The recurrent decoder: the kit's rules for every cell, generation, and what it refuses."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attnkit
from attnkit import ConfigurationError
from attnkit.testing import parametrize

NAME = {"name": "recurrent_decoder"}
CELLS: Any = ("rnn", "lstm", "gru")


@parametrize("stacks", *({**NAME, "cell": cell} for cell in CELLS))
def test_every_cell_passes_the_conformance_rules(check: Callable[[], None]) -> None:
    check()


@pytest.mark.parametrize("beam_size", [1, 3])
@pytest.mark.parametrize("cell", CELLS)
def test_padded_prompts_continue_like_unpadded_ones(cell: str, beam_size: int, seed: int) -> None:
    model = attnkit.compose(stack="recurrent_decoder", d_model=8, num_layers=2, cell=cell, vocab_size=9, eos_id=None).double().eval()
    prompt = torch.randint(3, 9, (3, 5))
    mask = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [False] * 4 + [True]])
    together = model.generate(prompt, mask=mask, max_length=4, beam_size=beam_size)
    for row in range(3):
        assert torch.equal(model.generate(prompt[row, mask[row]][None], max_length=4, beam_size=beam_size)[0], together[row])


@pytest.mark.parametrize("cell", CELLS)
def test_the_state_has_the_same_size_after_any_length(cell: str, seed: int) -> None:
    stack = attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 2, "cell": cell})
    for length in (1, 30):
        _, state = stack(torch.randn(2, length, 8))
        assert [layer.hidden.shape for layer in state.layers] == [(2, 8)] * 2
        assert all((layer.cell is None) == (cell != "lstm") for layer in state.layers)


@pytest.mark.parametrize("cell", CELLS)
def test_half_precision_continues_from_its_own_state(cell: str, seed: int) -> None:
    stack = attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 2, "cell": cell})
    x, mask = torch.randn(2, 6, 8), torch.tensor([[True] * 6, [False] * 2 + [True] * 4])
    expected, _ = stack(x, key_mask=mask)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first, state = stack(x[:, :4], key_mask=mask[:, :4])
        second, _ = stack(x[:, 4:], key_mask=mask[:, 4:], state=state)
    torch.testing.assert_close(torch.cat([first, second], 1).float(), expected, rtol=0.1, atol=0.1)


def test_attention_masks_and_attention_arguments_are_rejected(seed: int) -> None:
    stack = attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 1})
    with pytest.raises(ValueError, match="no attention to restrict"):
        stack(torch.randn(1, 3, 8), attn_mask=torch.ones(3, 3, dtype=torch.bool))
    for argument in ({"num_heads": 2}, {"window": 3}, {"position": "rotary"}):
        with pytest.raises(ConfigurationError, match=f"stack 'recurrent_decoder' has no argument '{next(iter(argument))}'"):
            attnkit.stacks.build({**NAME, "d_model": 8, "num_layers": 1, **argument})
