# https://docs.pytorch.org/docs/stable/generated/torch.cuda.CUDAGraph.html
"""Recorded decoding steps: a GPU replays one as a CUDA graph, a CPU as a list of calls, without the Python code in between."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import fields
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook

from attnkit.decoding.base import Step
from attnkit.decoding.calls import Calls
from attnkit.decoding.known import is_known, is_repeatable
from attnkit.layers import TransformerState
from attnkit.mixer.cached_attention import CachedAttention
from attnkit.position import Position
from attnkit.registry import ConfigurationError
from attnkit.state import State

MIN_STEPS = 16  # on a GPU, recording takes about as long as four steps

CPU_CALLS = 16
"""A CPU records after this many calls, because most outputs end early; weights have been packed by then (`attnkit.packed`)."""

CPU_MIN_STEPS = 32  # on a CPU, a model's first recording takes about as long as seven small steps, and later ones as two

CPU_ROOM, CPU_ROWS_ROOM = 2**7, 2**10
"""The largest numbers of tokens, and of rows times tokens, for which a CPU makes room at once, because attention also reads empty room."""

CPU_WINDOW = 2**12
"""The largest number of rows times tokens for which a CPU records a model with shorter windows: a recording keeps and reads all tokens."""


class Graphed:
    """A `Step` that records one of its first calls, which reads a single token, and replays the recording for all later ones.

    The tensors of a recording keep their sizes, so caches get room for new tokens, and a mask hides the room not yet written. Results are
    those of `step` up to rounding. The step itself is called, without a recording, if the state grows in another way, if the numbers in
    tensors decide the computation (as with experts), or if the model has hooks.

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
        self.calls = 0

    def __call__(self, tokens: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return the logits of the next token [N, V] and the state, like `Step`; a recording can `branch` and, on a CPU, `select` rows."""
        self.calls += 1
        left = self.count - self.calls + 2  # these tokens and all later ones
        room = left if tokens.is_cuda else min(left, CPU_ROOM, CPU_ROWS_ROOM // max(1, len(tokens)))
        if isinstance(state, Recording):
            state = state if state.room else state.extended(room)
            return state(tokens), state
        if self._records(tokens, room) and (recording := recorded(self.step, tokens, state, room, left)) is not None:
            return recording.logits, recording
        return self.step(tokens, state)

    def _records(self, tokens: Tensor, room: int) -> bool:
        """Return whether to record this call."""
        model = getattr(self.step, "__self__", None)
        if tokens.is_cuda:
            is_time = self.calls == 2 and room >= MIN_STEPS
            return is_time and not _has_hooks(model) and all(map(is_repeatable, _modules(model)))
        is_time = self.calls == CPU_CALLS and room >= CPU_MIN_STEPS and tokens.is_cpu
        return is_time and not _has_hooks(model) and is_known(model)


def recorded(step: Step, tokens: Tensor, state: State, room: int, left: int) -> "Recording | None":
    """Return a recording of `step` that continues `state`, with `room` for tokens, and has read `tokens`; None if it cannot be recorded.

    It cannot be if rows are padded and their caches would get more columns than there are positions while `left` tokens are read, because
    a recording cannot tell columns from positions. On a CPU, it is not if windows are faster (`CPU_WINDOW`).
    """
    if isinstance(state, TransformerState):
        columns, parts = state.columns + left, [*_modules(getattr(step, "__self__", None))]
        is_long = tokens.is_cpu and len(tokens) * columns > CPU_WINDOW
        if is_long and any(isinstance(part, CachedAttention) and part.window is not None and part.window < columns for part in parts):
            return None
        limits = [part.max_length for part in parts if isinstance(part, Position) and part.max_length is not None]
        if state.key_mask is not None and any(columns > limit for limit in limits):
            return None
    recording = Recording(step, tokens, state, room)
    try:
        if tokens.is_cuda:
            recording.capture()
        else:
            recording.take(*recording.list_calls())
            recording.room -= 1
    except (ConfigurationError, RuntimeError):  # the room exceeds learned positions, or numbers in tensors decide what to compute
        return None
    if tokens.is_cuda:  # on a CPU, recording has already taken the step
        recording(tokens)
    return recording


class Recording:
    """A step on tensors that stay in place; `replay` repeats its kernels or calls, if they are recorded.

    Args:
        step: The model.
        tokens: [N, 1], as many as each step will read.
        state: The state before them; it is copied.
        room: The number of tokens for which the caches of the copy get room (None: they already have room).
    """

    def __init__(self, step: Step, tokens: Tensor, state: State, room: int | None) -> None:
        self.step, self.tokens = step, tokens.clone()
        rows = torch.arange(len(_tensors(state)[0]), device=tokens.device)
        state = state.select(rows)  # a copy: a replay writes into it
        self.state = state if room is None else state.with_room(room)
        self.room = room or 0
        self.replay: Callable[[], Tensor] | None = None
        self.logits = torch.empty(0)

    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the logits [N, V] of the token after `tokens` [N, 1]; the next call may overwrite them."""
        self.tokens.copy_(tokens)
        self.room -= 1
        if self.replay is None:
            self.run()
        else:
            self.logits = self.replay()
        return self.logits

    def peek(self) -> tuple[Tensor, State]:
        """Return the results of a step, without changing the state.

        Raises:
            RuntimeError: The step changes more than numbers: a size, or something that is not a tensor.
        """
        logits, after = self.step(self.tokens, self.state)
        if _form(after) != _form(self.state):
            raise RuntimeError("the state changes its form")
        return logits, after

    def run(self) -> None:
        """Take a step, and overwrite the state with the one after it."""
        self.take(*self.step(self.tokens, self.state))

    def take(self, logits: Tensor, after: State) -> None:
        """Take a step that has already been computed."""
        self.logits = logits
        for old, new in self._changes(after):
            old.copy_(new)

    def branch(self, rows: Tensor) -> "Recording":
        """Make the hypotheses of a beam search continue `rows` [B, N], like `State.branch` but in place."""
        self.take(self.logits, self.state.branch(rows))
        return self

    def select(self, rows: Tensor) -> "Recording":
        """Return a recording of `rows` [N] on a CPU."""
        chosen = Recording(self.step, self.tokens.index_select(0, rows), self.state.select(rows), None)
        chosen.room = self.room
        return chosen._listed()

    def extended(self, room: int) -> "Recording":
        """Return a recording that continues this one, which is full, with `room` for more tokens, or less if there are too few positions.

        Raises:
            ConfigurationError: There is no position for another token.
        """
        while True:
            try:
                return Recording(self.step, self.tokens, self.state, room)._listed()
            except ConfigurationError:
                if room == 1:
                    raise
                room //= 2

    def _listed(self) -> "Recording":
        with suppress(RuntimeError):  # then each call runs the step
            self.list_calls()
        return self

    def capture(self) -> None:
        """Record the kernels as a CUDA graph."""
        device = self.tokens.device
        current, aside = torch.cuda.current_stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        aside.wait_stream(current)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(aside):
                self.peek()  # warms up: kernels are compiled and selected
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self.run()
                finally:
                    graph.capture_end()
        finally:
            current.wait_stream(aside)
        self.replay = partial(_replayed, graph, self.logits)

    def list_calls(self) -> tuple[Tensor, State]:
        """Record the calls of torch functions; return the results of `peek`."""
        with Calls() as calls:
            logits, after = self.peek()
        for change in self._changes(after, lambda x: calls.__torch_function__(Tensor.clone, (), (x,))):
            calls.add(Tensor.copy_, change, {}, None)
        self.replay = calls.program(logits, self.peek, owner=getattr(self.step, "__self__", self.step))
        return logits, after

    def _changes(self, after: State, clone: Callable[[Tensor], Tensor] = Tensor.clone) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors of the state that a step replaces, with their successors, which are copied if they would be overwritten."""
        olds = _tensors(self.state)
        written = {old.untyped_storage().data_ptr() for old in olds}
        pairs = [(old, new) for old, new in zip(olds, _tensors(after), strict=True) if old is not new]
        return [(old, clone(new) if new.untyped_storage().data_ptr() in written else new) for old, new in pairs]


def _replayed(graph: torch.cuda.CUDAGraph, logits: Tensor) -> Tensor:
    graph.replay()
    return logits


def _has_hooks(model: Any) -> bool:
    has_global: bool = _has_any_global_hook()  # type: ignore[no-untyped-call]
    return has_global or any(module._forward_hooks or module._forward_pre_hooks for module in _modules(model))


def _modules(model: Any) -> Iterable[nn.Module]:
    return model.modules() if isinstance(model, nn.Module) else ()


def _parts(value: Any) -> list[Any]:
    if isinstance(value, State):
        return [getattr(value, field.name) for field in fields(value)]
    return list(value) if isinstance(value, tuple) else []


def _tensors(value: Any) -> list[Tensor]:
    """Return the tensors as they are stored; `tensors_in` returns views of some."""
    return [value] if isinstance(value, Tensor) else [x for part in _parts(value) for x in _tensors(part)]


def _form(value: Any) -> Any:
    """Return everything about a state except its numbers."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return (type(value), *map(_form, _parts(value))) if isinstance(value, State | tuple) else value
