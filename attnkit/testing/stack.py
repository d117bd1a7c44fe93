"""Rules for stacks, through the interface that models use: encode, decode, decoding continued from a state."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attnkit.recording import record_attention
from attnkit.registry import Registry, Spec
from attnkit.stack import DecoderStack, EncoderDecoderStack, EncoderStack
from attnkit.state import State
from attnkit.testing.comparison import assert_close, assert_finite
from attnkit.testing.component import D_MODEL, build

LENGTHS = (4, 6, 2)
LENGTH = max(LENGTHS)


@dataclass(frozen=True)
class Inputs:
    """Embedded tokens [B, T, D] with their key mask [B, T], and a source [B, T, D] for stacks that read one."""

    x: Tensor
    key_mask: Tensor | None
    src: Tensor

    def run(self, stack: nn.Module) -> Tensor:
        """Return the stack's output [B, T, D]. The key mask applies to the source if there is one."""
        if isinstance(stack, EncoderDecoderStack):
            return stack.decode(self.x, stack.encode(self.src, src_mask=self.key_mask))[0]
        output = stack(self.x, key_mask=self.key_mask)
        y: Tensor = output[0] if isinstance(output, tuple) else output
        return y

    def real(self, stack: nn.Module) -> Tensor:
        """Return which outputs belong to real tokens, [B, T] bool."""
        if isinstance(stack, EncoderDecoderStack) or self.key_mask is None:
            return torch.ones(self.x.shape[:2], dtype=torch.bool)
        return self.key_mask

    def row(self, index: int) -> "Inputs":
        """Return one row alone, without its padding."""
        assert self.key_mask is not None
        real = self.key_mask[index]
        return Inputs(self.x[index : index + 1], None, self.src[index : index + 1, real])


def make(registry: Registry, spec: Spec) -> nn.Module:
    """Build the stack in float64 and evaluation mode."""
    stack: nn.Module = build(registry, spec).double().eval()
    kinds = (EncoderStack, DecoderStack, EncoderDecoderStack)
    assert isinstance(stack, kinds), f"{type(stack).__name__} must inherit from EncoderStack, DecoderStack or EncoderDecoderStack"
    assert stack.d_model == D_MODEL, f"d_model is {stack.d_model} instead of {D_MODEL}"
    return stack


def draw(key_mask: Tensor | None = None) -> Inputs:
    """Draw inputs."""
    x, src = torch.randn(2, len(LENGTHS), LENGTH, D_MODEL, dtype=torch.float64)
    return Inputs(x, key_mask, src)


def padded() -> list[Inputs]:
    """Draw inputs with padding on the right, and on the left."""
    right = torch.arange(LENGTH) < torch.tensor(LENGTHS)[:, None]
    return [draw(right), draw(right.flip(1))]


def gives_a_row_alone_what_it_gives_in_a_batch(registry: Registry, spec: Spec) -> None:
    """Batched = one by one, without the padding."""
    stack = make(registry, spec)
    for given in padded():
        y = given.run(stack)
        for index in range(len(LENGTHS)):
            alone, real = given.row(index), given.real(stack)[index]
            alone = Inputs(alone.x[:, real], None, alone.src)
            assert_close(alone.run(stack)[0], y[index, real], 1e-10, f"row {index}, alone")


def ignores_masked_tokens(registry: Registry, spec: Spec) -> None:
    """Changing masked tokens leaves the output bitwise identical; a decoder's later tokens do not affect earlier ones."""
    stack = make(registry, spec)
    for given in padded():
        other, y = draw(), given.run(stack)
        assert given.key_mask is not None
        keep = given.key_mask[..., None]
        x = given.x if isinstance(stack, EncoderDecoderStack) else torch.where(keep, given.x, 10 * other.x)
        changed = Inputs(x, given.key_mask, torch.where(keep, given.src, 10 * other.src))
        real = given.real(stack)
        assert torch.equal(y[real], changed.run(stack)[real]), "masked tokens change the output"
        if not isinstance(stack, EncoderStack):
            later = Inputs(torch.cat([given.x[:, :3], other.x[:, 3:]], 1), given.key_mask, given.src)
            real = real[:, :3]
            assert torch.equal(y[:, :3][real], later.run(stack)[:, :3][real]), "later tokens change earlier ones"


