"""Recurrent layers: a slow loop over the cells' equations, torch's own modules, and padding."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnkit.layers import CellState, Recurrent, RecurrentConfig, RecurrentLayer, RecurrentState
from attnkit.registry import ConfigurationError

B, T, D = 4, 6, 8
CELLS: Any = ("rnn", "lstm", "gru")
RIGHT = torch.arange(T) < torch.tensor([6, 4, 1, 0])[:, None]
MASKS = {"right": RIGHT, "left": RIGHT.flip(1), "scattered": torch.tensor([[1, 0, 1, 0, 1, 1]] * 2 + [[0, 1, 0, 0, 0, 0], [0] * 6]).bool()}
TORCHS = {"rnn": nn.RNN, "lstm": nn.LSTM, "gru": nn.GRU}


def slow_step(layer: RecurrentLayer, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
    """One token [I] of one row, by the equations."""
    gates = 1 if layer.cell == "rnn" else 3 if layer.cell == "gru" else 4
    wx = (layer.input_weight @ x + layer.input_bias).chunk(gates)
    uh = (layer.hidden_weight @ h + layer.hidden_bias).chunk(gates)
    if layer.cell == "rnn":
        return torch.tanh(wx[0] + uh[0]), c
    if layer.cell == "gru":
        r, z = torch.sigmoid(wx[0] + uh[0]), torch.sigmoid(wx[1] + uh[1])
        return z * h + (1 - z) * torch.tanh(wx[2] + r * uh[2]), c
    i, f, o = (torch.sigmoid(wx[k] + uh[k]) for k in (0, 1, 3))
    c = f * c + i * torch.tanh(wx[2] + uh[2])
    return o * torch.tanh(c), c


@torch.no_grad()
def slow(layer: RecurrentLayer, x: Tensor, real: Tensor, state: CellState | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Every real token of every row in turn; padding is skipped. Outputs [B, T, H], last hidden state and cell [B, H]."""
    y = x.new_zeros(*x.shape[:2], layer.hidden_dim)
    hidden, cell = (x.new_zeros(x.shape[0], layer.hidden_dim) for _ in range(2))
    if state is not None:
        hidden, cell = state.hidden.clone(), cell if state.cell is None else state.cell.clone()
    for b in range(x.shape[0]):
        h, c = hidden[b], cell[b]
        for t in real[b].nonzero().flatten().tolist():
            h, c = slow_step(layer, x[b, t], h, c)
            y[b, t] = h
        hidden[b], cell[b] = h, c
    return y, hidden, cell


def randomised(module: nn.Module) -> Any:
    """In float64, with biases that are not all zero, so that a wrong use shows."""
    for parameter in module.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter)
    return module.double()


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=1e-12)


def masks() -> Iterator[tuple[Tensor | None, Tensor]]:
    yield None, torch.ones(B, T, dtype=torch.bool)
    for mask in MASKS.values():
        yield mask, mask


@pytest.mark.parametrize("cell", CELLS)
def test_the_fused_kernel_matches_a_loop_over_the_equations(cell: Any, seed: int) -> None:
    layers = randomised(Recurrent(RecurrentConfig(cell=cell, d_model=D, num_layers=1), input_dim=5))
    x = torch.randn(B, T, 5).double()
    start = CellState(torch.randn(B, D).double(), torch.randn(B, D).double() if cell == "lstm" else None)
    for key_mask, real in masks():
        for state in (None, start):
            y, after = layers(x, key_mask=key_mask, state=None if state is None else RecurrentState((state,)))
            expected, hidden, memory = slow(layers.layers[0], x, real, state)
            assert_equal(y, expected)
            assert_equal(after.layers[0].hidden, hidden)
            if cell == "lstm":
                assert_equal(after.layers[0].cell, memory)


