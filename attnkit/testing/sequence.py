"""Inputs and shared parts of the rules for sequence models, both stacks and bare Transformers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnkit.recording import record_attention
from attnkit.stack import EncoderDecoderStack
from attnkit.state import tensors_in
from attnkit.testing.comparison import assert_close
from attnkit.testing.component import D_MODEL

LENGTHS = (5, 8, 2)
LENGTH = max(LENGTHS)


@dataclass(frozen=True)
class Inputs:
    """Embedded tokens [B, T, D] with their key mask [B, T], and a source [B, T, D] for stacks that read one."""

    x: Tensor
    key_mask: Tensor | None
    src: Tensor

    def run(self, model: nn.Module) -> Tensor:
        """Return the model's output [B, T, D]. The key mask applies to the source if there is one."""
        if isinstance(model, EncoderDecoderStack):
            return model.decode(self.x, self.start(model))[0]
        output = model(self.x, key_mask=self.key_mask)
        y: Tensor = output[0] if isinstance(output, tuple) else output
        return y

    def start(self, model: nn.Module) -> Any:
        """Return the state before the first token."""
        return model.encode(self.src, src_mask=self.key_mask) if isinstance(model, EncoderDecoderStack) else None

    def step(self, model: nn.Module, rows: Tensor, start: int, stop: int, state: Any) -> tuple[Tensor, Any]:
        """Return the output for the next tokens of some rows, and the state after them."""
        x = self.x[rows, start:stop]
        if isinstance(model, EncoderDecoderStack):
            return model.decode(x, state)
        y, after = model(x, key_mask=None if self.key_mask is None else self.key_mask[rows, start:stop], state=state)
        return y, after

    def real(self, model: nn.Module) -> Tensor:
        """Return which outputs belong to real tokens, [B, T] bool."""
        if isinstance(model, EncoderDecoderStack) or self.key_mask is None:
            return torch.ones(self.x.shape[:2], dtype=torch.bool)
        return self.key_mask


def draw_tokens() -> Tensor:
    """Draw embedded tokens [B, T, D]."""
    return torch.randn(len(LENGTHS), LENGTH, D_MODEL, dtype=torch.float64)


def draw(key_mask: Tensor | None = None) -> Inputs:
    """Draw inputs."""
    return Inputs(draw_tokens(), key_mask, draw_tokens())


def padding() -> Tensor:
    """Return the key mask [B, T] of rows with padding on the right."""
    return torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]


def does_not_depend_on_the_rest_of_a_batch(model: nn.Module, case: Inputs) -> None:
    """The output of a row in a batch equals that of the row alone, without its padding."""
    y, key_mask = case.run(model), torch.ones(case.x.shape[:2], dtype=torch.bool) if case.key_mask is None else case.key_mask
    for row, real in enumerate(case.real(model)):
        alone = Inputs(case.x[row, real][None], None, case.src[row, key_mask[row]][None])
        assert_close(alone.run(model)[0], y[row, real], 1e-10, f"row {row}, alone")


def ignores_masked_tokens(model: nn.Module, case: Inputs, *, causal: bool) -> None:
    """Changes of masked tokens leave the output bitwise identical; in a causal model, later tokens do not affect earlier outputs."""
    other, y, real = draw(), case.run(model), case.real(model)
    if case.key_mask is not None:
        keep = case.key_mask[..., None]
        x = case.x if isinstance(model, EncoderDecoderStack) else torch.where(keep, case.x, 10 * other.x)
        changed = Inputs(x, case.key_mask, torch.where(keep, case.src, 10 * other.src))
        assert torch.equal(y[real], changed.run(model)[real]), "masked tokens change the output"
    if causal:
        later = Inputs(torch.cat([case.x[:, :3], other.x[:, 3:]], 1), case.key_mask, case.src)
        real = real[:, :3]
        assert torch.equal(y[:, :3][real], later.run(model)[:, :3][real]), "later tokens change earlier ones"


CHUNKS = ([1] * LENGTH, [3, 1, 4], [LENGTH - 1, 1])


def decodes_in_steps(model: nn.Module, case: Inputs, *, chunks: Iterable[list[int]] = CHUNKS) -> None:
    """Decoding in chunks of these sizes, with rows reordered and repeated between them, equals the full pass; no state is modified."""
    whole = case.run(model)
    for sizes in chunks:
        rows, state, start = torch.arange(len(LENGTHS)), case.start(model), 0
        for size in sizes:
            stop, before = start + size, [tensor.clone() for tensor in tensors_in(state)]
            y, after = case.step(model, rows, start, stop, state)
            assert all(map(torch.equal, before, tensors_in(state))), "a state was changed in place"
            real = case.real(model)[rows, start:stop]
            assert_close(y[real], whole[rows, start:stop][real], 1e-10, f"tokens {start} to {stop} in chunks of {sizes}")
            beams = torch.randint(len(rows), (len(rows),))
            rows, state, start = rows[beams], after.select(beams), stop


def recorded(module: nn.Module, run: Callable[[], Tensor], where: str = "") -> tuple[Tensor, dict[str, Tensor]]:
    """Return the output and the recorded weights; recording must change neither the output nor the random numbers."""
    state = torch.get_rng_state()
    expected = run()
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    with record_attention(module) as maps:
        y = run()
    assert torch.equal(y, expected), f"recording changes the output{where}"
    assert torch.equal(after, torch.get_rng_state()), f"recording draws random numbers{where}"
    return y, maps
