"""The base of all models: the spec from which they are rebuilt, and generation."""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from attnkit.decoding import Generation, Graphed, Hypotheses, Options, Start, beam, stream
from attnkit.head import Head
from attnkit.packed import Packed, packing
from attnkit.registry import ConfigurationError, NormSpec, StackSpec, stacks
from attnkit.state import State

Tie = Literal["none", "output", "inputs", "all"]
"""The tables that a model shares."""


class SpecialTokens(TypedDict):
    """The ids of the tokens that pad the rows of a batch, start a target, and end a sequence (None: no token does)."""

    pad_id: int
    bos_id: int
    eos_id: int | None


def check_tie(tie: str, allowed: tuple[str, ...]) -> None:
    """Raise unless `tie` is one of the allowed values."""
    if tie not in allowed:
        raise ConfigurationError(f"tie must be one of {', '.join(allowed)}, but is {tie!r}")


def norm_of(stack: StackSpec) -> NormSpec:
    """Return the spec of a stack's norm, or `layer_norm` for a stack without that option, such as a recurrent one."""
    norm: NormSpec = stacks.resolve(stack).get("norm", "layer_norm")
    return norm


class Model(nn.Module):
    """An embedding, a stack and a head, built by `attnkit.compose`.

    Attributes:
        spec: Plain data; `attnkit.compose(**model.spec)` builds the same model with new weights.
        learning_rates: Factors of the learning rate by parameter name, where they are not 1 (init `mup`); tasks apply them.
        pad_id: The token that pads the rows of a batch.
        bos_id: The token that starts a target.
        eos_id: The token that ends a sequence, or None.
    """

    spec: dict[str, Any]
    learning_rates: dict[str, float]

    def __init__(self, **special_tokens: Unpack[SpecialTokens]) -> None:
        super().__init__()
        self.learning_rates = {}
        self.pad_id, self.bos_id, self.eos_id = special_tokens["pad_id"], special_tokens["bos_id"], special_tokens["eos_id"]


class GeneratingModel(Model, ABC):
    """A model that scores the next token, and so can generate."""

    head: Head

    @abstractmethod
    def step(self, tokens: Tensor, state: Any) -> tuple[Tensor, State]:
        """Return the logits [B, V] of the token after `tokens` [B, T], which follow `state`, and the state after them."""

    @abstractmethod
    def begin(self, inputs: Tensor, mask: Tensor | None = None) -> Start:
        """Return the start of generation from `inputs` [B, T] (`mask` [B, T] bool, True = real token)."""

    def _start(self, inputs: Tensor, mask: Tensor | None) -> Start:
        """Return the same as `begin`, up to rounding; subclasses may inspect the inputs to save work."""
        return self.begin(inputs, mask)

    def generate(self, inputs: Tensor, mask: Tensor | None = None, **options: Unpack[Options]) -> Tensor:
        """Generate tokens, without dropout or gradients. Rows do not depend on each other; a prefix that all prompts share is read once.

        Args:
            inputs: [B, T], the source of an encoder-decoder, or the prompt of a decoder, with at least one real token in each row.
            mask: [B, T] bool, True = real token (default: all); padding may be on either side.
            **options: `max_length=64`, `min_length=0`, `beam_size=1`, `length_penalty=1.0`, `temperature`, `top_k`, `top_p`,
                `repetition_penalty=1.0`, `end_tokens`, `seed`: the fields of `attnkit.decoding.Generation`.

        Returns:
            The new tokens [B, L], without the start token but with end tokens; finished rows are padded with `pad_id`.

        Raises:
            ConfigurationError: An option is wrong, or there are too few learned positions.
            ValueError: A row of the prompt is empty, or the mask has another shape.
            TypeError: The mask is not bool.
        """
        generation = self._generation(options)
        if generation.beam_size > 1:
            return self.n_best(inputs, mask, **options).tokens[:, 0]
        with generating(self), packing(Packed(self)):
            step = Graphed(self.step, generation.max_length - 1)
            tokens = stream(step, self._start(inputs, mask), generation, pad_id=self.pad_id, excluded=self._excluded)
            return torch.stack(list(tokens), 1)

    def n_best(self, inputs: Tensor, mask: Tensor | None = None, **options: Unpack[Options]) -> Hypotheses:
        """Return all final hypotheses of a beam search, best first, with their scores. The arguments are those of `generate`.

        Example:
            >>> import attnkit
            >>> model = attnkit.compose(stack="decoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20, eos_id=None)
            >>> tokens, scores = model.n_best(torch.tensor([[5, 6, 7], [8, 9, 5]]), beam_size=3, max_length=4)
            >>> tokens.shape, scores.shape
            (torch.Size([2, 3, 4]), torch.Size([2, 3]))
        """
        generation = self._generation(options)
        with generating(self), packing(Packed(self)):
            step = Graphed(self.step, generation.max_length - 1)
            return beam(step, self._start(inputs, mask), generation, pad_id=self.pad_id, excluded=self._excluded)

    def stream(self, inputs: Tensor, mask: Tensor | None = None, **options: Unpack[Options]) -> Iterator[Tensor]:
        """Return an iterator that yields the new tokens [B] of each step as soon as they are known: `generate` without beams.

        Example:
            >>> import attnkit
            >>> model = attnkit.compose(stack="decoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20, eos_id=None)
            >>> [tokens.shape for tokens in model.stream(torch.tensor([[5, 6, 7]]), max_length=2, temperature=0.9, seed=1)]
            [torch.Size([1]), torch.Size([1])]
        """
        generation = self._generation(options)
        with generating(self):
            tokens = stream(self.step, self._start(inputs, mask), generation, pad_id=self.pad_id, excluded=self._excluded)
        return self._one_by_one(tokens)

    def _one_by_one(self, tokens: Iterator[Tensor]) -> Iterator[Tensor]:
        weights, modules = Packed(self), list(self.modules())
        while True:
            # only while a token is computed: between tokens, the caller keeps its gradients
            with _evaluating(modules), packing(weights):
                token = next(tokens, None)
            if token is None:
                return
            yield token

    @property
    def _excluded(self) -> Sequence[int]:
        """The outputs that are never chosen; none if the head was replaced by another module."""
        return self.head.excluded if isinstance(self.head, Head) else ()

    def _generation(self, options: Options) -> Generation:
        generation = Generation.of(options)
        own = () if self.eos_id is None else (self.eos_id,)
        return replace(generation, end_tokens=own) if generation.end_tokens is None else generation


def generating(model: nn.Module) -> AbstractContextManager[None]:
    """Return a context without gradients and dropout, whatever the mode of each module."""
    return _evaluating(model.modules())


@contextmanager
def _evaluating(modules: Iterable[nn.Module]) -> Iterator[None]:
    with _lock:
        held = [module for module in modules if module.training or module in _held]
        for module in held:
            _held[module] = _held.get(module, 0) + 1
            module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        with _lock:
            for module in held:
                _held[module] -= 1
                if not _held[module]:
                    del _held[module]
                    module.training = True


_lock = threading.RLock()  # a block that was abandoned may be closed at any time, even while another begins
_held: dict[nn.Module, int] = {}
"""Modules in evaluation mode until this many blocks have ended, in whatever threads."""