@pytest.mark.parametrize("cell", CELLS)
def test_a_step_equals_a_sequence_of_one(cell: Any, seed: int) -> None:
    layers = randomised(Recurrent(RecurrentConfig(cell=cell, d_model=D, num_layers=2)))
    x = torch.randn(B, T, D).double()
    _, state = layers(x)
    y, expected = layers(x[:, :1], state=state)
    h, states = layers.step(x[:, 0], state.layers)
    assert_equal(h, y[:, 0])
    for ours, theirs in zip(states, expected.layers, strict=True):
        assert_equal(ours.hidden, theirs.hidden)
        assert (ours.cell is None) == (cell != "lstm")


@pytest.mark.parametrize("cell", CELLS)
def test_a_padded_batch_equals_torchs_packed_one(cell: Any, seed: int) -> None:
    ours = randomised(Recurrent(RecurrentConfig(cell=cell, d_model=D, num_layers=2), bidirectional=True))
    torchs = TORCHS[cell](D, D // 2, 2, batch_first=True, bidirectional=True).double()
    for i in range(2):
        for layer, suffix in ((ours.layers[i], f"l{i}"), (ours.backward_layers[i], f"l{i}_reverse")):
            names = {"weight_ih": "input_weight", "weight_hh": "hidden_weight", "bias_ih": "input_bias", "bias_hh": "hidden_bias"}
            for theirs, name in names.items():
                getattr(torchs, f"{theirs}_{suffix}").data.copy_(getattr(layer, name))
    lengths = torch.tensor([6, 4, 1, 3])
    mask = torch.arange(T) < lengths[:, None]
    x = torch.randn(B, T, D).double()
    packed, last = torchs(nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
    expected, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)
    y, state = ours(x, key_mask=mask)
    assert_equal(y, expected)
    hidden = last[0] if cell == "lstm" else last  # [layers and directions, B, D / 2]
    for i in range(2):
        assert_equal(state.layers[i].hidden, torch.cat([hidden[2 * i], hidden[2 * i + 1]], -1))
        if cell == "lstm":
            assert_equal(state.layers[i].cell, torch.cat([last[1][2 * i], last[1][2 * i + 1]], -1))
    y.square().sum().backward()
    expected.square().sum().backward()
    assert_equal(ours.layers[0].hidden_weight.grad, torchs.weight_hh_l0.grad)
    assert_equal(ours.backward_layers[1].input_weight.grad, torchs.weight_ih_l1_reverse.grad)


@pytest.mark.parametrize("side", MASKS)
@pytest.mark.parametrize("cell", CELLS)
def test_padding_has_no_effect_and_no_gradient(cell: Any, side: str, seed: int) -> None:
    layers, mask = randomised(Recurrent(RecurrentConfig(cell=cell, d_model=D, num_layers=2), bidirectional=True)), MASKS[side]
    x = torch.randn(B, T, D).double().requires_grad_()
    y, state = layers(x, key_mask=mask)
    other, same = layers(torch.where(mask[..., None], x, torch.full_like(x, float("nan"))), key_mask=mask)
    assert torch.equal(y, other)
    assert all(torch.equal(a.hidden, b.hidden) for a, b in zip(state.layers, same.layers, strict=True))
    assert (y[~mask] == 0).all()
    assert (state.layers[-1].hidden[-1] == 0).all()  # the last row has no token
    (y.square().sum() + sum(s.hidden.sum() for s in state.layers)).backward()
    assert x.grad is not None
    assert (x.grad[~mask] == 0).all()
    assert (x.grad[mask] != 0).any(-1).all()


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize("cell", CELLS)
def test_a_chunk_of_padding_keeps_the_state_in_every_precision(cell: Any, is_training: bool, seed: int) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        layers = Recurrent(RecurrentConfig(cell=cell, d_model=D, num_layers=1)).to(dtype)
        with torch.set_grad_enabled(is_training):  # kernels differ
            _, state = layers(torch.randn(B, T, D, dtype=dtype))
            y, after = layers(torch.randn(B, T, D, dtype=dtype), key_mask=torch.zeros(B, T, dtype=torch.bool), state=state)
        assert torch.equal(after.layers[0].hidden, state.layers[0].hidden)
        assert cell != "lstm" or torch.equal(after.layers[0].cell, state.layers[0].cell)
        assert (y == 0).all()


def test_gradients_through_padding_are_exact(seed: int) -> None:
    layers = randomised(Recurrent(RecurrentConfig(cell="lstm", d_model=2, num_layers=1), bidirectional=True))
    mask = torch.tensor([[True, False, True], [False, False, True]])

    def run(x: Tensor) -> tuple[Tensor, Tensor]:
        y, state = layers(x, key_mask=mask)
        return y, state.layers[0].cell

    assert torch.autograd.gradcheck(run, torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # torch's own, where it breaks the graph
@pytest.mark.parametrize("cell", CELLS)
def test_training_compiles_with_graph_breaks_only_in_the_lstm(cell: Any, seed: int) -> None:
    torch._dynamo.reset()
    layers = Recurrent(RecurrentConfig(cell=cell, d_model=D, num_layers=1), bidirectional=True)
    x, mask = torch.randn(B, 3, D), RIGHT[:, :3]  # each token is a part of the graph
    compiled = torch.compile(layers, backend="aot_eager", fullgraph=cell != "lstm")
    grads = []
    for model in (layers, compiled):
        y, _ = model(x, key_mask=mask)
        grads.append(torch.autograd.grad(y.square().sum(), list(layers.parameters())))
    for ours, expected in zip(*grads, strict=True):
        torch.testing.assert_close(ours, expected)
    if cell == "lstm":
        with torch.no_grad():
            torch.testing.assert_close(torch.compile(layers, backend="eager", fullgraph=True)(x)[0], layers(x)[0])


def test_hidden_weights_start_orthogonal_and_forget_gates_open(seed: int) -> None:
    layer = RecurrentLayer(cell="lstm", input_dim=3, hidden_dim=D)
    for gate in layer.hidden_weight.chunk(4):
        torch.testing.assert_close(gate @ gate.T, torch.eye(D), rtol=1e-5, atol=1e-5)
    assert [gate.unique().tolist() for gate in layer.input_bias.chunk(4)] == [[0.0], [1.0], [0.0], [0.0]]
    assert not layer.hidden_bias.any()


def test_dropout_acts_between_layers_but_not_between_steps(seed: int) -> None:
    layers = Recurrent(RecurrentConfig(cell="gru", d_model=D, num_layers=1, dropout=1.0)).train()
    x = torch.randn(B, T, D)
    y, state = layers(x)
    assert (y == 0).all()
    torch.testing.assert_close(state.layers[0].hidden, layers.eval()(torch.zeros_like(x))[1].layers[0].hidden)
    assert torch.equal(layers(x)[0], layers(x)[0])


def recurrent(*, bidirectional: bool = False, **options: Any) -> Recurrent:
    return Recurrent(RecurrentConfig(**{"d_model": D, "num_layers": 1, **options}), bidirectional=bidirectional)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"cell": "ltsm"}, "cell must be one of rnn, lstm, gru, but is 'ltsm'"),
        ({"num_layers": 0}, "num_layers must be positive, but is 0"),
        ({"d_model": 7, "bidirectional": True}, r"d_model \(7\) must be even"),
        ({"d_model": 0}, "d_model must be positive, but is 0"),
        ({"dropout": 2.0}, r"dropout must be in \[0, 1\], but is 2.0"),
    ],
)
def test_invalid_layers_are_rejected(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, ConfigurationError), match=message):
        recurrent(**wrong)


def test_integer_and_misshapen_key_masks_are_rejected(seed: int) -> None:
    layers = Recurrent(RecurrentConfig(cell="rnn", d_model=D, num_layers=1))
    with pytest.raises(TypeError, match="key_mask must be a bool tensor"):
        layers(torch.randn(1, 3, D), key_mask=torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"shape \[1, 3\]"):
        layers(torch.randn(1, 3, D), key_mask=torch.ones(1, 4, dtype=torch.bool))
