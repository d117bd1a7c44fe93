"""Rules of what treats each token on its own: norms, feed-forwards, residuals and embeddings."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from attnkit.registry import Registry, Spec
from attnkit.residual import Residual
from attnkit.testing.attention import assert_close, assert_finite
from attnkit.testing.component import D_MODEL, VOCAB_SIZE, build

BATCH, LENGTH = 2, 5
LARGE = 80.0  # the sum of the squares of 16 such channels is past what fp16 can hold


class _Joined(nn.Module):
    """A residual around a sublayer that doubles its input."""

    def __init__(self, residual: Residual) -> None:
        super().__init__()
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.residual.after(x, 2 * self.residual.before(x))
        return y


def _module(registry: Registry, spec: Spec) -> nn.Module:
    piece: nn.Module = build(registry, spec)
    return _Joined(piece) if isinstance(piece, Residual) else piece


def _input(registry: Registry) -> Tensor:
    if registry.attribute == "embeddings":
        return torch.randint(VOCAB_SIZE, (BATCH, LENGTH))
    return torch.randn(BATCH, LENGTH, D_MODEL, dtype=torch.float64, requires_grad=True)


def treats_each_token_on_its_own(registry: Registry, spec: Spec) -> None:
    """A token alone gives what it gives in a batch, of width D."""
    module, x = _module(registry, spec).double().eval(), _input(registry)
    y = module(x)
    assert tuple(y.shape) == (BATCH, LENGTH, D_MODEL), f"the output has shape {tuple(y.shape)}"
    for b in range(BATCH):
        for t in range(LENGTH):
            assert_close(module(x[b : b + 1, t : t + 1]), y[b : b + 1, t : t + 1], 1e-10, "a token alone")


def has_exact_gradients(registry: Registry, spec: Spec) -> None:
    """Gradients by finite differences, in float64, of the input and of every parameter."""
    module, x = _module(registry, spec).double().eval(), _input(registry)
    names = [name for name, _ in module.named_parameters()]
    parameters = [p.detach().clone().requires_grad_() for p in module.parameters()]

    def run(x: Tensor, *parameters: Tensor) -> Tensor:
        y: Tensor = torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(run, (x, *parameters), fast_mode=True)
    module(x).sum().backward()
    unused = [name for name, p in module.named_parameters() if p.grad is None]
    assert not unused, f"{', '.join(unused)} has no gradient: a piece owns only what it uses"


def does_not_overflow_in_half_precision(registry: Registry, spec: Spec) -> None:
    """Inputs the sum of whose squares fp16 cannot hold give finite outputs and gradients in autocast."""
    for dtype in (torch.float16, torch.bfloat16):
        module, x = _module(registry, spec), _input(registry)
        if x.is_floating_point():
            x = (x.detach() * LARGE).to(dtype).requires_grad_()
        with torch.autocast("cpu", dtype=dtype):
            y = module(x)
        y.float().mean().backward()
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        if x.grad is not None:
            found["input"] = x.grad
        assert_finite({"output": y, **found}, str(dtype))


def compiles_without_graph_breaks(registry: Registry, spec: Spec) -> None:
    """`torch.compile(fullgraph=True)` gives the same values."""
    module, x = _module(registry, spec).double().eval(), _input(registry)
    torch._dynamo.reset()
    compiled: Callable[[Tensor], Tensor] = torch.compile(module, fullgraph=True, backend="eager")
    assert_close(compiled(x), module(x), 1e-10, "compiled output")


RULES = (
    treats_each_token_on_its_own,
    has_exact_gradients,
    does_not_overflow_in_half_precision,
    compiles_without_graph_breaks,
)