def stays_finite_without_any_token(registry: Registry, spec: Spec) -> None:
    """A row (or a source) of only padding gives finite outputs and gradients."""
    stack = make(registry, spec)
    given = draw(torch.zeros(len(LENGTHS), LENGTH, dtype=torch.bool))
    y = given.run(stack)
    torch.autograd.backward(y.square().mean())
    assert_finite({"output": y, **{n: p.grad for n, p in stack.named_parameters() if p.grad is not None}}, "no token is real")


@torch.no_grad()
def decodes_in_steps(registry: Registry, spec: Spec) -> None:
    """Decoding one by one, in chunks, and after a beam reorder equals the full forward pass. States are not modified in place."""
    stack, given = make(registry, spec), padded()[1]
    if isinstance(stack, EncoderStack):
        return
    whole = given.run(stack)
    for sizes in ([1] * LENGTH, [2, 1, 3]):
        rows, start = torch.arange(len(LENGTHS)), 0
        state: State | None = stack.encode(given.src, src_mask=given.key_mask) if isinstance(stack, EncoderDecoderStack) else None
        for size in sizes:
            stop = start + size
            x = given.x[rows, start:stop]
            before = copy.deepcopy(state)
            if isinstance(stack, EncoderDecoderStack):
                assert state is not None
                y, after = stack.decode(x, state)
            else:
                assert given.key_mask is not None
                y, after = stack(x, key_mask=given.key_mask[rows, start:stop], state=state)
            assert str(before) == str(state), "a state was changed in place"
            real = given.real(stack)[rows, start:stop]
            assert_close(y[real], whole[rows, start:stop][real], 1e-10, f"tokens {start} to {stop} in chunks of {sizes}")
            beams = torch.randint(len(rows), (len(rows),))
            rows, state, start = rows[beams], after.select(beams), stop


def owns_only_what_it_uses(registry: Registry, spec: Spec) -> None:
    """Every parameter has a gradient: unused components have no parameters."""
    stack = make(registry, spec).train()
    torch.autograd.backward(padded()[0].run(stack).square().mean())
    unused = [name for name, p in stack.named_parameters() if p.grad is None]
    assert not unused, f"without a gradient: {', '.join(unused)}"


def records_weights_without_a_trace(registry: Registry, spec: Spec) -> None:
    """Recording attention changes neither the outputs nor the random numbers."""
    stack, given = make(registry, spec).train(), draw()
    state = torch.get_rng_state()
    expected = given.run(stack)
    after = torch.get_rng_state()
    torch.set_rng_state(state)
    with record_attention(stack):
        y = given.run(stack)
    assert torch.equal(y, expected), "recording changes the output"
    assert torch.equal(after, torch.get_rng_state()), "recording draws random numbers"


def stays_finite_in_half_precision(registry: Registry, spec: Spec) -> None:
    """Outputs and gradients are finite in fp16 and bf16 autocast."""
    stack = make(registry, spec).float()
    for dtype in (torch.float16, torch.bfloat16):
        given = padded()[0]
        with torch.autocast("cpu", dtype=dtype):
            y = Inputs(given.x.float(), given.key_mask, given.src.float()).run(stack)
        torch.autograd.backward(y.float().square().mean())
        assert_finite({"output": y, **{n: p.grad for n, p in stack.named_parameters() if p.grad is not None}}, str(dtype))


def compiles_without_graph_breaks(registry: Registry, spec: Spec) -> None:
    """`torch.compile(fullgraph=True)` gives the same values."""
    stack, given = make(registry, spec), padded()[0]
    torch._dynamo.reset()
    compiled = torch.compile(given.run, fullgraph=True, backend="eager")
    assert_close(compiled(stack), given.run(stack), 1e-10, "compiled output")


RULES = (
    gives_a_row_alone_what_it_gives_in_a_batch,
    ignores_masked_tokens,
    stays_finite_without_any_token,
    decodes_in_steps,
    owns_only_what_it_uses,
    records_weights_without_a_trace,
    stays_finite_in_half_precision,
    compiles_without_graph_breaks,
)
