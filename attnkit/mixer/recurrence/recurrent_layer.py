# https://doi.org/10.1162/neco.1997.9.8.1735
"""A recurrent layer that runs on torch's fused sequence kernels; padding never changes its state."""

from dataclasses import dataclass
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn

from attnkit.linear import linear
from attnkit.mixer.recurrence.repeated import Repeated
from attnkit.mixer.recurrence.tokens import rows
from attnkit.registry import ConfigurationError
from attnkit.state import State
from attnkit.transforms import transformed

Cell = Literal["rnn", "lstm", "gru"]

GATES: dict[Cell, int] = {"rnn": 1, "lstm": 4, "gru": 3}
"""The number of blocks of rows in a weight, in torch's order: input, forget, candidate, output (LSTM); reset, update, candidate (GRU)."""

SHUT = 1e4
"""Subtracted from a gate's logit to shut it, or added to open it: the sigmoid is then 0 or 1 in every precision, including fp16."""


@dataclass(frozen=True)
class CellState(State):
    """The state of one recurrent layer."""

    hidden: Tensor  # [B, H]
    cell: Tensor | None = None  # [B, H], only for an LSTM


class RecurrentLayer(nn.Module):
    r"""A recurrent layer in one direction. Its parameters have the shapes and meanings of torch's, so weights can be copied.

    Equation:
        $$\mathrm{rnn:}\ h_t = \tanh(W x_t + U h_{t-1} + b)$$
        $$\mathrm{lstm:}\ c_t = f_t \odot c_{t-1} + i_t \odot \tanh(W_c x_t + U_c h_{t-1} + b_c), \quad h_t = o_t \odot \tanh(c_t)$$
        $$\mathrm{gru:}\ h_t = z_t \odot h_{t-1} + (1 - z_t) \odot \tanh(W_n x_t + b_n + r_t \odot (U_n h_{t-1} + b'_n))$$
        with gates $i, f, o, r, z = \sigma(W x_t + U h_{t-1} + b)$, each with its own weights

    Paper: Elman 1990, https://doi.org/10.1207/s15516709cog1402_1 (rnn); Hochreiter and Schmidhuber 1997,
    https://doi.org/10.1162/neco.1997.9.8.1735, with forget gates by Gers et al. 2000 (lstm); Cho et al. 2014,
    https://arxiv.org/abs/1406.1078 (gru)

    Initialisation, gate by gate: W from Glorot's uniform distribution (Glorot and Bengio 2010), U orthogonal (Saxe et al. 2014,
    https://arxiv.org/abs/1312.6120), biases zero except one for the forget gate (Jozefowicz et al. 2015,
    https://proceedings.mlr.press/v37/jozefowicz15.html).

    Args:
        cell: `rnn`, `lstm` or `gru`.
        input_dim: Width of the input I.
        hidden_dim: Width of the state and of the output H.

    Raises:
        ConfigurationError: The cell is unknown.
        ValueError: A width is not positive.

    Example:
        >>> layer = RecurrentLayer(cell="gru", input_dim=4, hidden_dim=3)
        >>> y, state = layer(torch.randn(2, 5, 4))
        >>> y.shape, torch.equal(state.hidden, y[:, -1])
        (torch.Size([2, 5, 3]), True)
    """

    def __init__(self, *, cell: Cell, input_dim: int, hidden_dim: int) -> None:
        super().__init__()
        if cell not in GATES:
            raise ConfigurationError(f"cell must be one of {', '.join(GATES)}, but is {cell!r}")
        if input_dim < 1 or hidden_dim < 1:
            raise ValueError(f"input_dim ({input_dim}) and hidden_dim ({hidden_dim}) must be positive")
        self.cell, self.hidden_dim = cell, hidden_dim
        width = GATES[cell] * hidden_dim
        self.input_weight = nn.Parameter(torch.empty(width, input_dim))
        self.hidden_weight = nn.Parameter(torch.empty(width, hidden_dim))
        self.input_bias = nn.Parameter(torch.empty(width))
        self.hidden_bias = nn.Parameter(torch.empty(width))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw Glorot-uniform input weights and orthogonal hidden weights; set the forget gate's bias to one and the others to zero."""
        for gate in self.hidden_weight.chunk(GATES[self.cell]):  # drawn first, so that they do not depend on the width of the input
            nn.init.orthogonal_(gate)
        for gate in self.input_weight.chunk(GATES[self.cell]):
            nn.init.xavier_uniform_(gate)
        nn.init.zeros_(self.input_bias)
        nn.init.zeros_(self.hidden_bias)
        if self.cell == "lstm":
            nn.init.ones_(self.input_bias.chunk(4)[1])

    def start(self, x: Tensor) -> CellState:
        """Return the state before the first token: zeros."""
        zeros = x.new_zeros(x.shape[0], self.hidden_dim)
        return CellState(zeros, zeros if self.cell == "lstm" else None)

    def forward(self, x: Tensor, state: CellState | None = None, *, real: Tensor | None = None) -> tuple[Tensor, CellState]:
        """Run over a sequence in one fused call, or over one token with `step`, because each fused call first prepares the weights.

        `x` [B, T, I] follows the tokens in `state` (default: zeros); in each row, `real` tokens precede padding (default: all are real).
        Returns the output [B, T, H], zero at padding, and the state after each row's last real token.
        """
        state = self.start(x) if state is None else state
        has_one_type = x.dtype == state.hidden.dtype == self.input_weight.dtype and not torch.is_autocast_enabled(x.device.type)
        if real is None and x.shape[1] == 1 and has_one_type:
            state = self.step(x[:, 0], state)
            return state.hidden[:, None], state
        if real is None:
            return self._fused(x, state, self.input_weight)
        padding = ~real[..., None]
        x, input_weight = x.masked_fill(padding, 0.0), cast(Tensor, self.input_weight)
        if self.cell == "lstm":  # the kernel returns all hidden states, but only the last cell, so padding must not change the cell
            x, input_weight = torch.cat([x, padding.to(x.dtype)], -1), torch.cat([input_weight, self._hold()], 1)
        y, after = self._fused(x, state, input_weight)
        y, length = y.masked_fill(padding, 0.0), real.sum(1)
        last = rows(y, (length - 1).clamp(min=0)[:, None])[:, 0]
        return y, CellState(torch.where(length[:, None] > 0, last, state.hidden.to(y.dtype)), after.cell)

    def step(self, x: Tensor, state: CellState) -> CellState:
        """Return the state after one more token, [B, I]. Its `hidden` is the output."""
        read = linear(x, cast(Tensor, self.input_weight), self.input_bias)
        return self.after(read, linear(state.hidden, cast(Tensor, self.hidden_weight), self.hidden_bias), state)

    def after(self, read: Tensor, kept: Tensor, state: CellState) -> CellState:
        """Return the state after a token, given the products W x + b and U h + b', [B, G H]."""
        if state.cell is not None:
            i, f, g, o = (read + kept).chunk(4, -1)
            cell = f.sigmoid() * state.cell.to(read.dtype) + i.sigmoid() * g.tanh()
            return CellState(o.sigmoid() * cell.tanh(), cell)
        if self.cell == "rnn":
            return CellState((read + kept).tanh())
        (r, z, n), (kept_r, kept_z, kept_n) = read.chunk(3, -1), kept.chunk(3, -1)
        candidate = (n + (r + kept_r).sigmoid() * kept_n).tanh()
        return CellState(candidate + (z + kept_z).sigmoid() * (state.hidden.to(read.dtype) - candidate))

    def walk(self, x: Tensor) -> "Walk":
        """Return a token-by-token run over a sequence of inputs of which only the first channels, `x` [B, T, J], are known in advance."""
        return Walk(self, x)

    def _fused(self, x: Tensor, state: CellState, input_weight: Tensor) -> tuple[Tensor, CellState]:
        """Run torch's kernel over all tokens of `x`; under autocast, all in its precision, so that weights are cast only once."""
        device, dtype = x.device.type, x.dtype
        if torch.is_autocast_enabled(device) and dtype != torch.float64:
            dtype = torch.get_autocast_dtype(device)
        with torch.autocast(device, enabled=False):
            weights = [w.to(dtype) for w in (input_weight, self.hidden_weight, self.input_bias, self.hidden_bias)]
            weights = _joined(weights) if x.is_cuda else weights
            x, hidden = x.to(dtype), state.hidden.to(dtype)[None]
            if transformed():  # vmap has no rules for the kernels
                return self._stepped(x, CellState(hidden[0], None if state.cell is None else state.cell.to(dtype)), weights)
            # has biases, number of layers, dropout, training, bidirectional, batch first
            arguments = (weights, True, 1, 0.0, torch.is_grad_enabled(), False, True)
            if state.cell is not None:
                is_traceable = device != "cpu" or dtype == torch.float64 or not torch.is_grad_enabled()
                y, hidden, cell = (torch.lstm if is_traceable else _lstm)(x, (hidden, state.cell.to(dtype)[None]), *arguments)
                return y, CellState(hidden[0], cell[0])
            y, hidden = (torch.gru if self.cell == "gru" else torch.rnn_tanh)(x, hidden, *arguments)
            return y, CellState(hidden[0])

    def _stepped(self, x: Tensor, state: CellState, weights: list[Tensor]) -> tuple[Tensor, CellState]:
        """Run over all tokens of `x` one by one."""
        input_weight, hidden_weight, input_bias, hidden_bias = weights
        outputs = []
        for read in nn.functional.linear(x, input_weight, input_bias).unbind(1):
            state = self.after(read, nn.functional.linear(state.hidden, hidden_weight, hidden_bias), state)
            outputs.append(state.hidden)
        return torch.stack(outputs, 1), state

    def _hold(self) -> Tensor:
        """Return the weights [4 H, 1] of an input that is one at padding, where they shut the input gate and open the forget gate."""
        hold = self.input_weight.new_zeros(4, self.hidden_dim)
        hold[0], hold[1] = -SHUT, SHUT
        return hold.view(-1, 1)


