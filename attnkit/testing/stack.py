"""Rules for stacks, through the interface that models use: encoding, decoding, and continuing from a state."""

import torch
from torch import nn

from attnkit.registry import Registry, Spec
from attnkit.stack import DecoderStack, EncoderDecoderStack, EncoderStack
from attnkit.testing import sequence
from attnkit.testing.comparison import assert_close, assert_finite
from attnkit.testing.component import D_MODEL, build
from attnkit.testing.sequence import LENGTH, LENGTHS, Inputs, draw, padding

STEPS = 3  # a recurrent stack is compiled step by step


def make(registry: Registry, spec: Spec) -> nn.Module:
    """Build the stack in float64 and evaluation mode."""
    stack: nn.Module = build(registry, spec).double().eval()
    kinds = (EncoderStack, DecoderStack, EncoderDecoderStack)
    assert isinstance(stack, kinds), f"{type(stack).__name__} must inherit from EncoderStack, DecoderStack or EncoderDecoderStack"
    assert stack.d_model == D_MODEL, f"d_model is {stack.d_model} instead of {D_MODEL}"
    return stack


def padded() -> list[Inputs]:
    """Draw inputs with padding on the right, and others with padding on the left."""
    return [draw(padding()), draw(padding().flip(1))]


def does_not_depend_on_the_rest_of_a_batch(registry: Registry, spec: Spec) -> None:
    """The output of a row in a batch equals that of the row alone, without its padding."""
    stack = make(registry, spec)
    for case in padded():
        sequence.does_not_depend_on_the_rest_of_a_batch(stack, case)


def ignores_masked_tokens(registry: Registry, spec: Spec) -> None:
    """Changes of masked tokens leave the output bitwise identical; a decoder's later tokens do not affect earlier outputs."""
    stack = make(registry, spec)
    for case in padded():
        sequence.ignores_masked_tokens(stack, case, causal=not isinstance(stack, EncoderStack))


def stays_finite_without_any_token(registry: Registry, spec: Spec) -> None:
    """A row (or a source) of only padding gives finite outputs and gradients."""
    stack = make(registry, spec)
    case = draw(torch.zeros(len(LENGTHS), LENGTH, dtype=torch.bool))
    y = case.run(stack)
    torch.autograd.backward(y.square().mean())
    assert_finite({"output": y, **{n: p.grad for n, p in stack.named_parameters() if p.grad is not None}}, "no token is real")


@torch.no_grad()
def decodes_in_steps(registry: Registry, spec: Spec) -> None:
    """Decoding token by token, in chunks, and after a beam reorder equals the full forward pass. States are not modified in place."""
    stack = make(registry, spec)
    if not isinstance(stack, EncoderStack):
        sequence.decodes_in_steps(stack, padded()[1])


def owns_only_what_it_uses(registry: Registry, spec: Spec) -> None:
    """Every parameter has a gradient: unused components have no parameters."""
    stack = make(registry, spec).train()
    torch.autograd.backward(padded()[0].run(stack).square().mean())
    unused = [name for name, p in stack.named_parameters() if p.grad is None]
    assert not unused, f"without a gradient: {', '.join(unused)}"


def records_weights_without_side_effects(registry: Registry, spec: Spec) -> None:
    """Recording attention changes neither the outputs nor the random numbers."""
    stack, case = make(registry, spec).train(), draw()
    sequence.recorded(stack, lambda: case.run(stack))


def stays_finite_in_half_precision(registry: Registry, spec: Spec) -> None:
    """Outputs and gradients are finite in fp16 and bf16 autocast."""
    stack = make(registry, spec).float()
    for dtype in (torch.float16, torch.bfloat16):
        case = padded()[0]
        with torch.autocast("cpu", dtype=dtype):
            y = Inputs(case.x.float(), case.key_mask, case.src.float()).run(stack)
        torch.autograd.backward(y.float().square().mean())
        assert_finite({"output": y, **{n: p.grad for n, p in stack.named_parameters() if p.grad is not None}}, str(dtype))


def compiles_without_graph_breaks(registry: Registry, spec: Spec) -> None:
    """`torch.compile(fullgraph=True)` gives the same values."""
    stack, inputs = make(registry, spec), padded()[0]
    case = Inputs(inputs.x[:, :STEPS], padding()[:, :STEPS], inputs.src[:, :STEPS])
    torch._dynamo.reset()
    compiled = torch.compile(case.run, fullgraph=True, backend="eager")
    assert_close(compiled(stack), case.run(stack), 1e-10, "compiled output")


RULES = (
    does_not_depend_on_the_rest_of_a_batch,
    ignores_masked_tokens,
    stays_finite_without_any_token,
    decodes_in_steps,
    owns_only_what_it_uses,
    records_weights_without_side_effects,
    stays_finite_in_half_precision,
    compiles_without_graph_breaks,
)
