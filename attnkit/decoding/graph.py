# https://docs.pytorch.org/docs/stable/generated/torch.cuda.CUDAGraph.html
"""Decoding steps as a CUDA graph: a GPU repeats one recorded step, without Python between its kernels."""

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from attnkit.decoding.base import Step
from attnkit.registry import ConfigurationError
from attnkit.state import State

MIN_STEPS = 16  # recording takes about as long as four steps


class Graphed:
    """A `Step` that records its second call, which reads a single token, and replays the recording for all later ones.

    The tensors of a recording keep their sizes, so caches get room for all new tokens, and a mask hides what is not written yet. Results
    are those of `step` up to rounding. What cannot be recorded is not: a state that grows otherwise, or a step that reads numbers from the
    GPU to decide what to compute, as experts do, is called as it is.

    Args:
        step: The model, without dropout.
        count: The largest number of tokens to read after the first call.

    Example:
        >>> import attnkit
        >>> model = attnkit.compose(stack="decoder", d_model=16, num_layers=2, num_heads=2, vocab_size=20).eval()
        >>> logits, state = Graphed(model.step, 8)(torch.tensor([[5, 6]]), None)  # on a GPU, the next call records
        >>> logits.shape
        torch.Size([1, 20])
    """

    def __init__(self, step: Step, count: int) -> None:
        self.step, self.count = step, count
        self.recording: Recording | None = None
        self.calls = 0

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the logits of the next token [N, V] and the state, as `Step`; a recording can `branch`, but has no rows to select."""
        self.calls += 1
        if self.calls == 2 and tokens.is_cuda and self.count >= MIN_STEPS:
            self.recording = recorded(self.step, tokens, state, self.count)
        if self.recording is not None:
            return self.recording(tokens), self.recording
        return self.step(tokens, state)


def recorded(step: Step, tokens: Tensor, state: State, count: int) -> "Recording | None":
    """Return a recording of `step` after `state`, with room for `count` tokens; None if it cannot be recorded."""
    recording = Recording(step, tokens, state, count)
    current, aside = torch.cuda.current_stream(tokens.device), torch.cuda.Stream(tokens.device)  # type: ignore[no-untyped-call]
    aside.wait_stream(current)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.stream(aside):
            if not recording.is_fixed():  # also warms up: kernels are compiled and selected
                return None
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                recording.run()
            finally:
                graph.capture_end()
    except (ConfigurationError, RuntimeError):  # the room exceeds learned positions; or the step waits for the GPU
        return None
    finally:
        current.wait_stream(aside)
    recording.graph = graph
    return recording


class Recording:
    """A step between tensors that stay where they are; on a GPU, `graph` holds its kernels."""

    def __init__(self, step: Step, tokens: Tensor, state: State, count: int) -> None:
        self.step, self.tokens = step, tokens.clone()
        rows = torch.arange(len(_tensors(state)[0]), device=tokens.device)
        self.state = state.select(rows).with_room(count)  # copies: a replay writes into them
        self.graph: torch.cuda.CUDAGraph | None = None
        self.logits = torch.empty(0)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the logits [N, V] of the token after `tokens` [N, 1]; the next call overwrites them."""
        self.tokens.copy_(tokens)
        if self.graph is None:
            self.run()
        else:
            self.graph.replay()
        return self.logits

    def is_fixed(self) -> bool:
        """Return whether a step changes numbers only: no sizes, and nothing but tensors. The state stays as it is."""
        return bool(_form(self.step(self.tokens, self.state)[1]) == _form(self.state))

    def branch(self, rows: Tensor) -> "Recording":
        """Make the hypotheses of a beam search continue `rows` [B, N], as `State.branch`, in place."""
        self._replace(self.state.branch(rows))
        return self

    def run(self) -> None:
        """Take a step, and write the state after it over the one before it."""
        self.logits, after = self.step(self.tokens, self.state)
        self._replace(after)

    def _replace(self, after: State) -> None:
        for old, new in zip(_tensors(self.state), _tensors(after), strict=True):
            if old is not new:
                old.copy_(new)


def _parts(value: Any) -> list[Any]:
    if isinstance(value, State):
        return [getattr(value, field.name) for field in fields(value)]
    return list(value) if isinstance(value, tuple) else []


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors as they are stored; `tensors_in` returns views of some."""
    return [value] if isinstance(value, Tensor) else [x for part in _parts(value) for x in _tensors(part)]


def _form(value: Any) -> Any:
    """Return everything about a state but its numbers."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return (type(value), *map(_form, _parts(value))) if isinstance(value, State | tuple) else value