class Walk:
    """A layer that runs over a sequence token by token. Products with the channels known in advance are computed for all tokens at once.

    `x` [B, T, J] are those channels, the first of the inputs.
    """

    def __init__(self, layer: RecurrentLayer, x: Tensor) -> None:
        self.layer, known, arguments = layer, x.shape[-1], {"batch": x.shape[0], "steps": x.shape[1]}
        self.known = nn.functional.linear(x, layer.input_weight[:, :known], layer.input_bias).unbind(1)
        self.inputs = Repeated(layer.input_weight[:, known:], **arguments)
        self.hidden = Repeated(layer.hidden_weight, **arguments)

    def step(self, t: int, x: Tensor, state: CellState) -> CellState:
        """Return the state after token `t`, given the other channels `x` [B, I - J] of its input."""
        kept = self.hidden(state.hidden)
        return self.layer.after(self.known[t] + self.inputs(x), kept + self.layer.hidden_bias.to(kept.dtype), state)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _lstm(x: Tensor, state: tuple[Tensor, Tensor], weights: list[Tensor], *arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Run the LSTM outside compiled graphs: torch 2.13 cannot trace oneDNN's backward pass, so the graph breaks here in CPU training."""
    return torch.lstm(x, state, weights, *arguments)


def _joined(weights: list[Tensor]) -> list[Tensor]:
    """Return the weights as parts of one tensor, the layout that cuDNN expects."""
    parts = torch.split(torch.cat([w.flatten() for w in weights]), [w.numel() for w in weights])
    return [part.view(w.shape) for part, w in zip(parts, weights, strict=True)]
