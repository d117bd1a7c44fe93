"""`rnn`, `lstm` and `gru` as mixers are the recurrent stacks, with the state of a mixer."""

import pytest
import torch
from torch import Tensor

from attnkit.layers import Recurrent, RecurrentConfig, Transformer, TransformerConfig
from attnkit.mixer import Tokens
from attnkit.registry import ConfigurationError, mixers

CELLS = ["rnn", "lstm", "gru"]
BARE = {"residual": "none", "feed_forward": "none", "position": "none"}


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("causal", [True, False])
def test_a_bare_stack_of_recurrent_mixers_equals_the_recurrent_stack(cell: str, causal: bool, seed: int) -> None:
    ours = Transformer(TransformerConfig(d_model=8, num_layers=2, mixer=cell, **BARE), causal=causal).double()
    theirs = Recurrent(RecurrentConfig(d_model=8, num_layers=2, cell=cell), bidirectional=not causal).double()
    places = {"layer": "layers", "backward_layer": "backward_layers"}
    weights = {}
    for name, weight in ours.state_dict().items():
        _, number, _, side, parameter = name.split(".")
        weights[f"{places[side]}.{number}.{parameter}"] = weight
    theirs.load_state_dict(weights)
    x, real = torch.randn(3, 7, 8).double(), torch.arange(7) < torch.tensor([7, 4, 1])[:, None]
    for mask in (None, real, real.flip(1)):
        y, expected = ours(x, key_mask=mask)[0], theirs(x, key_mask=mask)[0]
        chosen = slice(None) if mask is None else mask
        torch.testing.assert_close(y[chosen], expected[chosen], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
def test_the_state_after_packed_documents_belongs_to_the_last_one(cell: str, seed: int) -> None:
    mixer = mixers.build(cell, d_model=6).double()
    x = torch.randn(2, 9, 6).double()
    starts = torch.tensor([[1, 0, 0, 1, 0, 0, 0, 0, 0], [1, 0, 1, 0, 0, 0, 0, 1, 0]]).bool()
    real = torch.tensor([[1] * 9, [1, 1, 1, 0, 1, 0, 0, 1, 0]]).bool()
    state = mixer(x, Tokens(starts=starts, real=real))[1]
    for row, columns in ((0, [3, 4, 5, 6, 7, 8]), (1, [7])):
        expected = mixer(x[row, columns][None], Tokens())[1]
        torch.testing.assert_close(state.hidden[row], expected.hidden[0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("autocast", [False, True])
def test_the_state_stays_in_fp32_in_half_precision(cell: str, autocast: bool, seed: int) -> None:
    mixer = mixers.build(cell, d_model=6)
    mixer, x = (mixer, torch.randn(2, 5, 6)) if autocast else (mixer.bfloat16(), torch.randn(2, 5, 6).bfloat16())
    state = None
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.no_grad():
        for _ in range(2):
            y, state = mixer(x, Tokens(), state)
    tensors = [t for t in (state.hidden, state.cell) if isinstance(t, Tensor)]
    assert {t.dtype for t in tensors} == {torch.float32}
    assert y.dtype == x.dtype


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@torch.no_grad()
def test_a_single_token_continues_a_row_in_half_precision(cell: str, dtype: torch.dtype, seed: int) -> None:
    mixer, x = mixers.build(cell, d_model=6).to(dtype), torch.randn(2, 4, 6, dtype=dtype)
    expected, _ = mixer(x, Tokens())
    y, state = mixer(x[:, :1], Tokens())
    parts = [y]
    for t in range(1, 4):
        y, state = mixer(x[:, t : t + 1], Tokens(), state)
        parts.append(y)
    torch.testing.assert_close(torch.cat(parts, 1), expected)


def test_two_directions_need_an_even_width() -> None:
    with pytest.raises(ConfigurationError, match=r"the mixer 'gru' gives half of d_model to each direction, so d_model .7. must be even"):
        mixers.build("gru", d_model=7, direction="bidirectional")
