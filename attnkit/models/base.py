"""What all models share: the spec they are rebuilt from, and the output projection."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.decoding import Step, beam, greedy
from attnkit.state import State


class Model(nn.Module):
    """An embedding, a stack and a head. Made by `attnkit.compose`.

    Attributes:
        spec: Plain data; `attnkit.compose(**model.spec)` builds the same model with new weights.
        pad_id: Fills the rows of a batch.
        bos_id: Starts a target.
        eos_id: Ends a sequence, or None.
    """

    spec: dict[str, Any]

    def __init__(self, *, pad_id: int, bos_id: int, eos_id: int | None) -> None:
        super().__init__()
        self.pad_id, self.bos_id, self.eos_id = pad_id, bos_id, eos_id

    def search(self, step: Step, tokens: Tensor, state: State | None, *, max_length: int, beam_size: int, length_penalty: float) -> Tensor:
        """Return the new tokens [B, L] after `tokens` [B, T] and `state`: greedily for one beam, else by beam search.

        Raises:
            ValueError: `max_length` or `beam_size` is not positive.
        """
        if max_length < 1 or beam_size < 1:
            raise ValueError(f"max_length and beam_size must be positive, but are {max_length} and {beam_size}")
        if beam_size == 1:
            return greedy(step, tokens, state, max_length=max_length, eos_id=self.eos_id, pad_id=self.pad_id)
        return beam(
            step,
            tokens,
            state,
            beam_size=beam_size,
            max_length=max_length,
            eos_id=self.eos_id,
            pad_id=self.pad_id,
            length_penalty=length_penalty,
        )


@contextmanager
def generating(model: nn.Module) -> Iterator[None]:
    """Switch gradients and dropout off inside the `with` block, whatever mode each module is in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, was_training in modes:
            module.training = was_training
